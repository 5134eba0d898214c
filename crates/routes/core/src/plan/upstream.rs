//! Planning rules of cloud-provider 1.36's `reconcile`, used with the feature gate off.
//!
//! Kept as they are, odd corners included, because operators who turn the gate off expect
//! upstream's behaviour: texts are compared and not ranges, a blackhole that carries its node's
//! name is deleted and created again only by the next pass, an unmarked route in the range is
//! deleted, and creates are not limited to the range. One accident is left out: without an event
//! recorder upstream counted a failed create as success.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weft_model::SharedStr;

use super::{
    CreateReason, DeleteReason, LeftAlone, LeftReason, RouteAction, RoutePlan, Step, Verdict,
    Wanted,
};
use crate::{Node, NodeAddress, NodeList, Policy, Route};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Intent {
    Keep,
    Add,
    Update,
}

type Intents<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Intent>>;

pub(super) fn plan(nodes: &NodeList, routes: &[Route], policy: &Policy) -> RoutePlan {
    // Upstream's providers do not list routes to gateways and the like; ours do.
    let (foreign, listed): (Vec<&Route>, Vec<&Route>) =
        routes.iter().partition(|route| route.mark.is_foreign());
    let listed: Vec<Route> = listed.into_iter().cloned().collect();
    let mut plan = plan_listed(nodes, &listed, policy);
    let foreign = foreign
        .into_iter()
        .filter(|route| !nodes.delivers_to_own(route));
    plan.left.extend(foreign.map(|route| LeftAlone {
        route: route.clone(),
        reason: LeftReason::NotOurs,
    }));
    plan
}

fn plan_listed(nodes: &NodeList, routes: &[Route], policy: &Policy) -> RoutePlan {
    let mut by_node: BTreeMap<&str, Vec<&Route>> = BTreeMap::new();
    for route in routes {
        if let Some(node) = route.target.node() {
            by_node.entry(node).or_default().push(route);
        }
    }
    let intents = intents(nodes, &by_node);
    let mut plan = RoutePlan {
        deletes_first: routes
            .first()
            .is_some_and(|route| route.target_addresses.is_some()),
        ..RoutePlan::default()
    };
    deletes(&mut plan, routes, &intents, nodes, policy);
    creates(&mut plan, nodes, &intents);
    for node in nodes.nodes.values() {
        let named = by_node.contains_key(&*node.name);
        if node.pod_cidrs.is_empty() && named {
            plan.verdicts.entry(node.name.clone()).or_default().blocked = true;
        }
    }
    plan
}

fn intents<'a>(nodes: &'a NodeList, by_node: &BTreeMap<&str, Vec<&Route>>) -> Intents<'a> {
    let mut intents = Intents::new();
    for node in nodes.nodes.values() {
        let own = by_node.get(&*node.name).map_or(&[][..], Vec::as_slice);
        for cidr in &node.pod_cidrs {
            let found = own.iter().find(|route| route.destination == *cidr);
            let intent = match found {
                None => Intent::Add,
                Some(route) if same_addresses(route, node) => Intent::Keep,
                Some(_) => Intent::Update,
            };
            let node_intents = intents.entry(&node.name).or_default();
            node_intents.insert(cidr.text(), intent);
        }
    }
    intents
}

/// True if the route's addresses are the node's: the same number, and each one found; repeated ones
/// are not counted.
fn same_addresses(route: &Route, node: &Node) -> bool {
    let Some(recorded) = &route.target_addresses else {
        return true;
    };
    let present: BTreeSet<&NodeAddress> = node.addresses.iter().collect();
    recorded.len() == node.addresses.len()
        && recorded.iter().all(|address| present.contains(address))
}

fn deletes(
    plan: &mut RoutePlan,
    routes: &[Route],
    intents: &Intents<'_>,
    nodes: &NodeList,
    policy: &Policy,
) {
    for route in routes {
        let Ok(net) = route.destination.net() else {
            plan.left.push(LeftAlone {
                route: route.clone(),
                reason: LeftReason::Unreadable,
            });
            continue;
        };
        if !is_responsible(&net, policy) {
            plan.left.push(LeftAlone {
                route: route.clone(),
                reason: LeftReason::OutOfRange,
            });
            continue;
        }
        match reason_to_delete(route, intents, nodes) {
            Some(reason) => plan.steps.push(Step {
                action: RouteAction::Delete {
                    old: route.clone(),
                    reason,
                },
            }),
            None => plan.kept.push(route.clone()),
        }
    }
}

/// True if the first or last address is in the cluster's range: a route that overlaps one end
/// counts, one around the whole range does not.
pub(super) fn is_responsible(net: &IpNet, policy: &Policy) -> bool {
    let ranges = &policy.cluster_cidrs;
    ranges
        .iter()
        .any(|range| range.contains(&net.network()) || range.contains(&net.broadcast()))
}

fn reason_to_delete(
    route: &Route,
    intents: &Intents<'_>,
    nodes: &NodeList,
) -> Option<DeleteReason> {
    if route.blackhole {
        return Some(DeleteReason::Blackhole);
    }
    let Some(node) = route.target.node() else {
        return Some(DeleteReason::TargetUnknown);
    };
    match intents.get(&**node) {
        None if nodes.get(node).is_some() => Some(DeleteReason::CidrReleased),
        None => Some(DeleteReason::NodeGone),
        Some(intents) => match intents.get(route.destination.text()) {
            None => Some(DeleteReason::CidrReleased),
            Some(Intent::Update) => Some(DeleteReason::AddressesChanged),
            Some(Intent::Keep | Intent::Add) => None,
        },
    }
}

fn creates(plan: &mut RoutePlan, nodes: &NodeList, intents: &Intents<'_>) {
    for node in nodes.nodes.values() {
        if node.pod_cidrs.is_empty() {
            continue;
        }
        let mut verdict = Verdict::default();
        // A repeated CIDR is created twice, and the second fails: so says upstream's own test.
        for cidr in &node.pod_cidrs {
            let reason = match intents[&*node.name][cidr.text()] {
                Intent::Keep => continue,
                Intent::Add => CreateReason::Missing,
                Intent::Update => CreateReason::AddressesChanged,
            };
            let open = verdict.open.entry(cidr.clone()).or_default();
            open.push(plan.steps.len());
            plan.steps.push(Step {
                action: RouteAction::Create {
                    new: Wanted::new(node, cidr.clone(), None),
                    reason,
                },
            });
        }
        let name: SharedStr = node.name.clone();
        plan.verdicts.insert(name, verdict);
    }
}
