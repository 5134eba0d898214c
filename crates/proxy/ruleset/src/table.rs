//! The iptables tables that a service proxy uses.

use std::fmt;

use crate::ChainName;

const PREROUTING: ChainName = ChainName::fixed("PREROUTING");
const INPUT: ChainName = ChainName::fixed("INPUT");
const FORWARD: ChainName = ChainName::fixed("FORWARD");
const OUTPUT: ChainName = ChainName::fixed("OUTPUT");
const POSTROUTING: ChainName = ChainName::fixed("POSTROUTING");

/// A table of iptables that a service proxy writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Has no rules of the proxy, only a canary chain.
    Mangle,
    /// Accepts, rejects and drops packets.
    Filter,
    /// Translates addresses.
    Nat,
}

impl Table {
    /// All of them, in the order of a restore input.
    pub const ALL: [Self; 3] = [Self::Mangle, Self::Filter, Self::Nat];

    /// The name as iptables spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }

    /// Parses a table name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.as_str() == name)
    }

    /// The built-in chains, in the order in which `iptables-save` prints them.
    pub const fn built_in_chains(self) -> &'static [ChainName] {
        match self {
            Self::Mangle => &[PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING],
            Self::Filter => &[INPUT, FORWARD, OUTPUT],
            Self::Nat => &[PREROUTING, INPUT, OUTPUT, POSTROUTING],
        }
    }

    /// True for a built-in chain.
    pub fn has_built_in(self, chain: ChainName) -> bool {
        self.built_in_chains().contains(&chain)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
