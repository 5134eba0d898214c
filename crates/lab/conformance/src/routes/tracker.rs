//! Tracks desired routes and compares them with observed ones. Pure: it does no I/O.

use std::collections::{BTreeMap, BTreeSet};

use super::trace::Machine;

/// Routes of a provider: gateway by destination.
pub(super) type Table = BTreeMap<String, String>;

/// Time in seconds since the beginning of a trace.
pub(super) type Moment = f64;

/// Desired routes of one cluster, and how they were fulfilled.
#[derive(Debug, Default)]
pub(super) struct RouteTracker {
    desired: BTreeMap<String, DesiredRoute>,
    /// Routes whose Nodes are deleted, with the time of the deletion.
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
    /// Never seen in the table.
    Awaited,
    Met,
    /// Removed from the table although it is still desired.
    Lost,
}

/// A node's wait for its route.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wait {
    pub(super) machine: Machine,
    /// Time from which the route could be made.
    pub(super) since: Moment,
    /// Last time at which the route was missing.
    pub(super) missing: Moment,
    /// First time at which the route was there; None if its node left or the trace ended before.
    pub(super) until: Option<Moment>,
}

impl Wait {
    pub(super) fn seconds(&self) -> Option<f64> {
        Some(self.until? - self.since)
    }
}

/// Results of a trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Found {
    /// One for every route that became desired during the trace, in that sequence.
    pub(super) waits: Vec<Wait>,
    /// Seconds from the deletion of a Node until its route was gone.
    pub(super) stale: Vec<f64>,
    /// Routes that disappeared while they were desired.
    pub(super) lost: u32,
    /// Routes desired at the end and not there.
    pub(super) missing: u32,
    /// Routes desired at the end and there.
    pub(super) right: u32,
    /// Routes there at the end and not desired.
    pub(super) leftover: u32,
}

impl RouteTracker {
    /// Adds a route that exists before the trace begins.
    pub(super) fn begin_with(&mut self, machine: Machine) {
        self.insert(machine, State::Met);
    }

    /// Adds a desired route to a machine and starts its wait.
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

    /// Stops tracking a route whose machine is gone or gets another address. Until its Node changes,
    /// the route may stay or go.
    pub(super) fn release(&mut self, machine: Machine) {
        let destination = machine.destination();
        // Another machine may have its range by now.
        let known = self.desired.get(&destination);
        if known.is_some_and(|route| route.machine.number == machine.number) {
            self.desired.remove(&destination);
        }
    }

    /// Marks the route of a deleted Node as stale.
    pub(super) fn forget(&mut self, machine: Machine, now: Moment) {
        self.release(machine);
        let route = (machine.destination(), machine.address().to_string());
        self.stale.insert(route, now);
    }

    /// Compares desired routes with the table.
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

    /// Compares for the last time and returns the results.
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
    fn missing_and_leftover_routes_are_counted_at_the_end() {
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
