//! When what is written down: a route is ours before it is made.

use std::{collections::BTreeSet, time::Duration};

use weft_routes::{Moment, RoutePlan, Step, Ticket, Wanted};

use super::record::Entry;

/// How long to wait before the record is written again after it could not be.
const RETRY: Duration = Duration::from_secs(30);

/// What the record says and what it should say.
///
/// Routes are written down before they are made: a process that dies in between leaves none that
/// nobody knows to be ours. What is gone is struck out when nothing else is going on.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// What the record says, or said when it could last be written.
    recorded: BTreeSet<Entry>,
    /// What the last plan makes, so that a burst of routes is one write.
    intended: BTreeSet<Entry>,
    /// Mutations that wait until they are written down.
    held: Vec<(Ticket, Step)>,
    saving: bool,
    not_before: Moment,
}

impl Ledger {
    pub(crate) fn new(recorded: BTreeSet<Entry>) -> Self {
        Self {
            recorded,
            intended: BTreeSet::new(),
            held: Vec::new(),
            saving: false,
            not_before: Moment::START,
        }
    }

    /// A pass was planned.
    pub(crate) fn planned(&mut self, plan: &RoutePlan) {
        let wanted = plan.executable().iter().filter_map(Step::wanted);
        self.intended = wanted.filter_map(Wanted::key).collect();
    }

    /// A mutation shall begin.
    pub(crate) fn hold(&mut self, ticket: Ticket, step: Step) {
        self.held.push((ticket, step));
    }

    /// The mutations that may begin: their routes are written down, or cannot be because the
    /// provider chooses the next hop.
    pub(crate) fn release(&mut self) -> Vec<(Ticket, Step)> {
        let recorded = &self.recorded;
        let written = |(_, step): &mut (Ticket, Step)| {
            let key = step.wanted().and_then(Wanted::key);
            key.is_none_or(|key| recorded.contains(&key))
        };
        self.held.extract_if(.., written).collect()
    }

    /// All that the record should say, given what the controller knows to be ours.
    fn wanted(&self, ours: Vec<Entry>) -> BTreeSet<Entry> {
        let held = self.held.iter().filter_map(|(_, step)| step.wanted());
        let mut entries: BTreeSet<Entry> = ours.into_iter().collect();
        entries.extend(held.filter_map(Wanted::key));
        entries.extend(self.intended.iter().cloned());
        entries
    }

    /// What to write now, if anything. Say the end with [`Ledger::saved`].
    pub(crate) fn save(
        &mut self,
        ours: Vec<Entry>,
        idle: bool,
        now: Moment,
    ) -> Option<BTreeSet<Entry>> {
        let may = idle && self.not_before <= now;
        if self.saving || self.held.is_empty() && !may {
            return None;
        }
        let wanted = self.wanted(ours);
        self.saving = wanted != self.recorded;
        self.saving.then_some(wanted)
    }

    /// When to write next, if nothing happens before.
    pub(crate) fn wake(&self, ours: Vec<Entry>) -> Option<Moment> {
        (self.wanted(ours) != self.recorded).then_some(self.not_before)
    }

    /// The record was written, or could not be. Returns the mutations that cannot begin.
    pub(crate) fn saved(
        &mut self,
        entries: BTreeSet<Entry>,
        written: bool,
        now: Moment,
    ) -> Vec<Ticket> {
        self.saving = false;
        if written {
            self.recorded = entries;
            return Vec::new();
        }
        self.not_before = now + RETRY;
        let held = std::mem::take(&mut self.held).into_iter();
        held.map(|(ticket, _)| ticket).collect()
    }
}
