//! Traces one packet through a ruleset and prints its possible outcomes for people.
//!
//! The packet is the first one of a connection: the kernel passes only that one through the nat
//! table. The mangle table is not traced, nor are the tables that a [`Ruleset`] leaves out.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
};

use weft_model::Protocol;

use crate::{ChainName, ChainPolicy, Ruleset, Table};

mod condition;
mod step;
mod walk;

pub use step::{Action, Chance, Doubt, Step};
use walk::{End, State, Walker};

/// The first packet of a connection, and the facts about this node that decide its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Destination port.
    pub destination_port: u16,
    /// The way by which it enters the rules.
    pub entry: Entry,
    /// Its mark on entry.
    pub mark: u32,
    /// This node's addresses; loopback addresses may be left out.
    pub local_addresses: BTreeSet<IpAddr>,
    /// The list of recent clients, named after an endpoint's chain, that contains the source.
    pub affinity: Option<ChainName>,
}

/// The origin of a packet as the kernel sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// From a pod or from outside, on an interface. Without its name, rules that match an interface
    /// cannot be evaluated.
    Arriving {
        /// The interface that it arrives on.
        device: Option<String>,
    },
    /// From a process on this node.
    Sent,
}

impl Packet {
    /// True for an address of this node.
    pub fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.local_addresses.contains(&address)
    }
}

/// The result for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It goes to its destination.
    Accepted,
    /// It goes to another destination.
    Dnat(SocketAddr),
    /// It is dropped with an ICMP error to the sender.
    Rejected,
    /// It is dropped silently.
    Dropped,
    /// The rules loop or branch too often; the trace ended without a result.
    Unresolved,
}

/// One possible outcome for a packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Between 0 and 1; those of all outcomes of a packet add up to 1.
    pub probability: f64,
    /// The result.
    pub verdict: Verdict,
    /// True if its source becomes an address of this node.
    pub masqueraded: bool,
    /// The rules on its way.
    pub path: Vec<Step>,
}

impl Outcome {
    /// True if every rule on the way could be evaluated.
    pub fn is_certain(&self) -> bool {
        let in_doubt = |step: &Step| matches!(step, Step::Doubtful { .. });
        self.verdict != Verdict::Unresolved && !self.path.iter().any(in_doubt)
    }
}

impl Ruleset {
    /// All possible outcomes for a packet, in the order of the rules that decide them.
    pub fn trace(&self, packet: &Packet) -> Vec<Outcome> {
        let mut walker = Walker::new(self, packet);
        let mut outcomes = Vec::new();
        let mut open = vec![(0, End::Passed, State::new(packet))];
        while let Some((stage, end, state)) = open.pop() {
            let hook = match end {
                End::Passed => next_hook(packet, &state, stage),
                End::Stopped(verdict) => {
                    outcomes.push(state.finish(packet, Some(verdict)));
                    continue;
                }
            };
            let Some((table, chain)) = hook else {
                outcomes.push(state.finish(packet, None));
                continue;
            };
            let is_routed = chain.as_str() == "PREROUTING";
            // The last one is pushed first, so that the first branch is finished first.
            for (end, mut state) in walker.hook(table, chain, state).into_iter().rev() {
                if is_routed && matches!(end, End::Passed) {
                    state.route(packet);
                }
                open.push((stage + 1, end, state));
            }
        }
        outcomes
    }
}

/// The next built-in chain. A packet that a node sends to itself passes OUTPUT and then INPUT.
fn next_hook(packet: &Packet, state: &State, stage: usize) -> Option<(Table, ChainName)> {
    let local = packet.is_local(state.destination);
    let (table, chain) = match (&packet.entry, local, stage) {
        (Entry::Arriving { .. }, _, 0) => (Table::Nat, "PREROUTING"),
        (Entry::Arriving { .. }, true, 1) | (Entry::Sent, true, 3) => (Table::Filter, "INPUT"),
        (Entry::Arriving { .. }, false, 1) => (Table::Filter, "FORWARD"),
        (Entry::Sent, _, 0) => (Table::Nat, "OUTPUT"),
        (Entry::Sent, _, 1) => (Table::Filter, "OUTPUT"),
        (Entry::Arriving { .. }, false, 2) | (Entry::Sent, _, 2) => (Table::Nat, "POSTROUTING"),
        _ => return None,
    };
    Some((table, ChainName::fixed(chain)))
}

/// A short description of the result.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted => f.write_str("goes to its destination"),
            Self::Dnat(address) => write!(f, "goes to {address}"),
            Self::Rejected => f.write_str("rejected with ICMP port unreachable"),
            Self::Dropped => f.write_str("dropped"),
            Self::Unresolved => f.write_str("undecided: the rules loop or branch too often"),
        }
    }
}

/// A summary and one line for each step, indented by the depth of jumps.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", step::percent(self.probability), self.verdict)?;
        if self.masqueraded {
            f.write_str(", masqueraded")?;
        }
        if !self.is_certain() && self.verdict != Verdict::Unresolved {
            f.write_str(" (if the rules that cannot be evaluated do not match)")?;
        }
        for step in &self.path {
            write!(f, "\n{:indent$}{step}", "", indent = 2 * (step.depth() + 1))?;
        }
        Ok(())
    }
}

impl ChainPolicy {
    fn verdict(self) -> Option<Verdict> {
        match self {
            Self::Accept => None,
            Self::Drop => Some(Verdict::Dropped),
        }
    }
}

#[cfg(test)]
mod tests;
