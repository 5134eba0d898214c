//! Addresses of this network namespace's interfaces.
//!
//! [`Routing`](crate::routing) lists them too, on its own connection in an async runtime. This list is
//! for callers without one: blocking threads, and one family at a time.

use std::net::IpAddr;

use rustix::io::Errno;
use weft_model::IpFamily;

use crate::netlink::{
    Attribute, FLAG_DUMP, FLAG_REQUEST, NetlinkError, Protocol, Request, Socket, address,
    attributes, family_number, fixed,
};

const GET_ADDRESS: u16 = 22;
/// `IFA_ADDRESS`: the far end of a point-to-point link, otherwise our own address.
const ADDRESS: u16 = 1;
/// `IFA_LOCAL`: our own address, where it differs from `IFA_ADDRESS`. IPv4 always has it.
const LOCAL: u16 = 2;
/// Size of `ifaddrmsg`: family, prefix length, flags, scope, interface index.
const FIXED_PART: usize = 8;
/// Number of dumps before a list that keeps changing is an error.
const TRIES: u32 = 5;

/// An address of one of this machine's interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceAddress {
    /// IP address without its prefix length.
    pub address: IpAddr,
    /// Length of the network prefix in bits.
    pub prefix_length: u8,
    /// Index of its interface.
    pub interface: u32,
}

/// All addresses of a family in the calling thread's network namespace, loopback included, sorted.
///
/// The same link-local address can be on several interfaces.
pub fn interface_addresses(family: IpFamily) -> Result<Vec<InterfaceAddress>, NetlinkError> {
    let mut socket = Socket::open(Protocol::Route)?;
    let mut tries = 0;
    loop {
        let mut found = Vec::new();
        let mut header = [0; FIXED_PART];
        header[0] = family_number(family);
        let request = Request::new(GET_ADDRESS, FLAG_REQUEST | FLAG_DUMP, &header);
        let outcome = socket.request("list addresses", request, |payload| {
            // A kernel without the family answers with all families it has.
            found.extend(parse(payload).filter(|entry| IpFamily::of(entry.address) == family));
        });
        tries += 1;
        match outcome {
            Err(error) if error.errno() == Some(Errno::INTR) && tries < TRIES => {}
            Err(error) => return Err(error),
            Ok(()) => {
                found.sort_unstable();
                return Ok(found);
            }
        }
    }
}

fn parse(payload: &[u8]) -> Option<InterfaceAddress> {
    let own = |kind| move |attribute: &Attribute<'_>| attribute.kind == kind;
    let list = || attributes(payload.get(FIXED_PART..).unwrap_or(&[]));
    let attribute = list()
        .find(own(LOCAL))
        .or_else(|| list().find(own(ADDRESS)))?;
    Some(InterfaceAddress {
        address: address(attribute.value)?,
        prefix_length: *payload.get(1)?,
        interface: u32::from_ne_bytes(fixed(payload, 4)?),
    })
}
