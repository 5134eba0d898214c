//! Collects changes into transactions and commits them.

use std::sync::Arc;

use weft_host::nftables::{Place, Reason};
use weft_model::{ObjectKey, error_text};
use weft_proxy::{RuleOwner, SyncError};

use crate::{
    backend::{Branches, Written},
    kernel::{Kernel, KernelError},
    program::{Branch, pick, timeout},
    state::{Applied, State},
    transaction::{Phase, Size, Step, Transaction},
};

/// A transaction with elements of several Services is committed as soon as it has this many: one huge
/// commit would keep a processor for half a second.
pub(crate) const CHUNK: usize = 1_500;

/// The most elements in a transaction. A Service with more changed elements takes several.
const SERVICE_LIMIT: usize = 5_000;

/// Bytes of a commit around its elements: begin, end, and for each set the message that names it.
const FRAME_BYTES: usize = 8_192;

/// Unused `pick-N` chains that are kept. As soon as there are more, all unused ones are removed.
const SPARE_CHAINS: usize = 64;

/// The unused chains to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unused {
    All,
    /// All, as soon as they are more than [`SPARE_CHAINS`].
    BeyondSpare,
}

/// A commit that failed.
pub(crate) struct Failure {
    pub(crate) error: SyncError,
    /// True if the state is what the kernel holds, after the changes in question were taken back.
    pub(crate) is_known: bool,
}

pub(crate) struct Writer<'a> {
    pub(crate) kernel: &'a mut dyn Kernel,
    pub(crate) state: State,
    pub(crate) branches: Branches,
    pub(crate) transaction: Transaction,
    pub(crate) written: Written,
    /// Former values of Services whose changes are not committed yet.
    pub(crate) undo: Vec<(ObjectKey, Option<Applied>)>,
}

impl Writer<'_> {
    /// Adds steps of one Service, or of none. Commits what came before if it would get too much.
    pub(crate) fn add(
        &mut self,
        owner: Option<&ObjectKey>,
        steps: Vec<Step>,
    ) -> Result<(), Failure> {
        let limit = self.limit();
        let size = Size::of(&steps);
        if !self.transaction.size().and(size).is_within(limit) {
            self.commit_earlier(owner)?;
        }
        if !size.is_within(limit) {
            return self.add_large(owner, steps, limit);
        }
        self.transaction.extend(owner, steps);
        if self.transaction.len() >= CHUNK.min(limit.elements) {
            self.commit()?;
        }
        Ok(())
    }

    /// The most that one transaction may have.
    fn limit(&self) -> Size {
        Size {
            elements: SERVICE_LIMIT.min(self.kernel.element_limit()),
            bytes: self.kernel.byte_limit().saturating_sub(FRAME_BYTES),
        }
    }

    /// Commits what was added before the Service that is in the state already.
    fn commit_earlier(&mut self, current: Option<&ObjectKey>) -> Result<(), Failure> {
        let last = self.undo.pop_if(|(key, _)| Some(&*key) == current);
        // The order of taking back is lost with it: after a failure everything is read.
        self.commit().map_err(|failure| Failure {
            is_known: failure.is_known && last.is_none(),
            ..failure
        })?;
        self.undo.extend(last);
        Ok(())
    }

    /// In an order in which every commit leaves the Service usable.
    fn add_large(
        &mut self,
        owner: Option<&ObjectKey>,
        mut steps: Vec<Step>,
        limit: Size,
    ) -> Result<(), Failure> {
        let family = self.state.settings.family;
        steps.sort_by_cached_key(|step| (step.phase(family), step.is_front()));
        let mut is_begun = false;
        let mut size = Size::default();
        let mut part: Vec<Step> = Vec::new();
        let mut steps = steps.into_iter().peekable();
        while let Some(first) = steps.next() {
            let phase = first.phase(family);
            let mut group = vec![first];
            if let Phase::Front(_) = phase {
                let is_same = |step: &Step| step.phase(family) == phase;
                while let Some(next) = steps.next_if(is_same) {
                    group.push(next);
                }
            }
            let group_size = Size::of(&group);
            if !part.is_empty() && !size.and(group_size).is_within(limit) {
                self.commit_part(owner, std::mem::take(&mut part), is_begun)?;
                is_begun = true;
                size = Size::default();
            }
            if group_size.is_within(limit) {
                size = size.and(group_size);
                part.extend(group);
                continue;
            }
            // A front of so many source ranges: divided after all.
            for step in group {
                let step_size = Size::of([&step]);
                if !part.is_empty() && !size.and(step_size).is_within(limit) {
                    self.commit_part(owner, std::mem::take(&mut part), is_begun)?;
                    is_begun = true;
                    size = Size::default();
                }
                size = size.and(step_size);
                part.push(step);
            }
        }
        self.commit_part(owner, part, is_begun)
    }

    /// Commits a part of a Service. One that fails leaves what the parts before it wrote.
    fn commit_part(
        &mut self,
        owner: Option<&ObjectKey>,
        part: Vec<Step>,
        is_begun: bool,
    ) -> Result<(), Failure> {
        self.transaction.extend(owner, part);
        self.commit().map_err(|failure| Failure {
            is_known: failure.is_known && !is_begun,
            ..failure
        })
    }

    /// Commits what was added.
    pub(crate) fn commit(&mut self) -> Result<(), Failure> {
        let family = self.state.settings.family;
        let new_picks: Vec<u32> = self.state.counts.keys().copied().collect();
        let new_picks = new_picks
            .into_iter()
            .filter(|count| *count != 0 && !self.branches.picks.contains(count));
        let new_picks: Vec<u32> = new_picks.collect();
        let new_timeouts: Vec<u32> = {
            let timeouts = self.state.timeouts.keys().copied();
            timeouts
                .filter(|seconds| !self.branches.timeouts.contains(seconds))
                .collect()
        };
        let picks = new_picks.iter().map(|count| pick(family, *count));
        let timeouts = new_timeouts.iter().map(|seconds| timeout(family, *seconds));
        self.add_branches(picks.chain(timeouts).collect())?;
        if self.transaction.is_empty() {
            self.undo.clear();
            return Ok(());
        }
        let transaction = std::mem::replace(&mut self.transaction, Transaction::new(family));
        self.send(&transaction)?;
        self.undo.clear();
        self.written.chains += new_picks.len() + 5 * new_timeouts.len();
        self.branches.picks.extend(new_picks);
        self.branches.timeouts.extend(new_timeouts);
        Ok(())
    }

    /// Adds chains to the transaction, or writes them before it if they are too many.
    fn add_branches(&mut self, branches: Vec<Branch>) -> Result<(), Failure> {
        let family = self.state.settings.family;
        let limit = self.limit();
        let with = |branches: &[Branch]| {
            let mut transaction = Transaction::new(family);
            for branch in branches {
                transaction.add_branch(branch.clone());
            }
            transaction
        };
        let size = self.transaction.size();
        if size.and(with(&branches).size()).is_within(limit) || branches.is_empty() {
            for branch in branches {
                self.transaction.add_branch(branch);
            }
            return Ok(());
        }
        // The table and its repairs come first.
        let elements = std::mem::replace(&mut self.transaction, Transaction::new(family));
        let (structure, elements) = elements.split_structure();
        self.transaction = elements;
        if !structure.is_empty() {
            self.send(&structure)?;
        }
        let each = branches
            .iter()
            .map(|branch| with(std::slice::from_ref(branch)).size());
        let largest = each.map(|size| size.bytes).max().unwrap_or(1);
        for part in branches.chunks((limit.bytes / largest.max(1)).max(1)) {
            self.send(&with(part))?;
        }
        Ok(())
    }

    /// Removes chains that no Service needs. If the kernel refuses that, they stay, which is noted.
    pub(crate) fn remove_unused(&mut self, which: Unused) -> Result<(), Failure> {
        let family = self.state.settings.family;
        let counts = &self.state.counts;
        let picks = self.branches.picks.iter().copied();
        let picks: Vec<u32> = picks.filter(|count| !counts.contains_key(count)).collect();
        let timeouts = self.branches.timeouts.iter().copied();
        let timeouts: Vec<u32> = timeouts
            .filter(|seconds| !self.state.timeouts.contains_key(seconds))
            .collect();
        let unused = picks.len() + timeouts.len();
        if unused == 0 || (which == Unused::BeyondSpare && unused <= SPARE_CHAINS) {
            return Ok(());
        }
        let mut transaction = Transaction::new(family);
        for count in &picks {
            transaction.remove_branch(pick(family, *count));
        }
        for seconds in &timeouts {
            transaction.remove_branch(timeout(family, *seconds));
        }
        let (changes, _) = transaction.changes();
        match self.kernel.commit(&changes) {
            Ok(bytes) => self.written.bytes += bytes,
            Err(error @ KernelError::Refused { .. }) => {
                let message = error_text(&error);
                tracing::warn!(%family, error = message, "cannot remove unused chains");
                self.written.cleanup_failure = Some(message);
                return Ok(());
            }
            Err(error) => return Err(self.fail(error, &transaction, &[])),
        }
        self.written.removed_chains += picks.len() + 5 * timeouts.len();
        self.branches.picks.retain(|count| !picks.contains(count));
        self.branches.timeouts.retain(|t| !timeouts.contains(t));
        Ok(())
    }

    fn send(&mut self, transaction: &Transaction) -> Result<(), Failure> {
        let (changes, owners) = transaction.changes();
        match self.kernel.commit(&changes) {
            Ok(bytes) => {
                self.written.bytes += bytes;
                self.written.elements += transaction.len();
                Ok(())
            }
            Err(error) => Err(self.fail(error, transaction, &owners)),
        }
    }

    /// Takes back what was not committed, and finds out whose fault it was.
    fn fail(
        &mut self,
        error: KernelError,
        transaction: &Transaction,
        owners: &[Vec<Option<usize>>],
    ) -> Failure {
        for (key, applied) in std::mem::take(&mut self.undo).into_iter().rev() {
            self.state.swap(&key, applied);
        }
        let input = transaction.describe();
        let KernelError::Refused { cause, .. } = &error else {
            let is_known = matches!(error, KernelError::TooLarge(_));
            return Failure {
                error: SyncError::unavailable(error, &input),
                is_known,
            };
        };
        let (Place { change, element }, reason) = (cause.place, cause.reason);
        let owner = owners.get(change).and_then(|owners| match element {
            Some(element) => owners.get(element).copied().flatten(),
            None => None,
        });
        let owner = match owner {
            Some(owner) => RuleOwner::Service(transaction.owner(owner).clone()),
            None => RuleOwner::NoService,
        };
        match reason {
            // The kernel holds something else than what was written.
            Reason::Exists | Reason::Missing | Reason::Busy => Failure {
                error: SyncError::Diverged(Arc::new(error)),
                is_known: false,
            },
            Reason::Resources | Reason::Owned => Failure {
                error: SyncError::unavailable(error, &input),
                is_known: true,
            },
            Reason::Full | Reason::Unsupported | Reason::Invalid => Failure {
                error: SyncError::refused(error, Some(change + 1), owner, &input),
                is_known: true,
            },
        }
    }
}
