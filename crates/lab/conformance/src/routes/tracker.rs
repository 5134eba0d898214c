//! What routes are wanted, and what became of them: pure bookkeeping over observations.

use std::collections::{BTreeMap, BTreeSet};

use super::trace::Machine;

/// Routes by destination, as a provider has them: each leads to one gateway.
pub(super) type Table = BTreeMap<String, String>;

/// Seconds since the beginning of a trace.
pub(super) type Moment = f64;

/// Wishes of one cluster, and how they were met.
#[derive(Debug, Default)]
pub(super) struct RouteTracker {
    desired: BTreeMap<String, DesiredRoute>,
    /// Routes whose nodes are gone, since when.
    stale: BTreeMap<(String, String), Moment>,
    found: Found,
}

#[derive(Debug)]
struct DesiredRoute {
    machine: Machine,
    gateway: String,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It was never seen in the table.
    Awaited,
    Met,
    /// It was in the table and is not any more, although it is still wanted.
    Lost,
}

/// A node's wait for its route.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wait {
    pub(super) machine: Machine,
    /// When the route could be made.
    pub(super) since: Moment,
    /// When it was last seen to be missing.
    pub(super) missing: Moment,
    /// When it was there; never, if its node left before, or the trace ended.
    pub(super) until: Option<Moment>,
}

impl Wait {
    pub(super) fn seconds(&self) -> Option<f64> {
        Some(self.until? - self.since)
    }
}

/// What was seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Found {
    /// One for every route that was wanted after the beginning, in that order.
    pub(super) waits: Vec<Wait>,
    /// From the end of a Node until its route was gone.
    pub(super) stale: Vec<f64>,
    /// Routes that vanished while they were wanted.
    pub(super) lost: u32,
    /// Wanted at the end, and not there.
    pub(super) missing: u32,
    /// Wanted at the end, and there.
    pub(super) right: u32,
    /// There at the end, and wanted by nobody.
    pub(super) leftover: u32,
}

impl RouteTracker {
    /// A route that is there before the trace begins.
    pub(super) fn begin_with(&mut self, machine: Machine) {
        self.insert(machine, State::Met);
    }

    /// From now on a route to this machine can be made.
    pub(super) fn want(&mut self, machine: Machine, now: Moment) {
        self.found.waits.push(Wait {
            machine,
            since: now,
            missing: now,
            until: None,
        });
        self.insert(machine, State::Awaited);
    }

    fn insert(&mut self, machine: Machine, state: State) {
        let route = DesiredRoute {
            machine,
            gateway: machine.address().to_string(),
            state,
        };
        self.desired.insert(machine.destination(), route);
    }

    /// The machine is gone or about to get another address: whether its route stays or goes does
    /// not matter until its Node changes.
    pub(super) fn release(&mut self, machine: Machine) {
        let destination = machine.destination();
        // Its range may be another's by now.
        let known = self.desired.get(&destination);
        if known.is_some_and(|route| route.machine.number == machine.number) {
            self.desired.remove(&destination);
        }
    }

    /// The Node is gone, and its route should go too.
    pub(super) fn forget(&mut self, machine: Machine, now: Moment) {
        self.release(machine);
        let route = (machine.destination(), machine.address().to_string());
        self.stale.insert(route, now);
    }

    /// Compares what is wanted with what is there.
    pub(super) fn see(&mut self, table: &Table, now: Moment) {
        for (destination, route) in &mut self.desired {
            let right = table.get(destination) == Some(&route.gateway);
            let mut waits = self.found.waits.iter_mut().rev();
            let wait = waits.find(|wait| wait.machine == route.machine);
            match (route.state, right, wait) {
                (State::Awaited, true, wait) => {
                    route.state = State::Met;
                    if let Some(wait) = wait {
                        wait.until = Some(now);
                    }
                }
                (State::Awaited, false, Some(wait)) => wait.missing = now,
                (State::Lost, true, _) => route.state = State::Met,
                (State::Met, false, _) => {
                    self.found.lost += 1;
                    route.state = State::Lost;
                }
                (State::Awaited | State::Lost, false, _) | (State::Met, true, _) => {}
            }
        }
        self.stale.retain(|(destination, gateway), since| {
            let there = table.get(destination) == Some(gateway);
            if !there {
                self.found.stale.push(now - *since);
            }
            there
        });
    }

    /// What is to be said at the end.
    pub(super) fn close(mut self, table: &Table, now: Moment) -> Found {
        self.see(table, now);
        let right: BTreeSet<&String> = self
            .desired
            .iter()
            .filter(|(destination, route)| table.get(*destination) == Some(&route.gateway))
            .map(|(destination, _)| destination)
            .collect();
        self.found.right = count(right.len());
        self.found.missing = count(self.desired.len() - right.len());
        self.found.leftover = count(table.keys().filter(|key| !right.contains(key)).count());
        self.found
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("a table has at most some hundred routes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(machines: &[Machine]) -> Table {
        let route = |machine: &Machine| (machine.destination(), machine.address().to_string());
        machines.iter().map(route).collect()
    }

    #[test]
    fn a_wait_ends_when_the_route_leads_to_the_right_machine() {
        let (old, new) = (Machine::new(1, 7), Machine::new(2, 7));
        let mut tracker = RouteTracker::default();
        tracker.want(new, 3.0);
        tracker.see(&table(&[old]), 4.0);
        tracker.see(&table(&[new]), 5.5);
        tracker.see(&table(&[new]), 6.5);
        let found = tracker.close(&table(&[new]), 7.0);
        assert_eq!(found.waits.len(), 1);
        assert_eq!(found.waits[0].seconds(), Some(2.5));
        assert!((found.waits[0].missing - 4.0).abs() < 1e-9);
        assert_eq!((found.right, found.missing, found.leftover), (1, 0, 0));
    }

    #[test]
    fn a_route_that_vanishes_while_it_is_wanted_is_lost_once() {
        let machine = Machine::new(1, 1);
        let mut tracker = RouteTracker::default();
        tracker.begin_with(machine);
        for now in [1.0, 2.0] {
            tracker.see(&Table::new(), now);
        }
        tracker.see(&table(&[machine]), 3.0);
        let found = tracker.close(&table(&[machine]), 4.0);
        assert_eq!((found.lost, found.missing), (1, 0));
        assert_eq!(found.waits, []);
    }

    #[test]
    fn a_route_of_a_machine_that_is_gone_may_go_before_its_node() {
        let machine = Machine::new(1, 1);
        let mut tracker = RouteTracker::default();
        tracker.begin_with(machine);
        tracker.release(machine);
        tracker.see(&Table::new(), 1.0);
        tracker.forget(machine, 2.0);
        tracker.see(&Table::new(), 2.5);
        let found = tracker.close(&Table::new(), 3.0);
        assert_eq!(found.lost, 0);
        assert_eq!(found.stale, [0.5]);
    }

    #[test]
    fn what_is_wrong_at_the_end_is_counted() {
        let [gone, never, left] =
            [(1, 8), (2, 7), (3, 6)].map(|(number, range)| Machine::new(number, range));
        let mut tracker = RouteTracker::default();
        tracker.begin_with(gone);
        tracker.forget(gone, 1.0);
        tracker.want(left, 1.0);
        tracker.forget(left, 2.0);
        tracker.want(never, 3.0);
        let found = tracker.close(&table(&[gone]), 9.0);
        assert_eq!((found.leftover, found.missing, found.right), (1, 1, 0));
        let waits = found.waits.iter().map(Wait::seconds);
        assert_eq!(waits.collect::<Vec<_>>(), [None, None]);
    }
}
