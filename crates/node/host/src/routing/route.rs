//! Kernel routes, parsed from and rendered to rtnetlink messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::packet_route::{
    AddressFamily,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHop, RouteNextHopFlags,
        RouteScope, RouteType, RouteVia,
    },
};
use weft_model::IpFamily;

/// A route of one of the kernel's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Destination prefix.
    pub destination: IpNet,
    /// Routing table.
    pub table: u32,
    /// Origin of the route, a number of `/etc/iproute2/rt_protos`.
    pub protocol: u8,
    /// Priority: of several routes to one destination the lowest metric wins.
    pub metric: u32,
    /// Routes only packets with this type of service; 0 for all.
    pub type_of_service: u8,
    /// Treatment of the packets.
    pub kind: RouteKind,
    /// Next hops. Several share the load by flow; a route that drops has none.
    pub hops: Vec<Hop>,
}

/// Treatment of packets that match a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// Sent to a next hop.
    Unicast,
    /// Delivered to this machine.
    Local,
    /// Dropped silently.
    Blackhole,
    /// Dropped; the sender gets ICMP destination unreachable.
    Unreachable,
    /// Dropped; the sender gets ICMP administratively prohibited.
    Prohibit,
    /// Any other type.
    Other(u8),
}

/// A next hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Address of the gateway; `None` if the destination itself is on the link.
    pub gateway: Option<IpAddr>,
    /// Index of the outgoing interface.
    pub interface: Option<u32>,
    /// Treat the gateway as on the link, also without a matching address there.
    pub on_link: bool,
}

/// The key of routes to delete. The kernel compares only the given fields: an omitted one matches
/// everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Destination prefix.
    pub destination: IpNet,
    /// Routing table.
    pub table: u32,
    /// Origin of the route.
    pub protocol: u8,
    /// Metric; 0 matches every metric.
    pub metric: u32,
    /// Gateway, if it is to be compared.
    pub gateway: Option<IpAddr>,
}

/// Result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// An address of this machine.
    Local,
    /// On the link of that interface.
    Direct(u32),
    /// Behind that gateway.
    Through(IpAddr),
}

impl KernelRoute {
    /// Family of the destination.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.destination.addr())
    }

    /// A route, unless it is a cached clone of another.
    pub(super) fn parse(message: &RouteMessage) -> Option<Self> {
        if message.header.flags.contains(RouteFlags::Cloned) {
            return None;
        }
        let unspecified: IpAddr = match message.header.address_family {
            AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
            AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return None,
        };
        let mut destination = unspecified;
        // The byte in the header is too small for most table numbers.
        let mut table = u32::from(message.header.table);
        let mut metric = 0;
        let mut several = Vec::new();
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(value) => destination = address(value)?,
                RouteAttribute::Table(value) => table = *value,
                RouteAttribute::Priority(value) => metric = *value,
                RouteAttribute::MultiPath(hops) => several.extend(hops.iter().map(hop)),
                _ => {}
            }
        }
        let kind = RouteKind::from(message.header.kind);
        if several.is_empty() && !kind.drops() {
            let on_link = message.header.flags.contains(RouteFlags::Onlink);
            several.push(hop_of(&message.attributes, None, on_link));
        }
        let length = message.header.destination_prefix_length;
        Some(Self {
            destination: IpNet::new(destination, length).ok()?,
            table,
            protocol: message.header.protocol.into(),
            metric,
            type_of_service: message.header.tos,
            kind,
            hops: several,
        })
    }

    pub(super) fn to_message(&self) -> RouteMessage {
        let mut message = base(self.destination, self.table, self.protocol, self.metric);
        message.header.kind = self.kind.into();
        message.header.tos = self.type_of_service;
        if let [hop] = self.hops[..] {
            message.attributes.extend(gateway(hop.gateway));
            let interface = hop.interface.map(RouteAttribute::Oif);
            message.attributes.extend(interface);
            message.header.flags.set(RouteFlags::Onlink, hop.on_link);
        } else if !self.hops.is_empty() {
            let hops = self.hops.iter().map(next_hop).collect();
            message.attributes.push(RouteAttribute::MultiPath(hops));
        }
        message
    }
}

impl Deletion {
    pub(super) fn to_message(self) -> RouteMessage {
        let mut message = base(self.destination, self.table, self.protocol, self.metric);
        // Matches every scope; the unspecified type matches every type.
        message.header.scope = RouteScope::NoWhere;
        message.attributes.extend(gateway(self.gateway));
        message
    }
}

impl Reach {
    pub(super) fn parse(message: &RouteMessage) -> Option<Self> {
        if message.header.kind == RouteType::Local {
            return Some(Self::Local);
        }
        let on_link = message.header.flags.contains(RouteFlags::Onlink);
        let hop = hop_of(&message.attributes, None, on_link);
        match hop.gateway {
            Some(gateway) => Some(Self::Through(gateway)),
            None => hop.interface.map(Self::Direct),
        }
    }
}

impl RouteKind {
    /// Returns whether packets are dropped.
    pub fn drops(self) -> bool {
        matches!(self, Self::Blackhole | Self::Unreachable | Self::Prohibit)
    }
}

impl From<RouteType> for RouteKind {
    fn from(kind: RouteType) -> Self {
        match kind {
            RouteType::Unicast => Self::Unicast,
            RouteType::Local => Self::Local,
            RouteType::BlackHole => Self::Blackhole,
            RouteType::Unreachable => Self::Unreachable,
            RouteType::Prohibit => Self::Prohibit,
            other => Self::Other(other.into()),
        }
    }
}

impl From<RouteKind> for RouteType {
    fn from(kind: RouteKind) -> Self {
        match kind {
            RouteKind::Unicast => Self::Unicast,
            RouteKind::Local => Self::Local,
            RouteKind::Blackhole => Self::BlackHole,
            RouteKind::Unreachable => Self::Unreachable,
            RouteKind::Prohibit => Self::Prohibit,
            RouteKind::Other(number) => Self::from(number),
        }
    }
}

/// Request for all routes of a table.
pub(super) fn of_table(family: IpFamily, table: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family_of(family);
    message.attributes.push(RouteAttribute::Table(table));
    message
}

/// Request for the route to an address.
pub(super) fn to_address(address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    let net = IpNet::from(address);
    message.header.address_family = family_of(IpFamily::of(address));
    message.header.destination_prefix_length = net.prefix_len();
    let destination = RouteAttribute::Destination(address.into());
    message.attributes.push(destination);
    message
}

fn base(destination: IpNet, table: u32, protocol: u8, metric: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    let header = &mut message.header;
    header.address_family = family_of(IpFamily::of(destination.addr()));
    header.destination_prefix_length = destination.prefix_len();
    header.protocol = protocol.into();
    message.attributes = vec![
        RouteAttribute::Destination(destination.network().into()),
        RouteAttribute::Table(table),
        RouteAttribute::Priority(metric),
    ];
    message
}

fn family_of(family: IpFamily) -> AddressFamily {
    match family {
        IpFamily::V4 => AddressFamily::Inet,
        IpFamily::V6 => AddressFamily::Inet6,
    }
}

fn gateway(gateway: Option<IpAddr>) -> Option<RouteAttribute> {
    gateway.map(|gateway| RouteAttribute::Gateway(gateway.into()))
}

fn next_hop(hop: &Hop) -> RouteNextHop {
    let mut next = RouteNextHop::default();
    next.interface_index = hop.interface.unwrap_or_default();
    next.flags.set(RouteNextHopFlags::Onlink, hop.on_link);
    next.attributes.extend(gateway(hop.gateway));
    next
}

fn hop(next: &RouteNextHop) -> Hop {
    let on_link = next.flags.contains(RouteNextHopFlags::Onlink);
    hop_of(&next.attributes, Some(next.interface_index), on_link)
}

fn hop_of(attributes: &[RouteAttribute], interface: Option<u32>, on_link: bool) -> Hop {
    let mut hop = Hop {
        gateway: None,
        interface,
        on_link,
    };
    for attribute in attributes {
        match attribute {
            RouteAttribute::Gateway(value) => hop.gateway = address(value),
            RouteAttribute::Via(RouteVia::Inet(value)) => hop.gateway = Some((*value).into()),
            RouteAttribute::Via(RouteVia::Inet6(value)) => hop.gateway = Some((*value).into()),
            RouteAttribute::Oif(value) => hop.interface = Some(*value),
            _ => {}
        }
    }
    hop
}

fn address(value: &RouteAddress) -> Option<IpAddr> {
    match value {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(destination: &str, gateway: &str) -> KernelRoute {
        KernelRoute {
            destination: destination.parse().unwrap(),
            table: 1000,
            protocol: 201,
            metric: 7,
            type_of_service: 0,
            kind: RouteKind::Unicast,
            hops: vec![Hop {
                gateway: Some(gateway.parse().unwrap()),
                interface: Some(3),
                on_link: true,
            }],
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for mut route in [
            route("10.244.1.0/24", "10.0.0.1"),
            route("fd00:1::/64", "fd00::1"),
        ] {
            assert_eq!(KernelRoute::parse(&route.to_message()), Some(route.clone()));
            route.hops.push(Hop {
                interface: Some(4),
                ..Hop::default()
            });
            assert_eq!(KernelRoute::parse(&route.to_message()), Some(route.clone()));
            route.hops.clear();
            route.kind = RouteKind::Unreachable;
            assert_eq!(KernelRoute::parse(&route.to_message()), Some(route));
        }
    }

    #[test]
    fn the_attribute_wins_over_the_byte_that_is_too_small_for_a_table() {
        let mut message = route("10.244.1.0/24", "10.0.0.1").to_message();
        message.header.table = 252;
        assert_eq!(KernelRoute::parse(&message).unwrap().table, 1000);
        message
            .attributes
            .retain(|attribute| !matches!(attribute, RouteAttribute::Table(_)));
        assert_eq!(KernelRoute::parse(&message).unwrap().table, 252);
    }

    #[test]
    fn routes_that_the_kernel_made_up_and_other_families_are_left_out() {
        let mut cached = route("10.244.1.0/24", "10.0.0.1").to_message();
        cached.header.flags.insert(RouteFlags::Cloned);
        assert_eq!(KernelRoute::parse(&cached), None);
        let mut labels = route("10.244.1.0/24", "10.0.0.1").to_message();
        labels.header.address_family = AddressFamily::Mpls;
        assert_eq!(KernelRoute::parse(&labels), None);
    }

    #[test]
    fn a_default_route_has_no_destination_attribute() {
        let mut message = route("0.0.0.0/0", "10.0.0.1").to_message();
        message
            .attributes
            .retain(|attribute| !matches!(attribute, RouteAttribute::Destination(_)));
        let parsed = KernelRoute::parse(&message).unwrap();
        assert_eq!(parsed.destination, "0.0.0.0/0".parse().unwrap());
    }
}
