//! The expected rules, as one hash for each chain.

use std::{
    collections::HashMap,
    fmt::Write as _,
    hash::{DefaultHasher, Hasher as _},
};

use weft_proxy::{Service, Settings};
use weft_ruleset::{ChainName, Rule, Table};

use crate::{
    backend::Options,
    fixed,
    port_rules::{PortRules, port_rules},
    shared::SharedChain,
};

/// The hash of a chain's rules in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainHash(u64);

/// Hashes a chain's rules line by line, as `iptables-save` prints them after the chain's name.
#[derive(Default)]
pub(crate) struct ChainHasher(DefaultHasher);

impl ChainHasher {
    pub(crate) fn line(&mut self, line: &str) {
        self.0.write(line.as_bytes());
        self.0.write_u8(b'\n');
    }

    pub(crate) fn finish(&self) -> ChainHash {
        ChainHash(self.0.finish())
    }
}

/// The hash of one rule.
pub(crate) fn line_hash(line: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(line.as_bytes());
    hasher.finish()
}

/// The hash of a chain whose groups of rules may be in any order, except for its tail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedHash {
    pub(crate) rules: usize,
    /// Sum of the rules' hashes: equal for every order.
    pub(crate) sum: u64,
    /// Hashes of the rules that must come last.
    pub(crate) tail: Vec<u64>,
}

impl SharedHash {
    fn add(&mut self, line: &str) {
        self.rules += 1;
        self.sum = self.sum.wrapping_add(line_hash(line));
    }

    fn remove(&mut self, line: &str) {
        self.rules -= 1;
        self.sum = self.sum.wrapping_sub(line_hash(line));
    }
}

/// All rules that should exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// Chains of Service ports and endpoints, all in the nat table.
    pub(crate) private: HashMap<ChainName, ChainHash>,
    /// Chains with fixed content.
    pub(crate) fixed: HashMap<(Table, ChainName), ChainHash>,
    /// Chains to which many Service ports contribute.
    pub(crate) shared: HashMap<SharedChain, SharedHash>,
    /// Number of rules in chains that we write, by table.
    pub(crate) rules: HashMap<Table, usize>,
}

impl Expected {
    /// The rules that exist without any Service.
    pub(crate) fn without_services(settings: &Settings, options: Options) -> Self {
        let mut expected = Self::default();
        for (table, chain, rules) in fixed::chains(settings, options) {
            expected.fixed.insert((table, chain), hash(&rules));
            *expected.rules.entry(table).or_default() += rules.len();
        }
        for chain in SharedChain::ALL {
            expected.shared.insert(chain, SharedHash::default());
        }
        let tail: Vec<String> = fixed::node_port_tail(settings)
            .iter()
            .map(ToString::to_string)
            .collect();
        let services = expected.shared.entry(SharedChain::NatServices).or_default();
        services.tail = tail.iter().map(|line| line_hash(line)).collect();
        for line in &tail {
            services.add(line);
        }
        *expected.rules.entry(Table::Nat).or_default() += tail.len();
        expected
    }

    /// The expected hash of a chain that is not shared.
    pub(crate) fn chain(&self, chain: (Table, ChainName)) -> Option<ChainHash> {
        let private = (chain.0 == Table::Nat).then(|| self.private.get(&chain.1));
        private
            .flatten()
            .or_else(|| self.fixed.get(&chain))
            .copied()
    }

    /// True if a chain should exist.
    pub(crate) fn has(&self, chain: (Table, ChainName)) -> bool {
        self.chain(chain).is_some()
            || SharedChain::find(chain.0, chain.1)
                .is_some_and(|shared| self.shared.contains_key(&shared))
    }

    /// Adds the rules of a Service port.
    pub(crate) fn add(&mut self, port: &PortRules) {
        for (chain, rules) in &port.chains {
            self.private.insert(*chain, hash(rules));
        }
        self.count(port, usize::wrapping_add);
        each_shared_line(port, |chain, line| {
            self.shared.entry(chain).or_default().add(line);
        });
    }

    /// Removes the rules of a Service port.
    pub(crate) fn remove(&mut self, port: &PortRules) {
        for (chain, _) in &port.chains {
            self.private.remove(chain);
        }
        self.count(port, usize::wrapping_sub);
        each_shared_line(port, |chain, line| {
            self.shared.entry(chain).or_default().remove(line);
        });
    }

    fn count(&mut self, port: &PortRules, change: fn(usize, usize) -> usize) {
        let own = port.chains.iter().map(|(_, rules)| rules.len()).sum();
        let nat = self.rules.entry(Table::Nat).or_default();
        *nat = change(*nat, own);
        for (chain, rules) in &port.groups {
            let count = self.rules.entry(chain.table()).or_default();
            *count = change(*count, rules.len());
        }
    }
}

fn each_shared_line(port: &PortRules, mut with: impl FnMut(SharedChain, &str)) {
    let mut line = String::new();
    for (chain, rules) in &port.groups {
        for rule in rules {
            line.clear();
            // Writing to a string cannot fail.
            let _ = write!(line, "{rule}");
            with(*chain, &line);
        }
    }
}

fn hash(rules: &[Rule]) -> ChainHash {
    let mut hasher = ChainHasher::default();
    let mut line = String::new();
    for rule in rules {
        line.clear();
        // Writing to a string cannot fail.
        let _ = write!(line, "{rule}");
        hasher.line(&line);
    }
    hasher.finish()
}

/// The rules of all ports of a Service.
pub(crate) fn service_rules(
    service: &Service,
    settings: &Settings,
    options: Options,
    comments: bool,
) -> Vec<PortRules> {
    let rules = |port| {
        let id = service.port_id(port);
        port_rules(&id, port, settings, options, comments)
    };
    service.ports.iter().map(rules).collect()
}
