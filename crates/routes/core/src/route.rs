use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use weft_model::SharedStr;

use crate::{Cidr, NodeAddress};

/// A route as the provider lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where packets are going to.
    pub destination: Cidr,
    /// Which node they are sent to.
    pub target: Target,
    /// How they are sent there, if the provider says.
    pub next_hop: Option<NextHop>,
    /// The addresses of the node that the provider recorded with the route. `None` for providers
    /// that record none (upstream: `EnableNodeAddresses` unset).
    pub target_addresses: Option<Vec<NodeAddress>>,
    /// Whether the target is gone and packets are dropped.
    pub blackhole: bool,
    /// Whose it is, as far as the provider can tell.
    pub mark: Mark,
    /// The provider's own name for it.
    pub id: Option<SharedStr>,
}

impl Route {
    /// A route to a node, with nothing else known about it.
    pub fn to_node(destination: Cidr, node: &str) -> Self {
        Self {
            destination,
            target: Target::Node(SharedStr::interned(node)),
            next_hop: None,
            target_addresses: None,
            blackhole: false,
            mark: Mark::None,
            id: None,
        }
    }
}

impl Route {
    /// What tells it from others, if it can be read.
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
        if let Target::Node(node) = &self.target {
            write!(f, " (node {node})")?;
        }
        if self.blackhole {
            f.write_str(" (blackhole)")?;
        }
        Ok(())
    }
}

/// Which node a route leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// The node of that name; there need not be a Node object of that name.
    Node(SharedStr),
    /// The provider cannot tell.
    Unknown,
}

impl Target {
    /// The node's name, if known.
    pub fn node(&self) -> Option<&SharedStr> {
        match self {
            Self::Node(name) => Some(name),
            Self::Unknown => None,
        }
    }
}

/// What a provider sends packets to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NextHop {
    /// An address.
    Address(IpAddr),
    /// A machine, by the provider's identifier.
    Instance(SharedStr),
}

impl NextHop {
    /// Whether both are of the same kind, so that a difference means something.
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

/// Whose a route is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mark {
    /// Ours: it carries our mark (protocol number, tag, name), or we remember making it.
    Ours,
    /// Somebody else's, by a mark of theirs. Never touched.
    Foreign,
    /// The provider's routes carry no marks, and we have no memory of this one.
    #[default]
    None,
}
