//! When what is written down: a route is ours before it is made.

use std::{collections::BTreeSet, time::Duration};

use weft_routes::{Moment, RoutePlan, Step, Ticket, Wanted};

use crate::record::Entry;

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
    saving: Option<BTreeSet<Entry>>,
    not_before: Moment,
}

impl Ledger {
    pub(crate) fn new(recorded: BTreeSet<Entry>) -> Self {
        Self {
            recorded,
            intended: BTreeSet::new(),
            held: Vec::new(),
            saving: None,
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
        let (recorded, saving) = (&self.recorded, &self.saving);
        let written = |(_, step): &mut (Ticket, Step)| {
            let key = step.wanted().and_then(Wanted::key);
            // What is being written may strike it out.
            let stays = |key: &Entry| saving.as_ref().is_none_or(|saving| saving.contains(key));
            key.is_none_or(|key| recorded.contains(&key) && stays(&key))
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
        if self.saving.is_some() || self.held.is_empty() && !may {
            return None;
        }
        let wanted = self.wanted(ours);
        self.saving = (wanted != self.recorded).then_some(wanted);
        self.saving.clone()
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
        self.saving = None;
        if written {
            self.recorded = entries;
            return Vec::new();
        }
        // It may have been written all the same: only what is in both is there for certain.
        self.recorded = self.recorded.intersection(&entries).cloned().collect();
        self.not_before = now + RETRY;
        let held = std::mem::take(&mut self.held).into_iter();
        held.map(|(ticket, _)| ticket).collect()
    }
}

#[cfg(test)]
mod tests {
    use weft_routes::{Action, Cidr, CreateReason, NextHop, Wanted};

    use super::*;

    fn entry(number: u8) -> Entry {
        let net = format!("10.244.{number}.0/24").parse().unwrap();
        let hop = format!("10.0.0.{number}").parse().unwrap();
        (net, NextHop::Address(hop))
    }

    fn create(number: u8) -> Step {
        let (net, hop) = entry(number);
        let new = Wanted {
            destination: Cidr::from(net),
            node: "node".into(),
            uid: "uid".into(),
            next_hop: Some(hop),
            addresses: Vec::new(),
            provider_id: None,
        };
        let reason = CreateReason::Missing;
        Step {
            action: Action::Create { new, reason },
        }
    }

    fn released(ledger: &mut Ledger) -> Vec<Ticket> {
        let released = ledger.release().into_iter();
        released.map(|(ticket, _)| ticket).collect()
    }

    #[test]
    fn a_route_is_written_down_before_it_is_made() {
        let mut ledger = Ledger::new(BTreeSet::new());
        ledger.hold(Ticket(1), create(1));
        assert_eq!(released(&mut ledger), []);
        let entries = ledger.save(Vec::new(), false, Moment::START).unwrap();
        assert_eq!(entries, BTreeSet::from([entry(1)]));
        assert_eq!(released(&mut ledger), [], "not written yet");
        assert_eq!(ledger.saved(entries, true, Moment::START), []);
        assert_eq!(released(&mut ledger), [Ticket(1)]);
    }

    #[test]
    fn what_cannot_be_written_down_is_not_made() {
        let mut ledger = Ledger::new(BTreeSet::new());
        ledger.hold(Ticket(1), create(1));
        let entries = ledger.save(Vec::new(), false, Moment::START).unwrap();
        assert_eq!(ledger.saved(entries, false, Moment::START), [Ticket(1)]);
        assert_eq!(released(&mut ledger), []);
    }

    #[test]
    fn a_lost_answer_leaves_nothing_believed_that_may_have_been_struck_out() {
        let mut ledger = Ledger::new([entry(1), entry(2)].into());
        let entries = ledger.save(vec![entry(2)], true, Moment::START).unwrap();
        ledger.hold(Ticket(1), create(1));
        assert_eq!(released(&mut ledger), [], "it is just being struck out");
        let given_up = ledger.saved(entries, false, Moment::START);
        assert_eq!(given_up, [Ticket(1)]);
        ledger.hold(Ticket(2), create(1));
        assert_eq!(released(&mut ledger), [], "it has to be written again");
        let entries = ledger.save(vec![entry(2)], false, Moment::START).unwrap();
        assert!(entries.contains(&entry(1)));
    }

    #[test]
    fn what_is_gone_is_struck_out_when_nothing_else_is_going_on() {
        let mut ledger = Ledger::new([entry(1)].into());
        assert_eq!(ledger.save(Vec::new(), false, Moment::START), None);
        assert_eq!(ledger.wake(Vec::new()), Some(Moment::START));
        let entries = ledger.save(Vec::new(), true, Moment::START).unwrap();
        assert!(entries.is_empty());
    }
}
