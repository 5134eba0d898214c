//! The kernel's own hashes of chains, recorded when the chains were known to be right.
//!
//! Printing a large ruleset as text takes iptables-nft minutes. The kernel's own form of it is read
//! in a second, but cannot be compared with rules that we would write. It can be compared with an
//! earlier one, though: a chain whose hash has not changed since it was right is still right.

use std::collections::{HashMap, HashSet};

use weft_model::IpFamily;
use weft_ruleset::{ChainName, Table};

use crate::{
    expected::Expected,
    fixed,
    kernel::{Fingerprint, Kernel, KernelError, RawHash},
    names::is_private,
    observed::{Observed, Reader},
    plan::Plan,
};

/// Up to this number, changed chains of single Service ports and endpoints are read as text one by
/// one; above it, rewriting them is cheaper.
const READ_LIMIT: usize = 500;

type Chain = (Table, ChainName);

/// One raw hash for each chain, taken when the chain had its expected rules.
#[derive(Debug)]
pub(crate) struct Baseline {
    hashes: HashMap<Chain, RawHash>,
    /// Chains whose hashes say nothing, because we wrote to them since, or tried to.
    touched: HashSet<Chain>,
}

/// The result of comparing raw hashes and reading some chains as text.
pub(crate) struct Reading {
    pub(crate) observed: Observed,
    /// True if all changed chains were read. If not, those that were not read are missing from
    /// `observed`.
    pub(crate) complete: bool,
}

impl Baseline {
    /// Records the hashes of the chains: all, or those touched since it was last done.
    ///
    /// The kernel must have had the expected rules when `since` was its fingerprint. If another
    /// process wrote after that, nothing is recorded.
    pub(crate) fn record(
        baseline: &mut Option<Self>,
        kernel: &mut impl Kernel,
        since: Option<&Fingerprint>,
    ) -> Result<(), KernelError> {
        let Some(since) = since.filter(|fingerprint| fingerprint.exact) else {
            return Ok(());
        };
        let touched: Option<Vec<Chain>> = baseline
            .as_ref()
            .map(|baseline| baseline.touched.iter().copied().collect());
        let is_current = touched.as_ref().is_some_and(Vec::is_empty);
        if is_current || kernel.fingerprint().as_ref() != Some(since) {
            return Ok(());
        }
        let mut hashes = HashMap::new();
        let is_able = kernel.raw_chains(touched.as_deref(), &mut |table, chain, hash| {
            hashes.insert((table, chain), hash);
        })?;
        if !is_able || kernel.fingerprint().as_ref() != Some(since) {
            return Ok(());
        }
        let recorded = baseline.get_or_insert_with(|| Self {
            hashes: HashMap::new(),
            touched: HashSet::new(),
        });
        for chain in recorded.touched.drain() {
            recorded.hashes.remove(&chain);
        }
        recorded.hashes.extend(hashes);
        Ok(())
    }

    /// Marks the chains of a plan. Must be called before the plan is written, so that nothing is
    /// assumed of them if the write fails.
    pub(crate) fn touch(&mut self, plan: &Plan) {
        self.touched.extend(plan.chains());
    }

    /// Reads the kernel's rules. Chains with unchanged hashes have the rules that were expected
    /// `then`; of the others, those that are expected `now` are read as text.
    pub(crate) fn observe(
        &mut self,
        kernel: &mut impl Kernel,
        then: &Expected,
        now: &Expected,
        family: IpFamily,
    ) -> Result<Option<Reading>, KernelError> {
        let mut observed = Observed::default();
        let mut unknown = Vec::new();
        let is_able = kernel.raw_chains(None, &mut |table, chain, hash| {
            let is_known = self.is_unchanged((table, chain), hash);
            if table.has_built_in(chain) {
                if is_known {
                    observed.expect_jumps(table, chain);
                } else if has_jumps(table, chain) {
                    unknown.push((table, chain));
                }
                return;
            }
            observed.declare(table, chain);
            let is_clear = hash == RawHash::EMPTY
                || (is_known && observed.expect((table, chain), then))
                || !now.has((table, chain));
            if !is_clear {
                unknown.push((table, chain));
            }
        })?;
        if !is_able {
            return Ok(None);
        }
        self.touched.extend(&unknown);
        let (private, mut to_read): (Vec<Chain>, Vec<Chain>) = unknown
            .into_iter()
            .partition(|(table, chain)| *table == Table::Nat && is_private(chain.as_str()));
        let complete = private.len() <= READ_LIMIT;
        if complete {
            to_read.extend(private);
        } else {
            for chain in &private {
                observed.chains.remove(chain);
            }
        }
        let mut reader = Reader::resume(observed, now, family);
        for (table, chain) in to_read {
            reader.chain(table, chain, &kernel.chain_rules(table, chain)?);
        }
        Ok(Some(Reading {
            observed: reader.finish(),
            complete,
        }))
    }

    fn is_unchanged(&self, chain: Chain, hash: RawHash) -> bool {
        !self.touched.contains(&chain) && self.hashes.get(&chain) == Some(&hash)
    }
}

fn has_jumps(table: Table, chain: ChainName) -> bool {
    let mut jumps = fixed::jumps().into_iter();
    jumps.any(|jump| (jump.table, jump.from) == (table, chain))
}
