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
    /// Whether this kernel has named counters at all (nfnetlink_acct).
    ///
    /// Says nothing about the iptables match of that name, which is another module.
    pub fn has_counters(&mut self) -> bool {
        // Whatever the name: an answer about it is an answer.
        self.counter_packets("weft-probe").is_ok()
    }

    /// Makes a counter (nfacct object) unless it is there already. Its value is kept.
    ///
    /// The kernel takes names of up to 31 bytes.
    pub fn ensure_counter(&mut self, name: &str) -> Result<(), NetlinkError> {
        let flags = FLAG_REQUEST | FLAG_ACKNOWLEDGE | FLAG_CREATE | FLAG_EXCLUSIVE;
        let order = request(Subsystem::Accounting, NEW, flags, 0).with(NAME, &terminated(name));
        match self.socket.ask("make an nfacct counter", order, |_| ()) {
            Err(error) if error.errno() == Some(Errno::EXIST) => Ok(()),
            outcome => outcome,
        }
    }

    /// How many packets a counter has seen; nothing if there is no such counter.
    pub fn counter_packets(&mut self, name: &str) -> Result<Option<u64>, NetlinkError> {
        let flags = FLAG_REQUEST | FLAG_ACKNOWLEDGE;
        let question = request(Subsystem::Accounting, GET, flags, 0).with(NAME, &terminated(name));
        let mut packets = None;
        let outcome = self
            .socket
            .ask("read an nfacct counter", question, |payload| {
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
