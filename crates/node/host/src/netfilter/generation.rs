//! The nftables generation: a counter of transactions.

use crate::{
    netfilter::{Netfilter, Subsystem, body, request},
    netlink::{FLAG_ACKNOWLEDGE, FLAG_REQUEST, NetlinkError, attributes, fixed},
};

const GET_GENERATION: u8 = 16;
const GENERATION_ID: u16 = 1;

impl Netfilter {
    /// The generation of this namespace's nftables, which rises by one with every transaction that
    /// changes anything, by any process, in any table and family.
    ///
    /// The same number twice means that nothing was written in between. A restore by iptables-nft
    /// is one transaction for each `COMMIT`, or none if there was nothing to do, as for an empty
    /// chain that is flushed: a rise by more than the number of its `COMMIT`s reveals another
    /// writer.
    pub fn nftables_generation(&mut self) -> Result<u32, NetlinkError> {
        let operation = "get the nftables generation";
        let flags = FLAG_REQUEST | FLAG_ACKNOWLEDGE;
        let request = request(Subsystem::Nftables, GET_GENERATION, flags, 0);
        let mut generation = None;
        self.socket.request(operation, request, |payload| {
            generation = attributes(body(payload))
                .find(|attribute| attribute.kind == GENERATION_ID)
                .and_then(|attribute| fixed(attribute.value, 0))
                .map(u32::from_be_bytes)
                .or(generation);
        })?;
        generation.ok_or_else(|| NetlinkError::incomplete(operation))
    }
}
