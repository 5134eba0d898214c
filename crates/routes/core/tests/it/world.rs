//! Builders of nodes and routes, and a table that carries out plans.

use weft_model::SharedStr;
use weft_routes::{
    Cidr, Mark, NextHop, Node, NodeAddress, NodeCondition, NodeList, Policy, Route, RouteAction,
    RoutePlan, RouteTarget,
};

pub(crate) fn node(name: &str, cidrs: &[&str], ips: &[&str]) -> Node {
    Node {
        name: SharedStr::new(name),
        uid: SharedStr::new(&format!("uid-{name}")),
        pod_cidrs: cidrs.iter().map(|cidr| Cidr::parse(cidr)).collect(),
        addresses: addresses(ips),
        ..Node::default()
    }
}

pub(crate) fn addresses(ips: &[&str]) -> Vec<NodeAddress> {
    ips.iter()
        .map(|ip| NodeAddress::internal(ip.parse().unwrap()))
        .collect()
}

pub(crate) fn route(destination: &str, target: &str) -> Route {
    Route {
        target: match target {
            "" => RouteTarget::Unknown,
            name => RouteTarget::Node(SharedStr::new(name)),
        },
        ..Route::to_node(Cidr::parse(destination), target)
    }
}

pub(crate) fn via(route: Route, next_hop: &str) -> Route {
    Route {
        next_hop: Some(NextHop::Address(next_hop.parse().unwrap())),
        ..route
    }
}

pub(crate) fn marked(route: Route, mark: Mark) -> Route {
    Route { mark, ..route }
}

pub(crate) fn condition(status: bool, reason: &str) -> NodeCondition {
    NodeCondition {
        status,
        reason: SharedStr::new(reason),
    }
}

/// Our rules for the range that most tests use.
pub(crate) fn policy() -> Policy {
    Policy::new(["10.120.0.0/16".parse().unwrap()])
}

pub(crate) fn plan(
    nodes: impl IntoIterator<Item = Node>,
    routes: &[Route],
    policy: &Policy,
) -> RoutePlan {
    weft_routes::plan(&NodeList::complete(nodes), routes, policy)
}

/// The steps, one line each.
pub(crate) fn steps(plan: &RoutePlan) -> Vec<String> {
    plan.steps.iter().map(ToString::to_string).collect()
}

/// The table after a plan was carried out, and the indices of the steps that failed.
/// `records_addresses`: the provider stores the node's addresses with each route.
pub(crate) fn carry_out(
    plan: &RoutePlan,
    before: &[Route],
    records_addresses: bool,
) -> (Vec<Route>, Vec<usize>) {
    let mut table = before.to_vec();
    let mut failed = Vec::new();
    // Deletes first, as upstream's test provider often sees them; a plan that needs something else
    // has one step for it.
    let order = |step: &RouteAction| !matches!(step, RouteAction::Delete { .. });
    let mut numbered: Vec<_> = plan.steps.iter().enumerate().collect();
    numbered.sort_by_key(|(_, step)| order(&step.action));
    for (number, step) in numbered {
        if let RouteAction::Delete { old, .. } | RouteAction::Replace { old, .. } = &step.action {
            let place = table.iter().position(|route| route == old).unwrap();
            table.remove(place);
        }
        let Some(wanted) = step.wanted() else {
            continue;
        };
        let taken = |route: &Route| route.destination == wanted.destination;
        if table.iter().any(taken) {
            failed.push(number);
            continue;
        }
        table.push(Route {
            target_addresses: records_addresses.then(|| wanted.addresses.clone()),
            ..wanted.to_route()
        });
    }
    (table, failed)
}

/// Destination, node and recorded addresses, sorted: what upstream's tests compare.
pub(crate) fn essence(table: &[Route]) -> Vec<(String, Option<String>, Vec<NodeAddress>)> {
    let mut lines: Vec<_> = table
        .iter()
        .map(|route| {
            (
                route.destination.to_string(),
                route.target.node().map(ToString::to_string),
                route.target_addresses.clone().unwrap_or_default(),
            )
        })
        .collect();
    lines.sort();
    lines
}
