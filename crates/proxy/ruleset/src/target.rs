//! Targets (`-j`).

use std::{fmt, net::SocketAddr};

use weft_model::IpFamily;

use crate::ChainName;

/// The action on a packet that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Continues in another chain; returns here if that chain makes no decision.
    Jump(ChainName),
    /// Accepts the packet in this table.
    Accept,
    /// Drops it silently.
    Drop,
    /// Returns to the calling chain.
    Return,
    /// Drops it and sends ICMP port unreachable.
    Reject(IpFamily),
    /// Clears the bits of `mask`, then toggles those of `value`.
    SetMark {
        /// The bits to toggle after clearing.
        value: u32,
        /// The bits to clear first.
        mask: u32,
    },
    /// Replaces the source by an address of this host.
    Masquerade {
        /// Choose the source port at random.
        random_fully: bool,
    },
    /// Replaces the destination.
    Dnat(SocketAddr),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jump(chain) => write!(f, "-j {chain}"),
            Self::Accept => f.write_str("-j ACCEPT"),
            Self::Drop => f.write_str("-j DROP"),
            Self::Return => f.write_str("-j RETURN"),
            Self::Reject(IpFamily::V4) => {
                f.write_str("-j REJECT --reject-with icmp-port-unreachable")
            }
            Self::Reject(IpFamily::V6) => {
                f.write_str("-j REJECT --reject-with icmp6-port-unreachable")
            }
            Self::SetMark { value, mask } => {
                write!(f, "-j MARK --set-xmark {value:#x}/{mask:#x}")
            }
            Self::Masquerade { random_fully: true } => f.write_str("-j MASQUERADE --random-fully"),
            Self::Masquerade { .. } => f.write_str("-j MASQUERADE"),
            Self::Dnat(address) => write!(f, "-j DNAT --to-destination {address}"),
        }
    }
}
