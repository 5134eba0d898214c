//! Follows one packet through a ruleset and says in words what happens to it.
//!
//! The first packet of a connection is meant: the kernel asks the nat table only about that one.
//! The mangle table is not followed, nor are the tables that a [`Ruleset`] leaves out.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
};

use weft_model::Protocol;

use crate::{ChainName, Policy, Ruleset, Table};

mod condition;
mod step;
mod walk;

pub use step::{Action, Chance, Doubt, Step};
use walk::{End, State, Walker};

/// The first packet of a connection, and what this node knows of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who sends it.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// By which protocol.
    pub protocol: Protocol,
    /// To which port.
    pub destination_port: u16,
    /// How it comes to the rules.
    pub entry: Entry,
    /// The mark it comes with.
    pub mark: u32,
    /// This node's addresses; those of the loopback network need not be named.
    pub local_addresses: BTreeSet<IpAddr>,
    /// The list of recent clients (it bears the name of an endpoint's chain) that has the source.
    pub affinity: Option<ChainName>,
}

/// Where a packet comes from, as the kernel sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// From a pod or from outside, on a device; without its name, rules that ask for it are in
    /// doubt.
    Arriving {
        /// The device.
        device: Option<String>,
    },
    /// From a process on this node itself.
    Sent,
}

impl Packet {
    /// Whether an address is one of this node's.
    pub fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.local_addresses.contains(&address)
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It goes where it was sent.
    Accepted,
    /// It goes elsewhere.
    Dnat(SocketAddr),
    /// It is lost, and the sender is told.
    Rejected,
    /// It is lost.
    Dropped,
    /// The rules lead in a circle or branch beyond all measure; nothing was decided.
    Unresolved,
}

/// One thing that can happen to a packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// How likely it is, between 0 and 1; all outcomes of a packet together make 1.
    pub probability: f64,
    /// What happens.
    pub verdict: Verdict,
    /// Whether it goes on under an address of this node.
    pub masqueraded: bool,
    /// The rules that brought it about.
    pub path: Vec<Step>,
}

impl Outcome {
    /// Whether every rule on the way could be judged.
    pub fn is_certain(&self) -> bool {
        let in_doubt = |step: &Step| matches!(step, Step::Doubtful { .. });
        self.verdict != Verdict::Unresolved && !self.path.iter().any(in_doubt)
    }
}

impl Ruleset {
    /// Everything that can happen to a packet, in the order of the rules that decide it.
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
            // The last is pushed first, so that the first branch is finished first.
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

/// The chain that the kernel calls next. A packet that a node sends to itself leaves and arrives.
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

/// The outcome as a headline.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted => f.write_str("goes to its destination"),
            Self::Dnat(address) => write!(f, "goes to {address}"),
            Self::Rejected => {
                f.write_str("rejected: the sender is told that the port is unreachable")
            }
            Self::Dropped => f.write_str("dropped without a word"),
            Self::Unresolved => {
                f.write_str("undecided: the rules lead in a circle or branch too often")
            }
        }
    }
}

/// A headline and a line for each step, indented as the chains call one another.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", step::percent(self.probability), self.verdict)?;
        if self.masqueraded {
            f.write_str(", under an address of this node")?;
        }
        if !self.is_certain() && self.verdict != Verdict::Unresolved {
            f.write_str(" (if the rules in doubt do not apply)")?;
        }
        for step in &self.path {
            write!(f, "\n{:indent$}{step}", "", indent = 2 * (step.depth() + 1))?;
        }
        Ok(())
    }
}

impl Policy {
    fn verdict(self) -> Option<Verdict> {
        match self {
            Self::Accept => None,
            Self::Drop => Some(Verdict::Dropped),
        }
    }
}

#[cfg(test)]
mod tests;
