//! What happens to a cluster, second by second; the same for the same seed.

use std::{net::Ipv4Addr, time::Duration};

mod kinds;

pub(super) use kinds::{failures, quiet, rehearsal, steady, waves};

/// A node of a trace. Its number is the one of its server, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Machine {
    pub(super) number: u16,
    /// Which range it has; ranges are used again.
    pub(super) range: u8,
    /// How often its address changed.
    pub(super) moved: u8,
}

/// One thing that happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// A server comes up and its kubelet registers a Node, with neither range nor address.
    Register(Machine),
    /// The Node gets its range.
    Range(Machine),
    /// The Node gets its provider ID and its address: from here on it can be routed.
    Identify(Machine),
    /// The server's address in the network becomes another.
    ChangeAddress(Machine),
    /// The Node tells the address that its server has now.
    ReportAddress(Machine),
    /// The server is gone.
    Terminate(Machine),
    /// The Node is gone.
    Delete(Machine),
    /// A kubelet's heartbeat.
    Heartbeat(Machine),
    /// A label changes.
    Label(Machine),
    /// The provider refuses calls with a code, so often or until further notice.
    Refuse {
        endpoints: &'static [&'static str],
        code: &'static str,
        times: u32,
    },
    /// The provider is well again.
    Recover,
}

/// A step and when it is due, from the beginning of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) step: Step,
}

/// A cluster's ten minutes.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    pub(super) name: &'static str,
    /// In a few words, for a reader.
    pub(super) about: &'static str,
    /// The nodes that are there before it begins, with their routes.
    pub(super) nodes: Vec<Machine>,
    /// In the order of their times.
    pub(super) events: Vec<Event>,
    pub(super) length: Duration,
    /// Joins that meet a provider that refuses one call and is well again.
    pub(super) refused_once: Vec<Machine>,
}

impl Machine {
    pub(super) fn new(number: u16, range: u8) -> Self {
        Self {
            number,
            range,
            moved: 0,
        }
    }

    pub(super) fn name(self) -> String {
        format!("node-{}", self.number)
    }

    pub(super) fn destination(self) -> String {
        format!("10.244.{}.0/24", self.range)
    }

    /// Nobody had it before, and nobody has it later.
    pub(super) fn address(self) -> Ipv4Addr {
        let [high, low] = self.number.to_be_bytes();
        Ipv4Addr::new(10, 0, 1 + high + 16 * self.moved, low)
    }
}

impl Trace {
    /// How many steps of a kind there are.
    pub(super) fn count(&self, is: impl Fn(&Step) -> bool) -> usize {
        self.events.iter().filter(|event| is(&event.step)).count()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn all(seed: u64) -> [Trace; 5] {
        [
            steady(seed),
            quiet(seed),
            waves(seed),
            failures(seed),
            rehearsal(seed),
        ]
    }

    #[test]
    fn the_same_seed_gives_the_same_trace_and_another_gives_another() {
        for ((one, again), other) in all(1).iter().zip(all(1)).zip(all(2)) {
            assert_eq!(one.events, again.events);
            assert_ne!(one.events, other.events, "{}", one.name);
        }
    }

    #[test]
    fn every_step_concerns_a_node_in_the_state_for_it() {
        for trace in (1..=20).flat_map(all) {
            let mut stages: BTreeMap<u16, u8> =
                trace.nodes.iter().map(|node| (node.number, 3)).collect();
            let mut servers: BTreeSet<u16> = stages.keys().copied().collect();
            for Event { at, step } in &trace.events {
                assert!(*at < trace.length, "{step:?} of {}", trace.name);
                let stage = |node: &Machine| stages.get(&node.number).copied();
                let fits = match step {
                    Step::Register(node) => stage(node).is_none() && servers.insert(node.number),
                    Step::Range(node) => stage(node) == Some(1),
                    Step::Identify(node) => stage(node) == Some(2),
                    Step::Heartbeat(node) | Step::Label(node) => stage(node) == Some(3),
                    Step::ChangeAddress(node) | Step::ReportAddress(node) => {
                        stage(node) == Some(3) && servers.contains(&node.number)
                    }
                    Step::Terminate(node) => servers.remove(&node.number),
                    Step::Delete(node) => stages.remove(&node.number).is_some(),
                    Step::Refuse { .. } | Step::Recover => true,
                };
                assert!(fits, "{step:?} at {at:?} of {}", trace.name);
                match step {
                    Step::Register(node) => stages.insert(node.number, 1),
                    Step::Range(node) => stages.insert(node.number, 2),
                    Step::Identify(node) => stages.insert(node.number, 3),
                    _ => None,
                };
            }
            assert_eq!(
                stages.keys().collect::<BTreeSet<_>>(),
                servers.iter().collect()
            );
        }
    }

    #[test]
    fn no_two_nodes_have_one_range_and_the_table_has_room() {
        for trace in (1..=20).flat_map(all) {
            let mut ranges: BTreeSet<u8> = trace.nodes.iter().map(|node| node.range).collect();
            assert_eq!(ranges.len(), trace.nodes.len());
            for event in &trace.events {
                match event.step {
                    Step::Range(node) => assert!(ranges.insert(node.range), "{}", trace.name),
                    Step::Delete(node) => assert!(ranges.remove(&node.range), "{}", trace.name),
                    _ => {}
                }
                assert!(ranges.len() <= 90, "{}", trace.name);
            }
        }
    }

    #[test]
    fn addresses_are_of_the_subnet_and_of_one_machine_each() {
        let machines = (1..600).flat_map(|number| {
            (0..3).map(move |moved| Machine {
                moved,
                ..Machine::new(number, 1)
            })
        });
        let addresses: Vec<Ipv4Addr> = machines.map(Machine::address).collect();
        assert!(
            addresses
                .iter()
                .all(|address| address.octets()[..2] == [10, 0])
        );
        assert_eq!(
            addresses.iter().collect::<BTreeSet<_>>().len(),
            addresses.len()
        );
    }
}
