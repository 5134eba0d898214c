//! Safety limits of a pass, and the order of its steps.

use super::{ReplaceReason, RouteAction, RoutePlan, Step, Withheld, WithheldReason, step::overlap};
use crate::{NodeList, Policy};

/// Adds steps to the plan, or withholds those that the limits forbid.
pub(super) fn apply(
    plan: &mut RoutePlan,
    deletes: Vec<Step>,
    changes: Vec<Step>,
    present: usize,
    nodes: &NodeList,
    policy: &Policy,
) {
    let creates = changes
        .iter()
        .filter(|step| matches!(step.action, RouteAction::Create { .. }))
        .count();
    let ours = plan.kept.len() + deletes.len() + changes.len() - creates;
    let doubt = if !nodes.proves_absence() {
        Some(WithheldReason::IncompleteNodes)
    } else if !policy.force && policy.delete_cap.is_exceeded(deletes.len(), ours) {
        Some(WithheldReason::TooManyDeletes)
    } else {
        None
    };
    let mut accepted = Vec::new();
    match doubt {
        Some(reason) => {
            let withheld = deletes.into_iter().map(|step| Withheld { step, reason });
            plan.withheld.extend(withheld);
        }
        None => accepted = deletes,
    }
    let (safe, doubtful): (Vec<Step>, Vec<Step>) = changes
        .into_iter()
        .partition(|step| nodes.proves_absence() || !takes_from_a_node(step));
    plan.withheld
        .extend(doubtful.into_iter().map(|step| Withheld {
            step,
            reason: WithheldReason::IncompleteNodes,
        }));
    let overflows = policy.quota.is_some_and(|quota| present + creates > quota);
    plan.steps = ordered(accepted, safe, overflows);
}

/// True if a step takes a range from a node that may exist and merely not be known yet.
fn takes_from_a_node(step: &Step) -> bool {
    matches!(
        step.action,
        RouteAction::Replace {
            reason: ReplaceReason::Handover,
            ..
        }
    )
}

/// Puts creates first, because a node waits for them, except where a delete makes room: for an
/// overlapping destination, or in a table that would overflow.
fn ordered(deletes: Vec<Step>, changes: Vec<Step>, overflows: bool) -> Vec<Step> {
    let mut nets: Vec<_> = changes
        .iter()
        .filter_map(|step| step.destination().net().ok())
        .collect();
    nets.sort();
    let blocks = |step: &Step| {
        step.destination()
            .net()
            .is_ok_and(|net| overflows || touches(&nets, &net))
    };
    let (first, last): (Vec<Step>, Vec<Step>) = deletes.into_iter().partition(blocks);
    first.into_iter().chain(changes).chain(last).collect()
}

/// True if a range overlaps one of the sorted ones, which do not overlap each other.
fn touches(nets: &[ipnet::IpNet], net: &ipnet::IpNet) -> bool {
    let place = nets.partition_point(|other| other < net);
    let near = &nets[place.saturating_sub(1)..(place + 1).min(nets.len())];
    near.iter().any(|other| overlap(net, other))
}
