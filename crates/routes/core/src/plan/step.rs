//! Steps of a plan: one create, replacement or delete each.

use std::net::IpAddr;

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr};

use crate::{Cidr, Mark, NextHop, Node, NodeAddress, Route, RouteTarget};

/// One change of the route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The change, with its reason.
    pub action: RouteAction,
}

impl Step {
    /// The range whose route changes.
    pub fn destination(&self) -> &Cidr {
        match &self.action {
            RouteAction::Create { new, .. } | RouteAction::Replace { new, .. } => &new.destination,
            RouteAction::Delete { old, .. } => &old.destination,
        }
    }

    /// The route after the step; `None` for a delete.
    pub fn wanted(&self) -> Option<&Wanted> {
        match &self.action {
            RouteAction::Create { new, .. } | RouteAction::Replace { new, .. } => Some(new),
            RouteAction::Delete { .. } => None,
        }
    }

    /// The node that gets the route; `None` for a delete.
    pub fn node(&self) -> Option<&SharedStr> {
        self.wanted().map(|wanted| &wanted.node)
    }

    /// True if the destinations overlap, so that the two must not run at the same time.
    pub fn collides(&self, other: &Self) -> bool {
        let (one, other) = (self.destination(), other.destination());
        match (one.net(), other.net()) {
            (Ok(one), Ok(other)) => overlap(&one, &other),
            _ => one == other,
        }
    }
}

/// True if two ranges share an address.
pub(crate) fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// A change of one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAction {
    /// Add a route.
    Create {
        /// The route to add.
        new: Wanted,
        /// Reason, printed with the step.
        reason: CreateReason,
    },
    /// Change the next hop of a destination. One step, so that no other mutation comes between; a
    /// provider that cannot do it in one call deletes and then creates.
    Replace {
        /// The present route, as listed.
        old: Route,
        /// The route to have afterwards.
        new: Wanted,
        /// Reason, printed with the step.
        reason: ReplaceReason,
    },
    /// Remove a route.
    Delete {
        /// The route to delete, as listed.
        old: Route,
        /// Reason, printed with the step.
        reason: DeleteReason,
    },
}

/// A route that a node needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The range to route.
    pub destination: Cidr,
    /// Name of the node that packets are sent to.
    pub node: SharedStr,
    /// UID of the node: upstream's hint for the name of the route.
    pub uid: SharedStr,
    /// The next hop. Always present by our rules; upstream's rules leave it to the provider.
    pub next_hop: Option<NextHop>,
    /// All addresses of the node.
    pub addresses: Vec<NodeAddress>,
    /// The provider's instance ID of the node.
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

    /// The address to send packets to: the next hop if it is an address, otherwise the node's
    /// internal address of the destination's family.
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

    /// Identity of the route in our record; `None` where the provider chooses the next hop.
    pub fn key(&self) -> Option<(IpNet, NextHop)> {
        self.to_route().key()
    }

    /// The route as a provider lists it after the create.
    pub fn to_route(&self) -> Route {
        Route {
            destination: self.destination.clone(),
            target: RouteTarget::Node(self.node.clone()),
            next_hop: self.next_hop.clone(),
            target_addresses: None,
            blackhole: false,
            mark: Mark::Ours,
            id: None,
        }
    }
}

/// Reason for a create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateReason {
    /// There is no route.
    Missing,
    /// Upstream's rules: there is a route with other addresses, which is deleted.
    AddressesChanged,
}

/// Reason for a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceReason {
    /// The range belongs to another node now.
    Handover,
    /// The node has another address or instance.
    NextHopChanged,
    /// The route was a blackhole.
    Blackhole,
}

/// Reason for a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteReason {
    /// Its node does not exist any more.
    NodeGone,
    /// Its node exists and does not have this range.
    CidrReleased,
    /// Its node is excluded from routes.
    NodeExcluded,
    /// The route is a blackhole.
    Blackhole,
    /// Neither provider nor next hop name a node.
    TargetUnknown,
    /// Another route for the same destination is kept.
    Duplicate,
    /// Upstream's rules: the route was created with other addresses.
    AddressesChanged,
}
