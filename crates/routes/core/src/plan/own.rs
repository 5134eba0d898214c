//! Our planning rules: safe on bad input, and never touching foreign routes.
//!
//! Ranges are compared and not texts. A range that moves is one step. A route is deleted only if it
//! is ours, or unmarked in a range that [`Unmarked::Claim`] gives to this cluster alone; and only
//! if no node claims its destination in the cluster's ranges, or another route for it is kept.
//! Doubtful routes stay and are reported.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::{
    CreateReason, DeleteReason, LeftAlone, LeftReason, Refusal, RefusalReason, ReplaceReason,
    RouteAction, RoutePlan, Step, Wanted,
    claims::{Claims, leads_to},
    guard,
};
use crate::{Blocks, Mark, NodeList, Policy, Route, RouteTarget, Unmarked};

pub(super) fn plan(nodes: &NodeList, routes: &[Route], policy: &Policy) -> RoutePlan {
    let mut claims = Claims::of(nodes, routes, policy);
    let mut plan = RoutePlan::default();
    let mut present: BTreeMap<IpNet, Vec<&Route>> = BTreeMap::new();
    for route in routes {
        match route.destination.net() {
            Ok(net) => present.entry(net).or_default().push(route),
            Err(_) => leave(&mut plan, route, LeftReason::Unreadable),
        }
    }
    let mut deletes = Vec::new();
    let mut changes = Vec::new();
    for (net, wanted) in &claims.wanted {
        let there = present.remove(net).unwrap_or_default();
        match settle(&mut plan, wanted, &there, &mut deletes) {
            Ok(step) => changes.extend(step),
            Err(reason) => claims.refusals.push(Refusal {
                node: wanted.node.clone(),
                cidr: Some(wanted.destination.clone()),
                reason,
            }),
        }
    }
    for (net, there) in present {
        for route in there {
            match unneeded(route, &net, nodes, &claims.named, policy) {
                Ok(reason) => deletes.push(delete(route, reason)),
                Err(_) if nodes.delivers_to_own(route) => {}
                Err(reason) => leave(&mut plan, route, reason),
            }
        }
    }
    guard::apply(&mut plan, deletes, changes, routes.len(), nodes, policy);
    plan.refusals = claims.refusals;
    verdicts(&mut plan, nodes);
    plan
}

/// The step that makes one destination lead to its node, `None` if it does already, or a refusal.
/// Superfluous routes of ours for the same destination are added to the deletes.
fn settle(
    plan: &mut RoutePlan,
    wanted: &Wanted,
    there: &[&Route],
    deletes: &mut Vec<Step>,
) -> Result<Option<Step>, RefusalReason> {
    let leads = |route: &Route| {
        let next_hop = wanted.next_hop.as_ref();
        !route.blackhole && next_hop.is_some_and(|hop| leads_to(route, &wanted.node, hop))
    };
    let right = there.iter().position(|route| leads(route));
    let ours = there.iter().position(|route| !route.mark.is_foreign());
    let chosen = right.or(ours);
    for (index, route) in there.iter().enumerate() {
        match route.mark {
            _ if Some(index) == chosen => {}
            Mark::Ours => deletes.push(delete(route, DeleteReason::Duplicate)),
            Mark::Foreign | Mark::Connected | Mark::None => leave(plan, route, LeftReason::NotOurs),
        }
    }
    let Some(index) = chosen else {
        if there.is_empty() {
            return Ok(Some(create(wanted)));
        }
        return Err(RefusalReason::DestinationTaken);
    };
    let route = there[index];
    if right.is_some() {
        plan.kept.push(route.clone());
        return Ok(None);
    }
    Ok(Some(replace(route, wanted)))
}

fn create(wanted: &Wanted) -> Step {
    Step {
        action: RouteAction::Create {
            new: wanted.clone(),
            reason: CreateReason::Missing,
        },
    }
}

fn replace(route: &Route, wanted: &Wanted) -> Step {
    let same_node = route.target.node() == Some(&wanted.node);
    let reason = if route.blackhole {
        ReplaceReason::Blackhole
    } else if same_node {
        ReplaceReason::NextHopChanged
    } else {
        ReplaceReason::Handover
    };
    Step {
        action: RouteAction::Replace {
            old: route.clone(),
            new: wanted.clone(),
            reason,
        },
    }
}

fn delete(route: &Route, reason: DeleteReason) -> Step {
    Step {
        action: RouteAction::Delete {
            old: route.clone(),
            reason,
        },
    }
}

fn leave(plan: &mut RoutePlan, route: &Route, reason: LeftReason) {
    plan.left.push(LeftAlone {
        route: route.clone(),
        reason,
    });
}

/// Reason to delete a route that no granted claim needs, or reason to leave it.
fn unneeded(
    route: &Route,
    net: &IpNet,
    nodes: &NodeList,
    named: &BTreeSet<IpNet>,
    policy: &Policy,
) -> Result<DeleteReason, LeftReason> {
    let covered = policy.covers(net);
    match route.mark {
        Mark::Ours => {}
        _ if !covered => return Err(LeftReason::OutOfRange),
        Mark::None if policy.unmarked == Unmarked::Claim => {}
        Mark::None | Mark::Foreign | Mark::Connected => return Err(LeftReason::NotOurs),
    }
    if named.contains(net) && covered {
        return Err(LeftReason::StillClaimed);
    }
    let target = route.target.node().and_then(|name| nodes.get(name));
    if target.is_some_and(|node| !node.excluded && node.blocks == Blocks::Unknown) {
        return Err(LeftReason::BlocksUnknown);
    }
    Ok(match &route.target {
        _ if route.blackhole => DeleteReason::Blackhole,
        RouteTarget::Unknown => DeleteReason::TargetUnknown,
        RouteTarget::Node(name) => match nodes.get(name) {
            None => DeleteReason::NodeGone,
            Some(node) if node.excluded => DeleteReason::NodeExcluded,
            Some(_) => DeleteReason::CidrReleased,
        },
    })
}

/// Fills in the state of every node. A node without a range to which no route leads is left out.
fn verdicts(plan: &mut RoutePlan, nodes: &NodeList) {
    let mut named: BTreeSet<&str> = BTreeSet::new();
    let kept = plan
        .kept
        .iter()
        .chain(plan.left.iter().map(|left| &left.route));
    named.extend(kept.filter_map(|route| route.target.node().map(|name| &**name)));
    for step in &plan.steps {
        if let RouteAction::Delete { old, .. } | RouteAction::Replace { old, .. } = &step.action {
            named.extend(old.target.node().map(|name| &**name));
        }
    }
    for node in nodes.nodes.values() {
        let verdict = plan.verdicts.entry(node.name.clone()).or_default();
        verdict.excluded = node.excluded;
        verdict.blocked = node.has_no_range();
        let none = node.ranges().next().is_none();
        if none && !node.excluded && !named.contains(&*node.name) {
            plan.verdicts.remove(&node.name);
        }
    }
    for refusal in &plan.refusals {
        if let Some(verdict) = plan.verdicts.get_mut(&refusal.node) {
            verdict.blocked |= refusal.reason.blocks();
        }
    }
    for withheld in &plan.withheld {
        if let Some(verdict) = withheld.step.node().and_then(|n| plan.verdicts.get_mut(n)) {
            verdict.blocked = true;
        }
    }
    for (number, step) in plan.steps.iter().enumerate() {
        if let Some(verdict) = step.node().and_then(|node| plan.verdicts.get_mut(node)) {
            let destination = step.destination().clone();
            verdict.open.entry(destination).or_default().push(number);
        }
    }
}
