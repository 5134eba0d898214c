//! Properties of plans for random clusters and tables.

use proptest::prelude::*;
use weft_routes::{Mark, Node, NodeList, Policy, Route, RouteAction, RoutePlan};

use crate::world::{carry_out, marked, node, policy, route, via};

/// Few ranges, so that nodes and routes meet, collide and overlap.
fn any_cidr() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => (0..12_u8).prop_map(|i| format!("10.120.{i}.0/24")),
        1 => (0..6_u8).prop_map(|i| format!("10.120.{}.0/23", i * 2)),
        1 => Just("10.99.0.0/24".to_owned()),
        1 => Just("10.120.1.0/99".to_owned()),
    ]
}

fn any_ip() -> impl Strategy<Value = String> {
    (0..10_u8).prop_map(|i| format!("10.0.0.{i}"))
}

fn any_node() -> impl Strategy<Value = Node> {
    let cidrs = prop::collection::vec(any_cidr(), 0..3);
    let ips = prop::collection::vec(any_ip(), 0..2);
    (0..10_u8, cidrs, ips, prop::bool::weighted(0.1)).prop_map(|(name, cidrs, ips, excluded)| {
        let cidrs: Vec<&str> = cidrs.iter().map(String::as_str).collect();
        let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
        Node {
            excluded,
            ..node(&format!("n{name}"), &cidrs, &ips)
        }
    })
}

fn any_route() -> impl Strategy<Value = Route> {
    let mark = prop_oneof![Just(Mark::Ours), Just(Mark::None), Just(Mark::Foreign)];
    (
        any_cidr(),
        0..12_u8,
        any_ip(),
        mark,
        prop::bool::weighted(0.1),
    )
        .prop_map(|(cidr, target, ip, mark, blackhole)| Route {
            blackhole,
            ..marked(via(route(&cidr, &format!("n{target}")), &ip), mark)
        })
}

fn any_world() -> impl Strategy<Value = (Vec<Node>, Vec<Route>)> {
    let routes = prop::collection::vec(any_route(), 0..12).prop_map(|mut routes| {
        // A table has one route for a destination.
        routes.sort_by(|a, b| a.destination.cmp(&b.destination));
        routes.dedup_by(|a, b| a.destination == b.destination);
        routes
    });
    (prop::collection::vec(any_node(), 0..10), routes)
}

fn uncapped() -> Policy {
    Policy {
        force: true,
        ..policy()
    }
}

fn touched(plan: &RoutePlan) -> Vec<&Route> {
    let steps = plan.steps.iter();
    steps
        .filter_map(|step| match &step.action {
            RouteAction::Delete { old, .. } | RouteAction::Replace { old, .. } => Some(old),
            RouteAction::Create { .. } => None,
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_that_was_carried_out_leaves_nothing_to_do((nodes, routes) in any_world()) {
        let nodes = NodeList::complete(nodes);
        let first = weft_routes::plan(&nodes, &routes, &uncapped());
        let (table, failed) = carry_out(&first, &routes, false);
        prop_assert!(failed.is_empty(), "{first}");
        let second = weft_routes::plan(&nodes, &table, &uncapped());
        prop_assert!(second.is_empty(), "{first}\nthen\n{second}");
    }

    #[test]
    fn the_order_of_routes_does_not_change_a_plan((nodes, mut routes) in any_world()) {
        let nodes = NodeList::complete(nodes);
        let first = weft_routes::plan(&nodes, &routes, &uncapped());
        routes.reverse();
        let second = weft_routes::plan(&nodes, &routes, &uncapped());
        prop_assert_eq!(first.steps, second.steps);
        prop_assert_eq!(first.verdicts, second.verdicts);
    }

    #[test]
    fn foreign_routes_and_unmarked_ones_that_no_node_claims_are_never_touched(
        (nodes, routes) in any_world()
    ) {
        let nodes = NodeList::complete(nodes);
        let plan = weft_routes::plan(&nodes, &routes, &uncapped());
        for route in touched(&plan) {
            prop_assert_ne!(route.mark, Mark::Foreign);
        }
        for step in &plan.steps {
            if let RouteAction::Delete { old, .. } = &step.action {
                prop_assert_eq!(old.mark, Mark::Ours);
            }
        }
    }

    #[test]
    fn no_two_created_or_replaced_routes_overlap_and_none_leaves_the_range(
        (nodes, routes) in any_world()
    ) {
        let nodes = NodeList::complete(nodes);
        let plan = weft_routes::plan(&nodes, &routes, &uncapped());
        let changes: Vec<_> = plan.steps.iter().filter(|step| step.wanted().is_some()).collect();
        for (index, step) in changes.iter().enumerate() {
            prop_assert!(policy().covers(&step.destination().net().unwrap()));
            for other in &changes[index + 1..] {
                prop_assert!(!step.collides(other), "{plan}");
            }
        }
    }

    #[test]
    fn a_route_to_a_live_node_that_has_the_range_is_never_deleted((nodes, routes) in any_world()) {
        let nodes = NodeList::complete(nodes);
        let plan = weft_routes::plan(&nodes, &routes, &uncapped());
        for step in &plan.steps {
            let RouteAction::Delete { old, .. } = &step.action else { continue };
            let claimed = nodes.nodes.values().any(|node| {
                !node.excluded && node.pod_cidrs.iter().any(|cidr| {
                    cidr.net().is_ok() && cidr.net() == old.destination.net()
                })
            });
            let covered = policy().covers(&old.destination.net().unwrap());
            prop_assert!(!(claimed && covered), "{plan}");
        }
    }

    #[test]
    fn nothing_is_deleted_on_an_incomplete_list((nodes, routes) in any_world()) {
        let mut nodes = NodeList::complete(nodes);
        nodes.complete = false;
        let plan = weft_routes::plan(&nodes, &routes, &uncapped());
        prop_assert_eq!(plan.counts().2, 0);
    }
}
