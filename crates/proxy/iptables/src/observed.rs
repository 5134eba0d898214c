//! The kernel's rules as hashes that can be compared with the expected ones.

use std::collections::{HashMap, HashSet};

use weft_model::IpFamily;
use weft_ruleset::{ChainName, Rule, Table};

use crate::{
    expected::{ChainHash, ChainHasher, Expected, SharedHash, line_hash},
    fixed,
    shared::SharedChain,
};

/// The result of reading `iptables-save`.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// Our chains and kubelet's, by hash.
    pub(crate) chains: HashMap<(Table, ChainName), ChainHash>,
    /// Shared chains.
    pub(crate) shared: HashMap<SharedChain, SharedHash>,
    /// Rules of built-in chains that jump to one of our chains.
    pub(crate) jumps: HashSet<(Table, ChainName, String)>,
}

/// Reads `iptables-save` line by line and keeps only what will be compared: the rules of a large
/// cluster are tens of megabytes of text.
///
/// Other versions of iptables may print the same rule differently. A chain whose text differs is
/// therefore parsed and printed again in our notation.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    expected: &'a Expected,
    family: IpFamily,
    table: Option<Table>,
    /// The chain whose rules are being read; `iptables-save` prints them together.
    chain: Option<(Table, ChainName)>,
    rules: Lines,
    observed: Observed,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(expected: &'a Expected, family: IpFamily) -> Self {
        Self::resume(Observed::default(), expected, family)
    }

    /// Continues from what was observed already.
    pub(crate) fn resume(observed: Observed, expected: &'a Expected, family: IpFamily) -> Self {
        Self {
            expected,
            family,
            table: None,
            chain: None,
            rules: Lines::default(),
            observed,
        }
    }

    /// Reads all rules of one chain.
    pub(crate) fn chain(&mut self, table: Table, chain: ChainName, rules: &[String]) {
        for rule in rules {
            self.rule(table, chain.as_str(), rule);
        }
        self.finish_chain();
    }

    /// Reads the next line.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix('*') {
            self.finish_chain();
            self.table = Table::parse(name);
            return;
        }
        let Some(table) = self.table else { return };
        if let Some(declared) = line.strip_prefix(':') {
            let name = declared.split(' ').next().unwrap_or_default();
            if let (true, Ok(chain)) = (name.starts_with("KUBE-"), ChainName::parse(name)) {
                self.observed.declare(table, chain);
            }
        } else if let Some((chain, rule)) = split(line) {
            self.rule(table, chain, rule);
        }
    }

    /// The rules read so far.
    pub(crate) fn finish(mut self) -> Observed {
        self.finish_chain();
        self.observed
    }

    fn rule(&mut self, table: Table, chain: &str, rule: &str) {
        if self
            .chain
            .is_none_or(|(t, c)| t != table || c.as_str() != chain)
        {
            self.finish_chain();
            let Ok(name) = ChainName::parse(chain) else {
                return;
            };
            self.chain = Some((table, name));
        }
        self.rules.push(rule);
    }

    fn finish_chain(&mut self) {
        let Some((table, chain)) = self.chain.take() else {
            return;
        };
        let rules = std::mem::take(&mut self.rules);
        if !chain.as_str().starts_with("KUBE-") {
            self.observed.note_jumps(table, chain, &rules, self.family);
        } else if let Some(shared) = SharedChain::find(table, chain) {
            let hash = self.shared_hash(shared, &rules);
            self.observed.shared.insert(shared, hash);
        } else {
            let hash = self.chain_hash((table, chain), &rules);
            self.observed.chains.insert((table, chain), hash);
        }
        // Reuses the allocation for the next chain, unless this one was very large.
        if rules.0.capacity() < 1 << 16 {
            self.rules = rules;
            self.rules.0.clear();
        }
    }

    fn chain_hash(&self, chain: (Table, ChainName), rules: &Lines) -> ChainHash {
        let wanted = self.expected.chain(chain);
        let hash = hash(rules);
        if wanted.is_none_or(|wanted| wanted == hash) {
            return hash;
        }
        self::hash(&rules.normalised(self.family))
    }

    fn shared_hash(&self, chain: SharedChain, rules: &Lines) -> SharedHash {
        let wanted = self.expected.shared.get(&chain);
        let tail = wanted.map_or(0, |wanted| wanted.tail.len());
        let hash = shared_hash(rules, tail);
        if wanted.is_none_or(|wanted| *wanted == hash) {
            return hash;
        }
        shared_hash(&rules.normalised(self.family), tail)
    }
}

impl Observed {
    /// Records that a chain of ours or of kubelet's exists; it is empty unless rules follow.
    pub(crate) fn declare(&mut self, table: Table, chain: ChainName) {
        if let Some(shared) = SharedChain::find(table, chain) {
            self.shared.entry(shared).or_default();
        } else {
            let empty = ChainHasher::default().finish();
            self.chains.insert((table, chain), empty);
        }
    }

    /// Records that a chain has its expected rules. Returns `false` if none are expected.
    pub(crate) fn expect(&mut self, chain: (Table, ChainName), expected: &Expected) -> bool {
        if let Some(shared) = SharedChain::find(chain.0, chain.1) {
            let hash = expected.shared.get(&shared).cloned();
            return hash.map(|hash| self.shared.insert(shared, hash)).is_some();
        }
        let hash = expected.chain(chain);
        hash.map(|hash| self.chains.insert(chain, hash)).is_some()
    }

    /// Records that a built-in chain has all its jumps.
    pub(crate) fn expect_jumps(&mut self, table: Table, chain: ChainName) {
        let jumps = fixed::jumps().into_iter();
        let jumps = jumps.filter(|jump| (jump.table, jump.from) == (table, chain));
        self.jumps
            .extend(jumps.map(|jump| (table, chain, jump.rule.to_string())));
    }

    fn note_jumps(&mut self, table: Table, chain: ChainName, rules: &Lines, family: IpFamily) {
        for rule in rules.iter().filter(|rule| rule.contains("-j KUBE-")) {
            let text = match Rule::parse_for(family, rule) {
                Ok(parsed) => parsed.to_string(),
                Err(_) => rule.to_owned(),
            };
            self.jumps.insert((table, chain, text));
        }
    }
}

/// Lines of text in one allocation.
#[derive(Debug, Default)]
struct Lines(String);

impl Lines {
    fn push(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.lines()
    }

    /// The same rules in our notation; a rule that cannot be parsed stays as it is.
    fn normalised(&self, family: IpFamily) -> Self {
        let mut lines = Self::default();
        for line in self.iter() {
            match Rule::parse_for(family, line) {
                Ok(rule) => lines.push(&rule.to_string()),
                Err(_) => lines.push(line),
            }
        }
        lines
    }
}

fn hash(rules: &Lines) -> ChainHash {
    let mut hasher = ChainHasher::default();
    for rule in rules.iter() {
        hasher.line(rule);
    }
    hasher.finish()
}

fn shared_hash(rules: &Lines, tail: usize) -> SharedHash {
    let hashes: Vec<u64> = rules.iter().map(line_hash).collect();
    SharedHash {
        rules: hashes.len(),
        sum: hashes
            .iter()
            .fold(0, |sum: u64, hash| sum.wrapping_add(*hash)),
        tail: hashes[hashes.len().saturating_sub(tail)..].to_vec(),
    }
}

fn split(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("-A ")?;
    // A rule without matches and target consists of the chain's name alone.
    Some(rest.split_once(' ').unwrap_or((rest, "")))
}
