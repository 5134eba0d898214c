//! Compares two rulesets by what matters to a service proxy.
//!
//! kube-proxy iterates over its Services in random order, so equal states differ as text: in six
//! chains that all Services share, only the order *within* each service port's rules matters.
//! Everywhere else order matters. Built-in chains are shared with other programs; only their jumps
//! to the proxy's chains are compared.

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

/// Differences that are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComparisonOptions {
    /// Comments of rules for single endpoints. In a large cluster kube-proxy omits them, but keeps
    /// those from before the cluster was large.
    pub ignore_endpoint_comments: bool,
    /// Chains of Services that no rule leads to. In a large cluster kube-proxy removes them late.
    pub ignore_stale_chains: bool,
    /// Chains that no service proxy creates, for example those of a CNI plugin.
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

/// The part of a table that is compared.
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

    /// Chains of Services that cannot be reached from any other chain.
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
        let options = self.options;
        let normal = |view: &View<'a>| -> Vec<Cow<'a, SavedRule>> {
            let rules = view.rules(chain).iter();
            rules
                .map(|rule| normal_form(chain, rule, options))
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

/// Reports the rules that only one side has. Returns whether there are any.
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

/// The items that the first has more often than the second.
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

/// The rule without its comment, if it is about one endpoint and such comments are ignored.
fn normal_form(
    chain: ChainName,
    rule: &SavedRule,
    options: ComparisonOptions,
) -> Cow<'_, SavedRule> {
    let SavedRule::Known(known) = rule else {
        return Cow::Borrowed(rule);
    };
    let starts = |name: ChainName, prefix| name.as_str().starts_with(prefix);
    let balances = starts(chain, "KUBE-SVC-") || starts(chain, "KUBE-SVL-");
    let to_endpoint = || known.jump().is_some_and(|name| starts(name, "KUBE-SEP-"));
    if !options.ignore_endpoint_comments
        || !(starts(chain, "KUBE-SEP-") || balances && to_endpoint())
    {
        return Cow::Borrowed(rule);
    }
    let mut bare = known.clone();
    bare.matches.retain(|m| !matches!(m, Match::Comment(_)));
    Cow::Owned(SavedRule::Known(bare))
}

#[cfg(test)]
mod tests;
