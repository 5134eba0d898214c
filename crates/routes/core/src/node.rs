//! Nodes, reduced to the fields that routes depend on.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr};

use crate::{Cidr, Mark, NextHop, Route, RouteTarget};

/// A Node, reduced to what routes need.
///
/// Equal values need equal routes, so a watcher compares them to detect changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// From `metadata.name`.
    pub name: SharedStr,
    /// `metadata.uid`: the same name with another UID is another node.
    pub uid: SharedStr,
    /// From `spec.podCIDRs`.
    pub pod_cidrs: Vec<Cidr>,
    /// Blocks of address pools that the node holds besides its pod CIDRs.
    pub blocks: Blocks,
    /// From `status.addresses`.
    pub addresses: Vec<NodeAddress>,
    /// The provider's instance ID, from `spec.providerID`.
    pub provider_id: Option<SharedStr>,
    /// True if the node is excluded from routes, by label.
    pub excluded: bool,
    /// True if the table is that of this node's own kernel.
    pub own: bool,
    /// The addresses of the node's instance according to the provider, where it was asked. A
    /// kubelet writes its own addresses, so a compromised one could claim those of another machine.
    pub instance_addresses: Option<Vec<IpAddr>>,
    /// The `NetworkUnavailable` condition, if the node has one.
    pub network_unavailable: Option<NodeCondition>,
    /// Values of the labels in the provider's `trigger_labels`; a change triggers a pass.
    pub triggers: Vec<SharedStr>,
}

impl Node {
    /// The ranges that are routed to the node: its pod CIDRs, and its blocks outside of them.
    pub fn ranges(&self) -> impl Iterator<Item = &Cidr> {
        let own: Vec<IpNet> = self
            .pod_cidrs
            .iter()
            .filter_map(|cidr| cidr.net().ok())
            .collect();
        let beyond = move |block: &&Cidr| match block.net() {
            Ok(net) => !own.iter().any(|own| own.contains(&net)),
            Err(_) => true,
        };
        let blocks = match &self.blocks {
            Blocks::None | Blocks::Unknown => &[][..],
            Blocks::Known(blocks) => blocks,
        };
        self.pod_cidrs.iter().chain(blocks.iter().filter(beyond))
    }

    /// True if the node is known to have no range.
    pub fn has_no_range(&self) -> bool {
        self.blocks != Blocks::Unknown && self.ranges().next().is_none()
    }

    /// The first internal address of a family: the next hop of the node's routes.
    pub fn internal_ip(&self, family: IpFamily) -> Option<IpAddr> {
        let mut internal = self.addresses.iter().filter_map(NodeAddress::internal_ip);
        internal.find(|ip| IpFamily::of(*ip) == family)
    }
}

/// Blocks of address pools that a node holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Blocks {
    /// Blocks are not routed; pod CIDRs are all there is.
    #[default]
    None,
    /// Not known at the moment. A route to the node may be for one of its blocks, so it stays.
    Unknown,
    /// Exactly these blocks.
    Known(Vec<Cidr>),
}

impl Blocks {
    /// All blocks of a node, without those that lie in another. Adjacent blocks are not merged: a
    /// wider route would have to be replaced with every block that comes or goes.
    pub fn known(ranges: impl IntoIterator<Item = IpNet>) -> Self {
        let mut ranges: Vec<IpNet> = ranges.into_iter().map(|range| range.trunc()).collect();
        // A range sorts before everything that it contains.
        ranges.sort_unstable_by_key(|range| (range.network(), range.prefix_len()));
        ranges.dedup_by(|next, kept| kept.contains(&*next));
        Self::Known(ranges.into_iter().map(Cidr::from).collect())
    }
}

/// One of `status.addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeAddress {
    /// The `type` field.
    pub kind: AddressKind,
    /// The `address` field: an IP address or a name.
    pub text: SharedStr,
}

impl NodeAddress {
    /// An address of type `InternalIP`.
    pub fn internal(ip: IpAddr) -> Self {
        Self {
            kind: AddressKind::InternalIp,
            text: SharedStr::new(&ip.to_string()),
        }
    }

    /// The IP address, if the type is `InternalIP` and the text is an address.
    pub fn internal_ip(&self) -> Option<IpAddr> {
        self.ip().filter(|_| self.kind == AddressKind::InternalIp)
    }

    /// The IP address, if the text is one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.text.parse().ok()
    }
}

/// The type of a node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressKind {
    /// Type `InternalIP`.
    InternalIp,
    /// Type `ExternalIP`.
    ExternalIp,
    /// Any other type: `Hostname`, `InternalDNS` or `ExternalDNS`.
    Name,
}

/// A node condition, reduced to what decides whether to write it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// `status`: whether the network is *un*available.
    pub status: bool,
    /// The `reason` field.
    pub reason: SharedStr,
}

/// The known nodes of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeList {
    /// Nodes by name.
    pub nodes: BTreeMap<SharedStr, Node>,
    /// True if the list is complete. Until the first list was read, the absence of a node proves
    /// nothing, so nothing is deleted.
    pub complete: bool,
    /// True if there are nodes that cannot be decoded. Their ranges look unused, so nothing is
    /// deleted meanwhile either.
    pub unreadable: bool,
}

impl NodeList {
    /// A complete list.
    pub fn complete(nodes: impl IntoIterator<Item = Node>) -> Self {
        Self {
            nodes: nodes
                .into_iter()
                .map(|node| (node.name.clone(), node))
                .collect(),
            complete: true,
            unreadable: false,
        }
    }

    /// True if a range that no node names is certain to be unused.
    pub(crate) fn proves_absence(&self) -> bool {
        self.complete && !self.unreadable
    }

    /// Fills in unknown targets of routes by next hop: a provider knows addresses and machines, not
    /// node names.
    pub fn resolve(&self, routes: &mut [Route]) {
        let mut holders = HashMap::new();
        for node in self.nodes.values() {
            for ip in node.addresses.iter().filter_map(NodeAddress::internal_ip) {
                holders.entry(NextHop::Address(ip)).or_insert(&node.name);
            }
            if let Some(id) = &node.provider_id {
                let hop = NextHop::Instance(id.clone());
                holders.entry(hop).or_insert(&node.name);
            }
        }
        for route in routes {
            if route.target == RouteTarget::Unknown
                && let Some(name) = route.next_hop.as_ref().and_then(|hop| holders.get(hop))
            {
                route.target = RouteTarget::Node((*name).clone());
            }
        }
    }

    /// True if a route delivers packets to pods of the node whose kernel has the table: it comes and
    /// goes with the node's bridge or pods. While the node's blocks are unknown, any of its links may
    /// have some.
    pub(crate) fn delivers_to_own(&self, route: &Route) -> bool {
        let Ok(net) = route.destination.net() else {
            return false;
        };
        let mut own = self.nodes.values().filter(|node| node.own);
        route.mark == Mark::Connected
            && own.any(|node| {
                let mut ranges = node.ranges().filter_map(|range| range.net().ok());
                node.blocks == Blocks::Unknown || ranges.any(|range| range.contains(&net))
            })
    }

    /// The node of that name.
    pub fn get(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }
}
