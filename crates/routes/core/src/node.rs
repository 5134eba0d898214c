use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr};

use crate::{Cidr, NextHop, Route, Target};

/// What routes need to know about a Node.
///
/// Two equal values need equal routes, so whoever watches compares them to see whether something
/// happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`.
    pub name: SharedStr,
    /// `metadata.uid`: the same name with another UID is another node.
    pub uid: SharedStr,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<Cidr>,
    /// What the node holds of pools beyond that.
    pub blocks: Blocks,
    /// `status.addresses`.
    pub addresses: Vec<NodeAddress>,
    /// `spec.providerID`.
    pub provider_id: Option<SharedStr>,
    /// Whether a label says that the node wants no routes.
    pub excluded: bool,
    /// The addresses that the provider knows for the node's instance, where it was asked. A
    /// kubelet writes its own addresses, so a compromised one could claim somebody else's.
    pub instance_addresses: Option<Vec<IpAddr>>,
    /// Its `NetworkUnavailable` condition, if it has one.
    pub network_unavailable: Option<Condition>,
    /// Further facts that the provider declared to depend on; a change of them triggers a pass.
    pub triggers: Vec<SharedStr>,
}

impl Node {
    /// The ranges whose packets are sent to the node: its pod CIDRs, and its blocks that do not lie
    /// in them.
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

    /// Whether it is certain that the node has no range.
    pub fn has_no_range(&self) -> bool {
        self.blocks != Blocks::Unknown && self.ranges().next().is_none()
    }

    /// The first internal address of a family, to which the node's packets go.
    pub fn internal_ip(&self, family: IpFamily) -> Option<IpAddr> {
        let mut internal = self.addresses.iter().filter_map(NodeAddress::internal_ip);
        internal.find(|ip| IpFamily::of(*ip) == family)
    }
}

/// What a node holds of pools of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Blocks {
    /// Nobody routes such: pod CIDRs are all there is.
    #[default]
    None,
    /// It cannot be told at the moment. What leads to the node may be one of them, and stays.
    Unknown,
    /// These, and no others.
    Known(Vec<Cidr>),
}

impl Blocks {
    /// All that a node holds. Neighbours stay apart: a wider route would have to be made anew with
    /// every block that comes or goes. What lies in another is not named twice.
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
    /// Its `type`.
    pub kind: AddressKind,
    /// Its `address`: an IP address or a name.
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

    /// The address, if it is one and an internal one.
    pub fn internal_ip(&self) -> Option<IpAddr> {
        self.ip().filter(|_| self.kind == AddressKind::InternalIp)
    }

    /// The address, if it is one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.text.parse().ok()
    }
}

/// The type of a node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressKind {
    /// `InternalIP`.
    InternalIp,
    /// `ExternalIP`.
    ExternalIp,
    /// `Hostname`, `InternalDNS` or `ExternalDNS`.
    Name,
}

/// What a node's condition says, as far as it matters whether to write it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `status`: whether the network is *un*available.
    pub status: bool,
    /// `reason`.
    pub reason: SharedStr,
}

/// The nodes of the cluster as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeList {
    /// By name.
    pub nodes: BTreeMap<SharedStr, Node>,
    /// Whether these are all. Absence proves nothing while the first list is under way, and
    /// nothing is deleted on it.
    pub complete: bool,
    /// Whether there are nodes of which nothing can be read. Their ranges look as if no node named
    /// them, so nothing is deleted meanwhile either.
    pub unreadable: bool,
}

impl NodeList {
    /// All nodes there are.
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

    /// Whether a range that no node names is certain to be unused.
    pub(crate) fn proves_absence(&self) -> bool {
        self.complete && !self.unreadable
    }

    /// Finds the nodes that routes of unknown target lead to, by next hop: a provider knows
    /// addresses and machines and not our names for them.
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
            if route.target == Target::Unknown
                && let Some(name) = route.next_hop.as_ref().and_then(|hop| holders.get(hop))
            {
                route.target = Target::Node((*name).clone());
            }
        }
    }

    /// The node of that name.
    pub fn get(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }
}
