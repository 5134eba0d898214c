//! Write-ahead record of route ownership: a route is recorded before it is created.

use std::{collections::BTreeSet, time::Duration};

use ipnet::IpNet;

use crate::{Moment, NextHop, RoutePlan, Step, Ticket, Wanted, WriteOutcome};

/// Destination and next hop of a route that is ours.
pub type LedgerEntry = (IpNet, NextHop);

/// Time between a failed write of the record and the next, unless a mutation waits for it.
const RETRY: Duration = Duration::from_secs(30);

/// The stored record, the record to store, and the mutations that wait for it.
///
/// Routes are recorded before they are created: a process that dies in between leaves no route of
/// unknown owner. Entries of deleted routes are removed when nothing else is under way.
#[derive(Debug)]
pub struct Ledger {
    /// The stored entries, as of the last successful write.
    recorded: BTreeSet<LedgerEntry>,
    /// The routes of the last plan, so that a burst of routes is one write.
    intended: BTreeSet<LedgerEntry>,
    /// Mutations that wait for their entries to be stored.
    held: Vec<(Ticket, Step)>,
    saving: Option<BTreeSet<LedgerEntry>>,
    not_before: Moment,
    /// True if the stored entries differ from those to store; `None` until they are compared again.
    outdated: Option<bool>,
}

/// Work of the controller besides the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Nothing is under way.
    Idle,
    /// Calls are under way: the record is written only if a mutation waits for it.
    Busy,
}

impl Ledger {
    /// Starts from the stored record.
    pub fn new(recorded: BTreeSet<LedgerEntry>) -> Self {
        Self {
            recorded,
            intended: BTreeSet::new(),
            held: Vec::new(),
            saving: None,
            not_before: Moment::START,
            outdated: None,
        }
    }

    /// The routes that the controller knows to be ours may have changed.
    pub fn owned_changed(&mut self) {
        self.outdated = None;
    }

    /// A pass was planned.
    pub fn planned(&mut self, plan: &RoutePlan) {
        let wanted = plan.executable().iter().filter_map(Step::wanted);
        self.intended = wanted.filter_map(Wanted::key).collect();
        self.outdated = None;
    }

    /// Holds a mutation until its route is recorded.
    pub fn hold(&mut self, ticket: Ticket, step: Step) {
        self.held.push((ticket, step));
        self.outdated = None;
    }

    /// Takes the mutations that may start: their routes are recorded, or have no entry because the
    /// provider chooses the next hop.
    pub fn release(&mut self) -> Vec<(Ticket, Step)> {
        let (recorded, saving) = (&self.recorded, &self.saving);
        let written = |(_, step): &mut (Ticket, Step)| {
            let key = step.wanted().and_then(Wanted::key);
            // The write under way may remove the entry.
            let stays =
                |key: &LedgerEntry| saving.as_ref().is_none_or(|saving| saving.contains(key));
            key.is_none_or(|key| recorded.contains(&key) && stays(&key))
        };
        let released: Vec<_> = self.held.extract_if(.., written).collect();
        if !released.is_empty() {
            self.outdated = None;
        }
        released
    }

    /// The entries to store, given the routes that the controller knows to be ours.
    fn wanted(&self, owned: Vec<LedgerEntry>) -> BTreeSet<LedgerEntry> {
        let held = self.held.iter().filter_map(|(_, step)| step.wanted());
        let mut entries: BTreeSet<LedgerEntry> = owned.into_iter().collect();
        entries.extend(held.filter_map(Wanted::key));
        entries.extend(self.intended.iter().cloned());
        entries
    }

    /// The entries to write now, if any. Report the result with [`Ledger::saved`]. `owned` returns the
    /// routes that the controller knows to be ours; it is called only if something changed.
    pub fn save(
        &mut self,
        owned: impl FnOnce() -> Vec<LedgerEntry>,
        activity: Activity,
        now: Moment,
    ) -> Option<BTreeSet<LedgerEntry>> {
        let may = activity == Activity::Idle && self.not_before <= now;
        if self.saving.is_some() || self.held.is_empty() && !may || self.outdated == Some(false) {
            return None;
        }
        let wanted = self.wanted(owned());
        let outdated = wanted != self.recorded;
        self.outdated = Some(outdated);
        self.saving = outdated.then_some(wanted);
        self.saving.clone()
    }

    /// Time of the next write, if the record may be out of date.
    pub fn wake(&self) -> Option<Moment> {
        (self.outdated != Some(false)).then_some(self.not_before)
    }

    /// A write of the record ended. Returns the mutations that cannot start.
    pub fn saved(
        &mut self,
        entries: BTreeSet<LedgerEntry>,
        outcome: WriteOutcome,
        now: Moment,
    ) -> Vec<(Ticket, Step)> {
        self.saving = None;
        self.outdated = None;
        if outcome == WriteOutcome::Written {
            self.recorded = entries;
            return Vec::new();
        }
        // The write may have happened all the same: only entries in both versions are certain.
        self.recorded = self.recorded.intersection(&entries).cloned().collect();
        self.not_before = now + RETRY;
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cidr, CreateReason, NextHop, RouteAction, Wanted};

    use super::*;

    fn entry(number: u8) -> LedgerEntry {
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
            action: RouteAction::Create { new, reason },
        }
    }

    fn released(ledger: &mut Ledger) -> Vec<Ticket> {
        tickets(ledger.release())
    }

    fn tickets(mutations: Vec<(Ticket, Step)>) -> Vec<Ticket> {
        let mutations = mutations.into_iter();
        mutations.map(|(ticket, _)| ticket).collect()
    }

    #[test]
    fn a_route_is_recorded_before_it_is_created() {
        let mut ledger = Ledger::new(BTreeSet::new());
        ledger.hold(Ticket(1), create(1));
        assert_eq!(released(&mut ledger), []);
        let entries = ledger
            .save(Vec::new, Activity::Busy, Moment::START)
            .unwrap();
        assert_eq!(entries, BTreeSet::from([entry(1)]));
        assert_eq!(released(&mut ledger), [], "not written yet");
        assert_eq!(
            ledger.saved(entries, WriteOutcome::Written, Moment::START),
            []
        );
        assert_eq!(released(&mut ledger), [Ticket(1)]);
    }

    #[test]
    fn a_route_that_cannot_be_recorded_is_not_created() {
        let mut ledger = Ledger::new(BTreeSet::new());
        ledger.hold(Ticket(1), create(1));
        let entries = ledger
            .save(Vec::new, Activity::Busy, Moment::START)
            .unwrap();
        let given_up = ledger.saved(entries, WriteOutcome::Failed, Moment::START);
        assert_eq!(tickets(given_up), [Ticket(1)]);
        assert_eq!(released(&mut ledger), []);
    }

    #[test]
    fn after_a_lost_answer_entries_that_may_have_been_removed_do_not_count_as_recorded() {
        let mut ledger = Ledger::new([entry(1), entry(2)].into());
        let owned = || vec![entry(2)];
        let entries = ledger.save(owned, Activity::Idle, Moment::START).unwrap();
        ledger.hold(Ticket(1), create(1));
        assert_eq!(released(&mut ledger), [], "its entry is being removed");
        let given_up = ledger.saved(entries, WriteOutcome::Failed, Moment::START);
        assert_eq!(tickets(given_up), [Ticket(1)]);
        ledger.hold(Ticket(2), create(1));
        assert_eq!(released(&mut ledger), [], "it has to be written again");
        let entries = ledger.save(owned, Activity::Busy, Moment::START).unwrap();
        assert!(entries.contains(&entry(1)));
    }

    #[test]
    fn entries_of_deleted_routes_are_removed_only_when_idle() {
        let mut ledger = Ledger::new([entry(1)].into());
        assert_eq!(ledger.save(Vec::new, Activity::Busy, Moment::START), None);
        assert_eq!(ledger.wake(), Some(Moment::START));
        let entries = ledger
            .save(Vec::new, Activity::Idle, Moment::START)
            .unwrap();
        assert!(entries.is_empty());
        assert_eq!(
            ledger.saved(entries, WriteOutcome::Written, Moment::START),
            []
        );
        let asked = || unreachable!("nothing changed since");
        assert_eq!(ledger.save(Vec::new, Activity::Idle, Moment::START), None);
        assert_eq!(ledger.wake(), None, "nothing to write, nothing to wait for");
        assert_eq!(ledger.save(asked, Activity::Idle, Moment::START), None);
        ledger.owned_changed();
        let owned = || vec![entry(3)];
        assert!(ledger.save(owned, Activity::Idle, Moment::START).is_some());
    }
}
