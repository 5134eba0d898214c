//! Kernel routes over rtnetlink: read, write and follow.
//!
//! [`Routing`] reads and writes tables, [`Events`] follows changes. Unlike the rest of this crate
//! it is asynchronous, since a follower of events waits most of the time.
//!
//! A netlink socket belongs to the network namespace of the thread that opened it, on whichever
//! thread it is used later. So opening is not asynchronous: a caller in the right namespace opens,
//! and tasks anywhere may use the result.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use futures::StreamExt as _;
use rtnetlink::{
    Handle,
    packet_core::{
        NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REPLACE,
        NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
    },
    packet_route::{
        RouteNetlinkMessage,
        address::AddressMessage,
        link::{LinkAttribute, LinkFlags, LinkMessage},
    },
    sys::AsyncSocket as _,
};
use rustix::io::Errno;
use tokio::sync::Mutex;
use weft_model::IpFamily;

use crate::{NetlinkError, addresses::InterfaceAddress};

mod event;
mod route;

pub use event::{Change, Event, Events};
pub use route::{Deletion, Hop, KernelRoute, Reach, RouteKind};

/// The table of packets for which no rule selects another.
pub const MAIN_TABLE: u32 = 254;

/// The kernel answers at once; the limit only keeps a lost answer from blocking a task forever.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of dumps before a list that keeps changing is an error.
const TRIES: u32 = 5;
/// Wait for the rest of an abandoned dump.
const REST: Duration = Duration::from_millis(20);

/// An rtnetlink connection of one network namespace. Clones share it.
#[derive(Clone, Debug)]
pub struct Routing {
    handle: Handle,
    port: u32,
    /// The kernel runs one dump per socket at a time and refuses a second one.
    dumping: Arc<Mutex<()>>,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link {
    /// Interface index.
    pub interface: u32,
    /// Interface name.
    pub name: String,
    /// Administratively up.
    pub up: bool,
}

/// Mode of writing a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Fails with `EEXIST` if a route with the same table, destination, type of service and metric
    /// exists.
    Add,
    /// Replaces the route with the same key atomically, *also one that another program created*.
    Replace,
}

impl Routing {
    /// Connects to the calling thread's network namespace. Answers are received by a task of the
    /// current tokio runtime.
    pub fn open() -> Result<Self, NetlinkError> {
        let (mut connection, handle, _unsolicited) =
            rtnetlink::new_connection().map_err(opening)?;
        // Without acknowledgements the end of an answer looks like the end of the connection.
        connection.set_forward_ack(true);
        connection.set_forward_done(true);
        let socket = connection.socket_mut().socket_mut();
        let port = socket.bind_auto().map_err(opening)?.port_number();
        // Lets the kernel filter dumps. An older kernel without this option sends everything, and
        // the results are filtered here.
        let _ = socket.set_netlink_get_strict_chk(true);
        tokio::spawn(connection);
        Ok(Self {
            handle,
            port,
            dumping: Arc::default(),
        })
    }

    /// The netlink port ID of this connection: events of changes made through it carry it.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Every route of a family in a table, without cached ones.
    pub async fn routes(
        &self,
        family: IpFamily,
        table: u32,
    ) -> Result<Vec<KernelRoute>, NetlinkError> {
        let question = || RouteNetlinkMessage::GetRoute(route::of_table(family, table));
        let read = |message| match message {
            RouteNetlinkMessage::NewRoute(message) => KernelRoute::parse(&message),
            _ => None,
        };
        let mut found = match self.dump("list routes", question, read).await {
            // A table that never had a route does not exist.
            Err(error) if error.errno() == Some(Errno::NOENT) => Vec::new(),
            other => other?,
        };
        found.retain(|route| route.table == table && route.family() == family);
        Ok(found)
    }

    /// Writes a route.
    pub async fn write(&self, route: &KernelRoute, how: Write) -> Result<(), NetlinkError> {
        let flags = match how {
            Write::Add => NLM_F_CREATE | NLM_F_EXCL,
            Write::Replace => NLM_F_CREATE | NLM_F_REPLACE,
        };
        let message = RouteNetlinkMessage::NewRoute(route.to_message());
        self.request("write a route", message, NLM_F_ACK | flags, |_| ())
            .await
    }

    /// Deletes a route. Fails with `ESRCH` if there is none.
    pub async fn delete(&self, deletion: &Deletion) -> Result<(), NetlinkError> {
        let message = RouteNetlinkMessage::DelRoute(deletion.to_message());
        self.request("delete a route", message, NLM_F_ACK, |_| ())
            .await
    }

    /// Looks up the route that a packet to an address would take.
    pub async fn reach(&self, address: IpAddr) -> Result<Reach, NetlinkError> {
        const OPERATION: &str = "look up a route";
        let question = RouteNetlinkMessage::GetRoute(route::to_address(address));
        let mut found = None;
        let answered = self.request(OPERATION, question, NLM_F_ACK, |message| {
            if let RouteNetlinkMessage::NewRoute(message) = message {
                found = Reach::parse(&message);
            }
        });
        answered.await?;
        found.ok_or_else(|| NetlinkError::incomplete(OPERATION))
    }

    /// The addresses of all interfaces, both families, loopback included.
    pub async fn addresses(&self) -> Result<Vec<InterfaceAddress>, NetlinkError> {
        let question = || RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let read = |message| match message {
            RouteNetlinkMessage::NewAddress(message) => event::address(&message),
            _ => None,
        };
        self.dump("list addresses", question, read).await
    }

    /// All network devices.
    pub async fn links(&self) -> Result<Vec<Link>, NetlinkError> {
        let question = || RouteNetlinkMessage::GetLink(LinkMessage::default());
        let read = |message| match message {
            RouteNetlinkMessage::NewLink(message) => link(message),
            _ => None,
        };
        self.dump("list links", question, read).await
    }

    /// Repeats a dump until one is consistent.
    async fn dump<T>(
        &self,
        operation: &'static str,
        question: impl Fn() -> RouteNetlinkMessage,
        read: impl Fn(RouteNetlinkMessage) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let _turn = self.dumping.lock().await;
        let mut tries = 0;
        loop {
            let mut found = Vec::new();
            let collect = |message| found.extend(read(message));
            let outcome = self
                .request(operation, question(), NLM_F_DUMP, collect)
                .await;
            tries += 1;
            match outcome {
                Err(error) if error.errno() == Some(Errno::INTR) && tries < TRIES => {}
                // An abandoned dump is still being received.
                Err(error) if error.errno() == Some(Errno::BUSY) && tries < TRIES => {
                    tokio::time::sleep(REST).await;
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(found),
            }
        }
    }

    async fn request(
        &self,
        operation: &'static str,
        message: RouteNetlinkMessage,
        flags: u16,
        each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<(), NetlinkError> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        let answered = tokio::time::timeout(PATIENCE, self.exchange(request, each)).await;
        answered
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|source| NetlinkError { operation, source })
    }

    /// Passes the parts of an answer to `each` until it is complete. A dump that the kernel marks
    /// inconsistent ends with `EINTR`, after all of it was read.
    async fn exchange(
        &self,
        request: NetlinkMessage<RouteNetlinkMessage>,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        let mut handle = self.handle.clone();
        let mut answer = handle.request(request).map_err(|_| closed())?;
        let mut interrupted = false;
        while let Some(part) = answer.next().await {
            interrupted |= part.header.flags & NLM_F_DUMP_INTR != 0;
            match part.payload {
                NetlinkPayload::InnerMessage(message) => each(message),
                NetlinkPayload::Error(error) => {
                    return error.code.map_or(Ok(()), |_| Err(error.to_io()));
                }
                NetlinkPayload::Done(done) if done.code < 0 => {
                    return Err(io::Error::from_raw_os_error(-done.code));
                }
                NetlinkPayload::Done(_) if interrupted => return Err(Errno::INTR.into()),
                NetlinkPayload::Done(_) => return Ok(()),
                _ => {}
            }
        }
        Err(closed())
    }
}

fn opening(source: io::Error) -> NetlinkError {
    NetlinkError {
        operation: "open a socket",
        source,
    }
}

fn link(message: LinkMessage) -> Option<Link> {
    let name = message.attributes.into_iter().find_map(|attribute| {
        let LinkAttribute::IfName(name) = attribute else {
            return None;
        };
        Some(name)
    })?;
    Some(Link {
        interface: message.header.index,
        name,
        up: message.header.flags.contains(LinkFlags::Up),
    })
}
