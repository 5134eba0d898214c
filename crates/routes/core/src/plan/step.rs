use std::net::IpAddr;

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr};

use crate::{Cidr, Mark, NextHop, Node, NodeAddress, Route, Target};

/// One mutation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What to do.
    pub action: Action,
}

impl Step {
    /// The destination it is about.
    pub fn destination(&self) -> &Cidr {
        match &self.action {
            Action::Create { new, .. } | Action::Replace { new, .. } => &new.destination,
            Action::Delete { old, .. } => &old.destination,
        }
    }

    /// The route that shall be there afterwards.
    pub fn wanted(&self) -> Option<&Wanted> {
        match &self.action {
            Action::Create { new, .. } | Action::Replace { new, .. } => Some(new),
            Action::Delete { .. } => None,
        }
    }

    /// The node that gets the route.
    pub fn node(&self) -> Option<&SharedStr> {
        self.wanted().map(|wanted| &wanted.node)
    }

    /// Whether the two must not run at the same time.
    pub fn collides(&self, other: &Self) -> bool {
        let (one, other) = (self.destination(), other.destination());
        match (one.net(), other.net()) {
            (Ok(one), Ok(other)) => overlap(&one, &other),
            _ => one == other,
        }
    }
}

/// Whether two ranges share an address.
pub(crate) fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Add a route.
    Create {
        /// The route.
        new: Wanted,
        /// Why.
        reason: CreateReason,
    },
    /// Lead a destination somewhere else. One step, so that nothing comes between; a provider
    /// that cannot do it in one call deletes and adds in this order.
    Replace {
        /// The route there is.
        old: Route,
        /// The route there shall be.
        new: Wanted,
        /// Why.
        reason: ReplaceReason,
    },
    /// Remove a route.
    Delete {
        /// The route, as listed.
        old: Route,
        /// Why.
        reason: DeleteReason,
    },
}

/// A route that shall be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Where packets are going to.
    pub destination: Cidr,
    /// The node they are sent to.
    pub node: SharedStr,
    /// Its UID: upstream's hint for the name of the route.
    pub uid: SharedStr,
    /// How they are sent there. Always present by our rules; upstream leaves it to the provider.
    pub next_hop: Option<NextHop>,
    /// All addresses of the node.
    pub addresses: Vec<NodeAddress>,
    /// The provider's name of the machine.
    pub provider_id: Option<SharedStr>,
}

impl Wanted {
    pub(crate) fn new(node: &Node, destination: Cidr, next_hop: Option<NextHop>) -> Self {
        Self {
            destination,
            node: node.name.clone(),
            uid: node.uid.clone(),
            next_hop,
            addresses: node.addresses.clone(),
            provider_id: node.provider_id.clone(),
        }
    }

    /// The address to send packets to: the next hop if it is one, otherwise the node's internal
    /// address of the destination's family.
    pub fn address(&self) -> Option<IpAddr> {
        if let Some(NextHop::Address(address)) = self.next_hop {
            return Some(address);
        }
        let family = self.destination.family();
        let internal = self.addresses.iter().filter_map(NodeAddress::internal_ip);
        internal
            .into_iter()
            .find(|ip| Some(IpFamily::of(*ip)) == family)
    }

    /// What will tell the route from others; `None` where the provider chooses the next hop.
    pub fn key(&self) -> Option<(IpNet, NextHop)> {
        self.to_route().key()
    }

    /// The route that a provider lists after it was made.
    pub fn to_route(&self) -> Route {
        Route {
            destination: self.destination.clone(),
            target: Target::Node(self.node.clone()),
            next_hop: self.next_hop.clone(),
            target_addresses: None,
            blackhole: false,
            mark: Mark::Ours,
            id: None,
        }
    }
}

/// Why a route is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateReason {
    /// There is none.
    Missing,
    /// Upstream: there was one with other addresses, which is deleted.
    AddressesChanged,
}

/// Why a route is led somewhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceReason {
    /// The range belongs to another node now.
    Handover,
    /// The node has another address or instance.
    NextHopChanged,
    /// The route led nowhere.
    Blackhole,
}

/// Why a route is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteReason {
    /// Its node is not there any more.
    NodeGone,
    /// Its node is there and does not have this range.
    CidrReleased,
    /// Its node wants no routes.
    NodeExcluded,
    /// It leads nowhere.
    Blackhole,
    /// Nobody knows where it leads.
    TargetUnknown,
    /// There is a better one for the same destination.
    Duplicate,
    /// Upstream: it was made with other addresses.
    AddressesChanged,
}
