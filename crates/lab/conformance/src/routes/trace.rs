//! Traces: seeded sequences of changes to a cluster and its provider.

use std::{net::Ipv4Addr, time::Duration};

mod kinds;

pub(super) use kinds::{failures, quiet, rehearsal, steady, waves};

/// A node of a trace and its server, which has the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Machine {
    pub(super) number: u16,
    /// Third octet of its pod CIDR 10.244.x.0/24; ranges are reused.
    pub(super) range: u8,
    /// Number of changes of its address.
    pub(super) moved: u8,
}

/// One change of the cluster or the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// A server starts and its kubelet registers a Node without range and address.
    Register(Machine),
    /// The Node gets its range.
    Range(Machine),
    /// The Node gets its provider ID and its address: from here on it can be routed.
    Identify(Machine),
    /// The server's address in the network changes.
    ChangeAddress(Machine),
    /// The Node reports the new address of its server.
    ReportAddress(Machine),
    /// The server is deleted.
    Terminate(Machine),
    /// The Node is deleted.
    Delete(Machine),
    /// A kubelet's heartbeat.
    Heartbeat(Machine),
    /// A label changes.
    Label(Machine),
    /// The provider refuses the next `times` calls of each endpoint with a code.
    Refuse {
        endpoints: &'static [&'static str],
        code: &'static str,
        times: u32,
    },
    /// The provider refuses no more calls.
    Recover,
}

/// A step and its time since the beginning of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) step: Step,
}

/// The initial state of a cluster and the steps that change it.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    pub(super) name: &'static str,
    /// Short description for the report.
    pub(super) about: &'static str,
    /// Nodes, with routes, that exist before it begins.
    pub(super) nodes: Vec<Machine>,
    /// Sorted by time.
    pub(super) events: Vec<Event>,
    pub(super) length: Duration,
    /// Nodes whose first create is refused once.
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

    /// Address in the network, unique for each node and each change of its address.
    pub(super) fn address(self) -> Ipv4Addr {
        let [high, low] = self.number.to_be_bytes();
        Ipv4Addr::new(10, 0, 1 + high + 16 * self.moved, low)
    }
}

impl Trace {
    /// Number of steps of a kind.
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
