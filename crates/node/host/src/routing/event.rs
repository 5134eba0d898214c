use std::net::IpAddr;

use futures::{StreamExt as _, channel::mpsc::UnboundedReceiver};
use rtnetlink::{
    MulticastGroup,
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        address::{AddressAttribute, AddressMessage},
        link::{LinkFlags, LinkMessage},
    },
    sys::SocketAddr,
};

use super::{KernelRoute, opening};
use crate::{NetlinkError, addresses::InterfaceAddress};

const GROUPS: [MulticastGroup; 5] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];

/// What happens to links, addresses and routes of one network namespace.
///
/// Not everything does: when a link goes down its IPv4 routes vanish and no event says so. Whoever
/// cares about routes reads them again when a link or an address changed.
#[derive(Debug)]
pub struct Events {
    messages: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
}

/// Something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub change: Change,
    /// The [`port`](super::Routing::port) of the connection that asked for it; 0 if the kernel did
    /// it by itself.
    pub port: u32,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A link is there, or changed in some way.
    Link {
        /// The number of its interface.
        interface: u32,
        /// Whether packets can pass: it is switched on, and so is its other end.
        up: bool,
    },
    /// A link is gone.
    LinkGone {
        /// The number that its interface had.
        interface: u32,
    },
    /// An address came, went or changed.
    Address(InterfaceAddress),
    /// A route was added, or put in the place of another.
    RouteWritten(KernelRoute),
    /// A route was deleted.
    RouteDeleted(KernelRoute),
    /// Events came faster than they were read, and some are lost.
    Lost,
}

impl Events {
    /// Follows what happens in the calling thread's network namespace, from now on. Events are
    /// received by a task of the tokio runtime in whose context this is called.
    pub fn open() -> Result<Self, NetlinkError> {
        let (connection, _, messages) =
            rtnetlink::new_multicast_connection(&GROUPS).map_err(opening)?;
        tokio::spawn(connection);
        Ok(Self { messages })
    }

    /// Waits for the next event; `None` if the connection broke. Nothing is lost by giving up
    /// waiting.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let (message, _) = self.messages.next().await?;
            let port = message.header.port_number;
            if let Some(change) = parse(message.payload) {
                return Some(Event { change, port });
            }
        }
    }
}

fn parse(payload: NetlinkPayload<RouteNetlinkMessage>) -> Option<Change> {
    let message = match payload {
        NetlinkPayload::InnerMessage(message) => message,
        NetlinkPayload::Overrun(_) => return Some(Change::Lost),
        _ => return None,
    };
    match message {
        RouteNetlinkMessage::NewLink(message) => Some(Change::Link {
            interface: message.header.index,
            up: passes(&message),
        }),
        // A bridge says the same when a link merely leaves it.
        RouteNetlinkMessage::DelLink(message) => {
            let gone = message.header.interface_family == AddressFamily::Unspec;
            let interface = message.header.index;
            gone.then_some(Change::LinkGone { interface })
        }
        RouteNetlinkMessage::NewAddress(message) | RouteNetlinkMessage::DelAddress(message) => {
            address(&message).map(Change::Address)
        }
        RouteNetlinkMessage::NewRoute(message) => {
            KernelRoute::parse(&message).map(Change::RouteWritten)
        }
        RouteNetlinkMessage::DelRoute(message) => {
            KernelRoute::parse(&message).map(Change::RouteDeleted)
        }
        _ => None,
    }
}

fn passes(message: &LinkMessage) -> bool {
    let needed = LinkFlags::Up | LinkFlags::LowerUp;
    message.header.flags.contains(needed)
}

/// Our own address, where a message names that of the far end as well.
pub(super) fn address(message: &AddressMessage) -> Option<InterfaceAddress> {
    let attributes = || message.attributes.iter();
    let local = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    };
    let far = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    };
    let address: IpAddr = attributes()
        .find_map(local)
        .or_else(|| attributes().find_map(far))?;
    Some(InterfaceAddress {
        address,
        prefix_length: message.header.prefix_len,
        interface: message.header.index,
    })
}
