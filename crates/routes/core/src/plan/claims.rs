//! Assignment of ranges to nodes, with bad input refused.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr};

use super::{Refusal, RefusalReason, Wanted};
use crate::{Cidr, NextHop, NextHopKind, Node, NodeList, Policy, Route};

/// The ranges that nodes claim, granted or refused.
#[derive(Default)]
pub(super) struct Claims {
    /// The routes to have; no two of them overlap.
    pub(super) wanted: BTreeMap<IpNet, Wanted>,
    /// The claims that were refused, with reasons.
    pub(super) refusals: Vec<Refusal>,
    /// Every readable range that a node names, granted or not: routes there are not deleted just
    /// because the node cannot be routed to right now.
    pub(super) named: BTreeSet<IpNet>,
}

/// A valid claim of a node, before it is compared with the claims of other nodes.
struct Claim<'a> {
    net: IpNet,
    node: &'a Node,
    cidr: &'a Cidr,
    next_hop: NextHop,
}

impl Claims {
    pub(super) fn of(nodes: &NodeList, routes: &[Route], policy: &Policy) -> Self {
        let mut claims = Self::default();
        let mut asked = Vec::new();
        for node in nodes.nodes.values().filter(|node| !node.excluded) {
            if node.has_no_range() {
                claims.refuse(node, None, RefusalReason::NoPodCidr);
            }
            for cidr in node.ranges() {
                if let Ok(net) = cidr.net() {
                    // A block outside of the cluster's ranges is not ours to route, and no reason
                    // to refuse.
                    if !policy.covers(&net) && !node.pod_cidrs.contains(cidr) {
                        continue;
                    }
                    claims.named.insert(net);
                }
                match check(node, cidr, policy) {
                    Ok((net, next_hop)) => asked.push(Claim {
                        net,
                        node,
                        cidr,
                        next_hop,
                    }),
                    Err(reason) => claims.refuse(node, Some(cidr), reason),
                }
            }
        }
        claims.grant(asked, &Holders::of(routes));
        claims
    }

    fn refuse(&mut self, node: &Node, cidr: Option<&Cidr>, reason: RefusalReason) {
        self.refusals.push(Refusal {
            node: node.name.clone(),
            cidr: cidr.cloned(),
            reason,
        });
    }

    /// Grants ranges to the nodes that are routed to already, then to the rest by name. Of two
    /// nodes with one range at least one is wrong, and which one cannot be known here: the node
    /// that packets reach today stays.
    fn grant(&mut self, mut asked: Vec<Claim<'_>>, holders: &Holders<'_>) {
        asked.sort_by_cached_key(|claim| {
            (!holders.holds(claim), claim.node.name.clone(), claim.net)
        });
        for claim in asked {
            match self.rival(&claim.net) {
                None => {
                    let destination = Cidr::from(claim.net);
                    let wanted = Wanted::new(claim.node, destination, Some(claim.next_hop));
                    self.wanted.insert(claim.net, wanted);
                }
                // The same range twice on one node is one route, and harmless.
                Some((net, rival)) if net == claim.net && rival == claim.node.name => {}
                Some((net, rival)) if net == claim.net => {
                    self.refuse(
                        claim.node,
                        Some(claim.cidr),
                        RefusalReason::Duplicate(rival),
                    );
                }
                Some((net, node)) => {
                    let reason = RefusalReason::Overlaps { node, net };
                    self.refuse(claim.node, Some(claim.cidr), reason);
                }
            }
        }
    }

    /// The granted range that overlaps this one, and its node. Granted ranges do not overlap, so
    /// only the neighbours in order can: the last that begins before, and the first after.
    fn rival(&self, net: &IpNet) -> Option<(IpNet, SharedStr)> {
        let before = self.wanted.range(..=net).next_back();
        let after = self.wanted.range(net..).next();
        let mut near = [before, after].into_iter().flatten();
        near.find(|(other, _)| super::step::overlap(net, other))
            .map(|(other, wanted)| (*other, wanted.node.clone()))
    }
}

/// The routes that work today, by destination.
struct Holders<'a>(HashMap<IpNet, Vec<&'a Route>>);

impl<'a> Holders<'a> {
    fn of(routes: &'a [Route]) -> Self {
        let mut holders: HashMap<IpNet, Vec<&Route>> = HashMap::new();
        for route in routes {
            if let Ok(net) = route.destination.net()
                && !route.mark.is_foreign()
                && !route.blackhole
            {
                holders.entry(net).or_default().push(route);
            }
        }
        Self(holders)
    }

    fn holds(&self, claim: &Claim<'_>) -> bool {
        self.0.get(&claim.net).is_some_and(|routes| {
            routes
                .iter()
                .any(|route| leads_to(route, &claim.node.name, &claim.next_hop))
        })
    }
}

/// True if a route leads to the node. The next hop decides where the provider reports it: the
/// provider's name of a machine need not be the node's.
pub(super) fn leads_to(route: &Route, node: &str, next_hop: &NextHop) -> bool {
    match &route.next_hop {
        Some(present) if present.is_comparable(next_hop) => present == next_hop,
        _ => route.target.node().is_some_and(|name| **name == *node) && records(route, next_hop),
    }
}

/// True if the addresses that the provider recorded with the route, if any, include the next hop.
fn records(route: &Route, next_hop: &NextHop) -> bool {
    match (&route.target_addresses, next_hop) {
        (Some(recorded), NextHop::Address(ip)) => {
            recorded.iter().any(|address| address.ip() == Some(*ip))
        }
        _ => true,
    }
}

fn check(node: &Node, cidr: &Cidr, policy: &Policy) -> Result<(IpNet, NextHop), RefusalReason> {
    let net = cidr.net().map_err(|_| RefusalReason::Malformed)?;
    let family = IpFamily::of(net.network());
    if net.prefix_len() == 0 {
        return Err(RefusalReason::DefaultRoute);
    }
    if !policy.covers(&net) {
        return Err(RefusalReason::OutOfRange);
    }
    if !policy.families.contains(&family) {
        return Err(RefusalReason::FamilyNotRouted(family));
    }
    if policy.needs_machine && node.provider_id.is_none() {
        return Err(RefusalReason::NoProviderId);
    }
    let address = node.internal_ip(family);
    if let Some(address) = address {
        check_address(node, &net, address)?;
    }
    match policy.next_hop {
        NextHopKind::Address => {
            let address = address.ok_or(RefusalReason::NoAddress(family))?;
            Ok((net, NextHop::Address(address)))
        }
        NextHopKind::Instance => {
            let id = node.provider_id.clone().filter(|id| !id.is_empty());
            let id = id.ok_or(RefusalReason::NoProviderId)?;
            Ok((net, NextHop::Instance(id)))
        }
    }
}

fn check_address(node: &Node, net: &IpNet, address: IpAddr) -> Result<(), RefusalReason> {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() || broadcast {
        return Err(RefusalReason::BadNextHop(address));
    }
    if net.contains(&address) {
        return Err(RefusalReason::NextHopInside(address));
    }
    match &node.instance_addresses {
        Some(known) if !known.contains(&address) => {
            Err(RefusalReason::AddressNotOfInstance(address))
        }
        _ => Ok(()),
    }
}
