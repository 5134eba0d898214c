//! Netlink connection to nf_tables: commits batches, reads tables and what they contain.

use rustix::io::Errno;
use weft_model::IpFamily;

use super::{
    attribute::Read,
    batch::{Batch, Place, elements_message, read_elements},
    error::CommitError,
    object::{Chain, Element, ListedElement, Rule, Set, Table, counted_packets, join_ranges},
};
use crate::{
    NetlinkError,
    netfilter::{Netfilter, Step, Subsystem, body, request},
    netlink::{
        FLAG_ACKNOWLEDGE, FLAG_DUMP, FLAG_REQUEST, Request, attributes, family_number, fixed,
    },
    raw::set_option,
};

use super::attribute::Write as _;

const GET_TABLE: u8 = 1;
const GET_CHAIN: u8 = 4;
const GET_RULE: u8 = 7;
const GET_SET: u8 = 10;
const GET_ELEMENTS: u8 = 13;

/// `SOL_NETLINK` with two of its options: errors without the message that they are about, and with
/// the place in it.
const SOL_NETLINK: i32 = 270;
const SHORT_ERRORS: i32 = 10;
const DETAILED_ERRORS: i32 = 11;
const FLAG_DETAILS: u16 = 0x200;
const DETAIL_OFFSET: u16 = 2;
/// Size of an error number and of the header that it is about.
const ERROR_HEADER: usize = 20;

/// Enough for the largest transaction: the kernel doubles it. Costs nothing until it is used.
const SEND_BUFFER: i32 = 4 << 20;
const RECEIVE_BUFFER: i32 = 8 << 20;
/// The part of its send buffer that a netlink socket cannot use for a message.
const SEND_OVERHEAD: usize = 32;

/// Keys of one request: all answers fit into the default receive buffer.
const KEYS: usize = 100;

/// A connection to nf_tables of the network namespace in which it was opened.
///
/// Keep one open: the kernel waits for a grace period whenever a netfilter socket is closed.
#[derive(Debug)]
pub struct Nftables {
    netfilter: Netfilter,
    limit: usize,
}

impl Nftables {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        let netfilter = Netfilter::open()?;
        let socket = netfilter.socket.descriptor();
        for option in [SHORT_ERRORS, DETAILED_ERRORS] {
            let outcome = set_option(socket, SOL_NETLINK, option, 1);
            outcome.map_err(|source| NetlinkError {
                operation: "set an option of a netlink socket",
                source,
            })?;
        }
        let force = |option, size| set_option(socket, libc::SOL_SOCKET, option, size).is_ok();
        // Without CAP_NET_ADMIN in the initial user namespace, batches have to be small.
        force(libc::SO_SNDBUFFORCE, SEND_BUFFER);
        force(libc::SO_RCVBUFFORCE, RECEIVE_BUFFER);
        let buffer = rustix::net::sockopt::socket_send_buffer_size(socket);
        let buffer = buffer.map_err(|error| NetlinkError {
            operation: "get the send buffer of a netlink socket",
            source: error.into(),
        })?;
        Ok(Self {
            netfilter,
            limit: buffer.saturating_sub(SEND_OVERHEAD),
        })
    }

    /// Largest size of a batch in bytes, with the messages that frame it.
    pub fn batch_limit(&self) -> usize {
        self.limit
    }

    /// The netlink port ID of the socket, by which notifications name the writer.
    pub fn port(&self) -> Result<u32, NetlinkError> {
        let address = rustix::net::getsockname(self.netfilter.socket.descriptor());
        let address = address.and_then(rustix::net::netlink::SocketAddrNetlink::try_from);
        let address = address.map_err(|error| NetlinkError {
            operation: "get the number of a netlink socket",
            source: error.into(),
        })?;
        Ok(address.pid())
    }

    /// The generation of the rules of this namespace, which every commit of any process raises.
    pub fn generation(&mut self) -> Result<u32, NetlinkError> {
        self.netfilter.nftables_generation()
    }

    /// Commits a batch: all of its changes take effect at once, or none does.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), CommitError> {
        if batch.is_empty() {
            return Ok(());
        }
        let first = self.netfilter.socket.reserve(batch.message_count());
        let bytes = batch.finish(first);
        let mut refusals: Vec<(Option<Place>, Errno)> = Vec::new();
        let mut is_confirmed = false;
        let sent = self
            .netfilter
            .socket
            .transact(&bytes, first, &mut |number, flags, payload| {
                let errno = error_number(payload);
                match errno {
                    None => is_confirmed = true,
                    Some(errno) => {
                        let place = batch.place(number, offset(flags, payload));
                        refusals.push((place, errno));
                    }
                }
            });
        if let Err(source) = sent {
            return Err(match Errno::from_io_error(&source) {
                Some(Errno::MSGSIZE) => CommitError::TooLarge(bytes.len()),
                Some(Errno::NOBUFS) => CommitError::Unknown,
                _ => CommitError::Socket(NetlinkError {
                    operation: "send an nftables batch",
                    source,
                }),
            });
        }
        // An error about the frame refuses the whole batch: the process lacks the permission.
        let whole = refusals.iter().find(|(place, _)| place.is_none());
        if let Some((_, errno)) = whole {
            return Err(CommitError::Socket(NetlinkError {
                operation: "commit an nftables batch",
                source: (*errno).into(),
            }));
        }
        let refusals: Vec<(Place, Errno)> = refusals
            .into_iter()
            .filter_map(|(place, errno)| Some((place?, errno)))
            .collect();
        if !refusals.is_empty() {
            return Err(CommitError::from_refusals(refusals));
        }
        if is_confirmed {
            Ok(())
        } else {
            Err(CommitError::Unknown)
        }
    }

    /// One table, if it exists.
    pub fn table(&mut self, family: IpFamily, name: &str) -> Result<Option<Table>, NetlinkError> {
        let question = get(family, GET_TABLE, FLAG_ACKNOWLEDGE).text(1, name);
        let mut found = None;
        let asked = self
            .netfilter
            .socket
            .request("get an nftables table", question, |payload| {
                found = Table::read(family, Read(body(payload))).or(found.take());
            });
        match asked {
            Err(error) if error.errno() == Some(Errno::NOENT) => Ok(None),
            asked => asked.map(|()| found),
        }
    }

    /// The chains of a table, with what cannot be read left out.
    pub fn chains(&mut self, family: IpFamily, table: &str) -> Result<Vec<Chain>, NetlinkError> {
        let question = get(family, GET_CHAIN, FLAG_DUMP);
        self.dump("list nftables chains", &question, |read, chains| {
            // The kernel sends those of all tables.
            if read.text(1) == Some(table) {
                chains.extend(Chain::read(read));
            }
        })
    }

    /// The rules of a table, chain by chain in their order.
    pub fn rules(&mut self, family: IpFamily, table: &str) -> Result<Vec<Rule>, NetlinkError> {
        let question = get(family, GET_RULE, FLAG_DUMP).text(1, table);
        self.dump("list nftables rules", &question, |read, rules| {
            rules.extend(Rule::read(read));
        })
    }

    /// Rules with a counter, and the number of packets that it counted.
    pub fn rule_counters(
        &mut self,
        family: IpFamily,
        table: &str,
    ) -> Result<Vec<(Rule, u64)>, NetlinkError> {
        let question = get(family, GET_RULE, FLAG_DUMP).text(1, table);
        self.dump("list nftables rules", &question, |read, found| {
            if let (Some(packets), Some(rule)) = (counted_packets(read), Rule::read(read)) {
                found.push((rule, packets));
            }
        })
    }

    /// The sets and maps of a table, with what cannot be read left out.
    pub fn sets(&mut self, family: IpFamily, table: &str) -> Result<Vec<Set>, NetlinkError> {
        let question = get(family, GET_SET, FLAG_DUMP).text(1, table);
        self.dump("list nftables sets", &question, |read, sets| {
            sets.extend(Set::read(read));
        })
    }

    /// All elements of a set. The time it takes grows with the square of their number, beyond some
    /// 50,000: [`get_elements`](Self::get_elements) is faster then where the keys are known.
    pub fn elements(
        &mut self,
        family: IpFamily,
        table: &str,
        set: &str,
    ) -> Result<Vec<Element>, NetlinkError> {
        let question = get(family, GET_ELEMENTS, FLAG_DUMP)
            .text(1, table)
            .text(2, set);
        let mut found: Vec<ListedElement> = Vec::new();
        let operation = "list nftables elements";
        self.netfilter
            .consistent_dump(operation, &question, &mut |step| match step {
                Step::Begin => found.clear(),
                Step::Message(payload) => found.extend(read_elements(body(payload))),
            })?;
        Ok(join_ranges(found))
    }

    /// The elements that have these keys; those that do not exist are left out.
    pub fn get_elements(
        &mut self,
        family: IpFamily,
        table: &str,
        set: &str,
        keys: &[super::Value],
    ) -> Result<Vec<Element>, NetlinkError> {
        let mut found = Vec::with_capacity(keys.len());
        // A key without an end is written the same either way.
        let is_concatenation = true;
        for chunk in keys.chunks(KEYS) {
            let mut rest = chunk;
            while !rest.is_empty() {
                let before = found.len();
                let question = elements_message(family, GET_ELEMENTS, FLAG_ACKNOWLEDGE, table, set)
                    .with_nested(super::batch::LIST_ELEMENTS, |mut list| {
                        for key in rest {
                            list = Element::of_key(*key).write(list, is_concatenation);
                        }
                        list
                    });
                let operation = "get nftables elements";
                let asked = self
                    .netfilter
                    .socket
                    .request(operation, question, |payload| {
                        found.extend(read_elements(body(payload)));
                    });
                let answered = found.len() - before;
                match asked {
                    Ok(()) => break,
                    // The kernel stops at the first that does not exist.
                    Err(error) if error.errno() == Some(Errno::NOENT) => {
                        rest = rest.get(answered + 1..).unwrap_or(&[]);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(join_ranges(found))
    }

    fn dump<T>(
        &mut self,
        operation: &'static str,
        question: &Request,
        each: impl Fn(Read<'_>, &mut Vec<T>),
    ) -> Result<Vec<T>, NetlinkError> {
        let mut found = Vec::new();
        let dumped = self
            .netfilter
            .consistent_dump(operation, question, &mut |step| match step {
                Step::Begin => found.clear(),
                Step::Message(payload) => each(Read(body(payload)), &mut found),
            });
        match dumped {
            Err(error) if error.errno() == Some(Errno::NOENT) => Ok(Vec::new()),
            dumped => dumped.map(|()| found),
        }
    }
}

fn get(family: IpFamily, kind: u8, flags: u16) -> Request {
    let flags = FLAG_REQUEST | flags;
    request(Subsystem::Nftables, kind, flags, family_number(family))
}

/// The error in an answer, unless it confirms.
fn error_number(payload: &[u8]) -> Option<Errno> {
    let number = fixed(payload, 0).map_or(0, i32::from_ne_bytes);
    (number != 0).then(|| Errno::from_raw_os_error(number.wrapping_neg()))
}

/// The offset of the error in its message, if the kernel reports it.
fn offset(flags: u16, payload: &[u8]) -> Option<u32> {
    if flags & FLAG_DETAILS == 0 {
        return None;
    }
    let details = attributes(payload.get(ERROR_HEADER..)?);
    let mut offsets = details.filter(|detail| detail.kind == DETAIL_OFFSET);
    fixed(offsets.next()?.value, 0).map(u32::from_ne_bytes)
}
