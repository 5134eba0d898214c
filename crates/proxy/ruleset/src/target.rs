use std::{fmt, net::SocketAddr};

use weft_model::IpFamily;

use crate::ChainName;

/// What happens to a packet that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Go on in another chain, and come back when it has no opinion.
    Jump(ChainName),
    /// Let it pass this table.
    Accept,
    /// Lose it silently.
    Drop,
    /// Back to the chain that jumped here.
    Return,
    /// Lose it and tell the sender that the port is unreachable.
    Reject(IpFamily),
    /// Set the bits of `mask` to those of `value`, by exclusive or with what is left.
    SetMark {
        /// The bits to toggle after clearing.
        value: u32,
        /// The bits to clear first.
        mask: u32,
    },
    /// Send it out under an address of this host.
    Masquerade {
        /// Whether the source port is chosen at random.
        random_fully: bool,
    },
    /// Send it to another destination.
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
