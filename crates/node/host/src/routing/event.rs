//! Events of links, addresses and routes.

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

/// Follows changes of links, addresses and routes of one network namespace.
///
/// Not every change has an event: when a link goes down its IPv4 routes vanish without one.
/// Followers of routes therefore list them again when a link or an address changed.
#[derive(Debug)]
pub struct Events {
    messages: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
}

/// A change and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The change.
    pub change: Change,
    /// The [`port`](super::Routing::port) of the connection that requested it; 0 for the kernel
    /// itself.
    pub port: u32,
}

/// A change of a link, an address or a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A link was added or changed.
    Link {
        /// Interface index.
        interface: u32,
        /// The link is up and has a carrier.
        up: bool,
    },
    /// A link was removed.
    LinkGone {
        /// Former interface index.
        interface: u32,
    },
    /// An address was added, removed or changed.
    Address(InterfaceAddress),
    /// A route was added or replaced.
    RouteWritten(KernelRoute),
    /// A route was deleted.
    RouteDeleted(KernelRoute),
    /// Events were lost because they came faster than they were read.
    Lost,
}

impl Events {
    /// Follows the calling thread's network namespace from now on. Events are received by a task of
    /// the current tokio runtime.
    pub fn open() -> Result<Self, NetlinkError> {
        let (connection, _, messages) =
            rtnetlink::new_multicast_connection(&GROUPS).map_err(opening)?;
        tokio::spawn(connection);
        Ok(Self { messages })
    }

    /// Waits for the next event; `None` if the connection broke. Cancel-safe.
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
        // A bridge sends the same message when a link merely leaves it.
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
