//! Routes as providers list them.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use weft_model::SharedStr;

use crate::{Cidr, NodeAddress};

/// A route as the provider lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The range that is routed.
    pub destination: Cidr,
    /// The node that packets are sent to.
    pub target: RouteTarget,
    /// The next hop, if the provider reports it.
    pub next_hop: Option<NextHop>,
    /// The addresses of the node that the provider recorded with the route. `None` for providers
    /// that record none (upstream: `EnableNodeAddresses` unset).
    pub target_addresses: Option<Vec<NodeAddress>>,
    /// True if the target no longer exists, so that packets are dropped.
    pub blackhole: bool,
    /// The owner, as far as the provider can tell.
    pub mark: Mark,
    /// The provider's identifier of the route.
    pub id: Option<SharedStr>,
}

impl Route {
    /// A route to a node, with nothing else known about it.
    pub fn to_node(destination: Cidr, node: &str) -> Self {
        Self {
            destination,
            target: RouteTarget::Node(SharedStr::interned(node)),
            next_hop: None,
            target_addresses: None,
            blackhole: false,
            mark: Mark::None,
            id: None,
        }
    }
}

impl Route {
    /// Identity of the route in our record; `None` without a readable destination and next hop.
    pub(crate) fn key(&self) -> Option<(IpNet, NextHop)> {
        Some((self.destination.net().ok()?, self.next_hop.clone()?))
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.destination)?;
        if let Some(next_hop) = &self.next_hop {
            write!(f, " via {next_hop}")?;
        }
        if let RouteTarget::Node(node) = &self.target {
            write!(f, " (node {node})")?;
        }
        if self.blackhole {
            f.write_str(" (blackhole)")?;
        }
        Ok(())
    }
}

/// The node that a route leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RouteTarget {
    /// The node of that name; there need not be a Node object of that name.
    Node(SharedStr),
    /// Not known to the provider.
    Unknown,
}

impl RouteTarget {
    /// The node's name, if known.
    pub fn node(&self) -> Option<&SharedStr> {
        match self {
            Self::Node(name) => Some(name),
            Self::Unknown => None,
        }
    }
}

/// The next hop of a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NextHop {
    /// An address.
    Address(IpAddr),
    /// A machine, by the provider's instance ID.
    Instance(SharedStr),
}

impl NextHop {
    /// True if both are of the same kind, so that they can be compared.
    pub fn is_comparable(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => write!(f, "{ip}"),
            Self::Instance(id) => write!(f, "{id}"),
        }
    }
}

/// Ownership of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mark {
    /// Owned by this cluster: it carries our mark (protocol number, tag, name) or is in our record.
    Ours,
    /// Owned by another program, by its mark. Never touched.
    Foreign,
    /// Leads to a link of this machine and not to a gateway: made by the kernel for an address of
    /// this machine, or by a CNI plugin for a pod. Never touched. In the ranges of this machine's
    /// node it is as it should be, elsewhere it is foreign.
    Connected,
    /// Not marked, and not in our record.
    #[default]
    None,
}

impl Mark {
    /// True if the route is never touched.
    pub fn is_foreign(self) -> bool {
        matches!(self, Self::Foreign | Self::Connected)
    }
}
