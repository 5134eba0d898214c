//! Netfilter over netlink: the nftables generation and rules, named counters, conntrack entries;
//! and the size of the legacy tables.

use crate::netlink::{NetlinkError, Protocol, Request, Socket};

mod accounting;
mod conntrack;
mod generation;
mod rules;
mod xtables;

pub use conntrack::{Endpoints, Flow, Zone};
pub use rules::RawRule;
pub(crate) use rules::Step;
pub use xtables::{FingerprintError, TableFingerprint, legacy_fingerprint, legacy_table_exists};

/// A socket to netfilter in the network namespace in which it was opened.
///
/// Almost everything needs `CAP_NET_ADMIN` in that namespace.
#[derive(Debug)]
pub struct Netfilter {
    pub(crate) socket: Socket,
}

impl Netfilter {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self {
            socket: Socket::open(Protocol::Netfilter)?,
        })
    }
}

/// A netfilter subsystem; the upper half of a message's type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subsystem {
    Conntrack = 1,
    Accounting = 7,
    Nftables = 10,
}

/// Size of `nfgenmsg`, which precedes the attributes of every message.
const FIXED_PART: usize = 4;

/// A message to a subsystem. `family` is 0 where it does not matter.
pub(crate) fn request(subsystem: Subsystem, message: u8, flags: u16, family: u8) -> Request {
    let kind = u16::from_be_bytes([subsystem as u8, message]);
    // Family, version 0, no resource.
    Request::new(kind, flags, &[family, 0, 0, 0])
}

/// The attributes after the fixed part of an answer.
pub(crate) fn body(payload: &[u8]) -> &[u8] {
    payload.get(FIXED_PART..).unwrap_or(&[])
}

/// The name with a terminating NUL.
pub(crate) fn terminated(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    bytes
}
