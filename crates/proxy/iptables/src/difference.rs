//! The difference between the kernel's rules and the expected ones.

use std::collections::{BTreeSet, HashSet};

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

    /// The deviations of all chains and jumps, sorted.
    pub(crate) fn describe(&self) -> Vec<Repair> {
        let chains = self.chains.iter();
        let chains = chains.map(|(table, chain)| (*table, *chain, Deviation::Differs));
        let stale = self.stale.iter();
        let stale = stale.map(|chain| (Table::Nat, *chain, Deviation::LeftOver));
        let jumps = self.jumps.iter();
        let jumps = jumps.map(|jump| (jump.table, jump.from, Deviation::LacksJump));
        let mut all: Vec<_> = chains.chain(stale).chain(jumps).collect();
        all.sort();
        let repair = |(table, chain, deviation): (Table, ChainName, Deviation)| Repair {
            table: table.as_str(),
            part: RepairedPart::Chain(chain.as_str().into()),
            deviation,
        };
        all.into_iter().map(repair).collect()
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
