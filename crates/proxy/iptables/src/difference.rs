//! The difference between the kernel's rules and the expected ones.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
};

use weft_proxy::{Deviation, Repair, RepairedPart};
use weft_ruleset::{ChainName, Table};

use crate::{
    expected::Expected,
    fixed::{self, Jump},
    names::is_private,
    observed::Observed,
    shared::SharedChain,
};

/// The chains and jumps that have to be written to bring the kernel to the expected state.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// Chains whose rules differ or that are missing.
    pub(crate) chains: HashSet<(Table, ChainName)>,
    /// Chains of Service ports and endpoints that should not exist.
    pub(crate) stale: BTreeSet<ChainName>,
    /// Jumps that are missing, in the order in which they are inserted.
    pub(crate) jumps: Vec<Jump>,
}

impl Difference {
    /// Compares expected and observed rules.
    pub(crate) fn between(expected: &Expected, observed: &Observed) -> Self {
        let mut difference = Self::default();
        for (chain, hash) in &expected.private {
            difference.check((Table::Nat, *chain), Some(hash), observed);
        }
        for (chain, hash) in &expected.fixed {
            difference.check(*chain, Some(hash), observed);
        }
        // kubelet's chain must exist for the jumps; its rules do not matter.
        difference.check((Table::Filter, fixed::FIREWALL), None, observed);
        for (chain, hash) in &expected.shared {
            if observed.shared.get(chain) != Some(hash) {
                difference.chains.insert((chain.table(), chain.name()));
            }
        }
        let stale = observed.chains.keys().filter(|(table, chain)| {
            *table == Table::Nat
                && is_private(chain.as_str())
                && !expected.private.contains_key(chain)
        });
        difference.stale = stale.map(|(_, chain)| *chain).collect();
        difference.jumps = fixed::jumps();
        difference.jumps.retain(|jump| {
            let present = (jump.table, jump.from, jump.rule.to_string());
            !observed.jumps.contains(&present)
        });
        difference
    }

    /// A difference that rewrites all chains, even those that are right.
    pub(crate) fn everything(expected: &Expected, observed: &Observed) -> Self {
        let mut difference = Self::between(expected, observed);
        let private = expected.private.keys().map(|chain| (Table::Nat, *chain));
        let shared = SharedChain::ALL.map(|chain| (chain.table(), chain.name()));
        difference.chains.extend(private);
        difference.chains.extend(expected.fixed.keys().copied());
        difference.chains.extend(shared);
        difference
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.stale.is_empty() && self.jumps.is_empty()
    }

    /// One finding for each chain or jump, sorted.
    pub(crate) fn describe(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = self
            .chains
            .iter()
            .map(|(table, chain)| Finding::new(*table, *chain, Deviation::Differs))
            .collect();
        let stale = self.stale.iter();
        findings.extend(stale.map(|chain| Finding::new(Table::Nat, *chain, Deviation::LeftOver)));
        let jumps = self.jumps.iter();
        findings
            .extend(jumps.map(|jump| Finding::new(jump.table, jump.from, Deviation::LacksJump)));
        findings.sort();
        findings
    }

    fn check(
        &mut self,
        chain: (Table, ChainName),
        hash: Option<&crate::expected::ChainHash>,
        observed: &Observed,
    ) {
        let same = match (observed.chains.get(&chain), hash) {
            (Some(there), Some(hash)) => there == hash,
            (there, None) => there.is_some(),
            (None, Some(_)) => false,
        };
        if !same {
            self.chains.insert(chain);
        }
    }
}

/// One deviation of the kernel's rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The table.
    pub table: Table,
    /// The chain.
    pub chain: ChainName,
    /// The kind of deviation.
    pub kind: Deviation,
}

impl Finding {
    fn new(table: Table, chain: ChainName, kind: Deviation) -> Self {
        Self { table, chain, kind }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.table, self.chain, self.kind)
    }
}

impl From<Finding> for Repair {
    fn from(finding: Finding) -> Self {
        Self {
            table: finding.table.as_str(),
            part: RepairedPart::Chain(finding.chain.as_str().into()),
            deviation: finding.kind,
        }
    }
}
