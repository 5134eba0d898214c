//! Whether two rulesets are the same to a service proxy.
//!
//! kube-proxy goes through its Services in random order, so equal states differ as text: in six
//! chains that all Services share, only the order *within* each service port's rules means
//! something. Everywhere else order counts. Chains that the kernel calls belong to everybody; of
//! those only the jumps to the proxy's chains are compared.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, HashSet},
    hash::Hash,
};

use crate::{ChainName, Match, Ruleset, SavedRule, Table};

mod difference;
mod ownership;
mod shared;

pub use difference::{Difference, Group, Side};
use ownership::{is_of_proxy, is_of_service, is_shared};

/// What two rulesets may differ in and still be the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComparisonOptions {
    /// Comments of rules for single endpoints. In a large cluster kube-proxy leaves them out, but
    /// keeps what it wrote before the cluster was large.
    pub ignore_endpoint_comments: bool,
    /// Chains of Services that nothing leads to. In a large cluster kube-proxy removes them late.
    pub ignore_stale_chains: bool,
    /// Chains that no service proxy makes: those of a CNI plugin, say.
    pub ignore_foreign_chains: bool,
}

/// All differences, by table and chain.
pub fn compare(expected: &Ruleset, found: &Ruleset, options: ComparisonOptions) -> Vec<Difference> {
    let mut differences = Vec::new();
    for table in Table::ALL {
        Comparison {
            table,
            options,
            expected: View::new(expected, table, options),
            found: View::new(found, table, options),
            differences: &mut differences,
        }
        .run();
    }
    differences
}

/// A table as far as it is compared.
struct View<'a> {
    ruleset: &'a Ruleset,
    table: Table,
    chains: BTreeSet<ChainName>,
    stale: HashSet<ChainName>,
}

impl<'a> View<'a> {
    fn new(ruleset: &'a Ruleset, table: Table, options: ComparisonOptions) -> Self {
        let names = ruleset.user_chains(table).map(|(name, _)| name);
        let chains = names.filter(|name| !options.ignore_foreign_chains || is_of_proxy(*name));
        let mut view = Self {
            ruleset,
            table,
            chains: chains.collect(),
            stale: HashSet::new(),
        };
        if options.ignore_stale_chains {
            view.stale = view.unreachable();
        }
        view
    }

    fn rules(&self, chain: ChainName) -> &'a [SavedRule] {
        self.ruleset.rules(self.table, chain)
    }

    /// Chains of Services to which no way leads from any other chain.
    fn unreachable(&self) -> HashSet<ChainName> {
        let (mut stale, mut open): (Vec<_>, Vec<_>) = self
            .ruleset
            .chains(self.table)
            .map(|(name, _)| name)
            .partition(|name| is_of_service(*name));
        let mut seen: HashSet<_> = open.iter().copied().collect();
        while let Some(chain) = open.pop() {
            let jumps = self.rules(chain).iter().filter_map(SavedRule::jump);
            open.extend(jumps.filter(|target| seen.insert(*target)));
        }
        stale.retain(|name| !seen.contains(name));
        stale.into_iter().collect()
    }
}

struct Comparison<'a, 'b> {
    table: Table,
    options: ComparisonOptions,
    expected: View<'a>,
    found: View<'a>,
    differences: &'b mut Vec<Difference>,
}

impl<'a> Comparison<'a, '_> {
    fn run(mut self) {
        for chain in self.table.built_in_chains() {
            self.built_in(*chain);
        }
        let (expected, found) = (&self.expected, &self.found);
        let all: Vec<_> = expected.chains.union(&found.chains).copied().collect();
        for chain in all {
            let (expected, found) = (&self.expected, &self.found);
            let there = (
                expected.chains.contains(&chain),
                found.chains.contains(&chain),
            );
            match there {
                (true, true) => self.rules(chain),
                (true, false) if !expected.stale.contains(&chain) => {
                    let table = self.table;
                    self.differences
                        .push(Difference::MissingChain { table, chain });
                }
                (false, true) if !found.stale.contains(&chain) => {
                    let table = self.table;
                    self.differences
                        .push(Difference::ExtraChain { table, chain });
                }
                _ => {}
            }
        }
    }

    fn built_in(&mut self, chain: ChainName) {
        let ours = |view: &View<'a>| -> Vec<Cow<'a, SavedRule>> {
            let jumps = |rule: &&SavedRule| rule.jump().is_some_and(is_of_proxy);
            let rules = view.rules(chain).iter();
            rules.filter(jumps).map(Cow::Borrowed).collect()
        };
        let (expected, found) = (ours(&self.expected), ours(&self.found));
        self.ordered(chain, &expected, &found);
    }

    fn rules(&mut self, chain: ChainName) {
        if self.expected.stale.contains(&chain) && self.found.stale.contains(&chain) {
            return;
        }
        let comments = !self.options.ignore_endpoint_comments;
        let normal = |view: &View<'a>| -> Vec<Cow<'a, SavedRule>> {
            let rules = view.rules(chain).iter();
            rules
                .map(|rule| normal_form(chain, rule, comments))
                .collect()
        };
        let (expected, found) = (normal(&self.expected), normal(&self.found));
        if is_shared(self.table, chain) {
            shared::compare(self.table, chain, &expected, &found, self.differences);
        } else {
            self.ordered(chain, &expected, &found);
        }
    }

    fn ordered(
        &mut self,
        chain: ChainName,
        expected: &[Cow<'_, SavedRule>],
        found: &[Cow<'_, SavedRule>],
    ) {
        if expected == found || members(self.table, chain, expected, found, self.differences) {
            return;
        }
        let mut pairs = expected.iter().zip(found).enumerate();
        let first = pairs.find(|(_, (expected, found))| expected != found);
        if let Some((index, (expected, found))) = first {
            self.differences.push(Difference::Order {
                table: self.table,
                chain,
                position: index + 1,
                expected: expected.clone().into_owned(),
                found: found.clone().into_owned(),
            });
        }
    }
}

/// Tells which rules only one side has, and whether there are any.
fn members(
    table: Table,
    chain: ChainName,
    expected: &[Cow<'_, SavedRule>],
    found: &[Cow<'_, SavedRule>],
    differences: &mut Vec<Difference>,
) -> bool {
    let before = differences.len();
    for rule in surplus(expected, found) {
        let rule = rule.clone().into_owned();
        differences.push(Difference::MissingRule { table, chain, rule });
    }
    for rule in surplus(found, expected) {
        let rule = rule.clone().into_owned();
        differences.push(Difference::ExtraRule { table, chain, rule });
    }
    differences.len() > before
}

/// What the first has more often than the second.
fn surplus<'a, T: Eq + Hash>(of: &'a [T], over: &[T]) -> Vec<&'a T> {
    let mut left: HashMap<&T, usize> = HashMap::new();
    for item in over {
        *left.entry(item).or_default() += 1;
    }
    let mut surplus = Vec::new();
    for item in of {
        match left.get_mut(item) {
            Some(count) if *count > 0 => *count -= 1,
            _ => surplus.push(item),
        }
    }
    surplus
}

/// Without the comment, if the rule is about one endpoint and such comments do not count.
fn normal_form(chain: ChainName, rule: &SavedRule, comments: bool) -> Cow<'_, SavedRule> {
    let SavedRule::Known(known) = rule else {
        return Cow::Borrowed(rule);
    };
    let starts = |name: ChainName, prefix| name.as_str().starts_with(prefix);
    let balances = starts(chain, "KUBE-SVC-") || starts(chain, "KUBE-SVL-");
    let to_endpoint = || known.jump().is_some_and(|name| starts(name, "KUBE-SEP-"));
    if comments || !(starts(chain, "KUBE-SEP-") || balances && to_endpoint()) {
        return Cow::Borrowed(rule);
    }
    let mut bare = known.clone();
    bare.matches.retain(|m| !matches!(m, Match::Comment(_)));
    Cow::Owned(SavedRule::Known(bare))
}

#[cfg(test)]
mod tests;
