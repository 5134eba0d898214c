//! Named packet counters of the kernel (nfnetlink_acct).

use rustix::io::Errno;

use crate::{
    netfilter::{Netfilter, Subsystem, body, request, terminated},
    netlink::{
        FLAG_ACKNOWLEDGE, FLAG_CREATE, FLAG_EXCLUSIVE, FLAG_REQUEST, NetlinkError, attributes,
        fixed,
    },
};

const NEW: u8 = 0;
const GET: u8 = 1;
const NAME: u16 = 1;
const PACKETS: u16 = 2;

impl Netfilter {
    /// Returns whether this kernel has named counters at all (nfnetlink_acct).
    ///
    /// The iptables match `nfacct` is another module and may still be missing.
    pub fn has_counters(&mut self) -> bool {
        // Any name does: an answer, also a negative one, shows that the module is there.
        self.counter_packets("weft-probe").is_ok()
    }

    /// Creates a counter (nfacct object) unless it exists. An existing one keeps its value.
    ///
    /// The kernel accepts names of up to 31 bytes.
    pub fn ensure_counter(&mut self, name: &str) -> Result<(), NetlinkError> {
        let flags = FLAG_REQUEST | FLAG_ACKNOWLEDGE | FLAG_CREATE | FLAG_EXCLUSIVE;
        let request = request(Subsystem::Accounting, NEW, flags, 0).with(NAME, &terminated(name));
        match self
            .socket
            .request("create an nfacct counter", request, |_| ())
        {
            Err(error) if error.errno() == Some(Errno::EXIST) => Ok(()),
            outcome => outcome,
        }
    }

    /// Packets counted so far; `None` if the counter does not exist.
    pub fn counter_packets(&mut self, name: &str) -> Result<Option<u64>, NetlinkError> {
        let flags = FLAG_REQUEST | FLAG_ACKNOWLEDGE;
        let request = request(Subsystem::Accounting, GET, flags, 0).with(NAME, &terminated(name));
        let mut packets = None;
        let outcome = self
            .socket
            .request("read an nfacct counter", request, |payload| {
                packets = attributes(body(payload))
                    .find(|attribute| attribute.kind == PACKETS)
                    .and_then(|attribute| fixed(attribute.value, 0))
                    .map(u64::from_be_bytes)
                    .or(packets);
            });
        match outcome {
            Ok(()) => Ok(packets),
            Err(error) if error.errno() == Some(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
