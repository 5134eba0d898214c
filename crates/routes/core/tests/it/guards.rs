//! Limits on deletes, and the sequence of steps.

use std::time::Duration;

use weft_routes::{
    DeleteCap, LeftReason, Mark, Moment, Node, NodeList, Policy, Route, TableCache, Unmarked,
    WithheldReason,
};

use crate::world::{marked, node, plan, policy, route, steps, via};

fn ours(destination: &str, target: &str, next_hop: &str) -> Route {
    marked(via(route(destination, target), next_hop), Mark::Ours)
}

fn fleet(count: usize) -> (Vec<Node>, Vec<Route>) {
    (0..count)
        .map(|i| {
            let (name, cidr) = (format!("n{i}"), format!("10.120.{i}.0/24"));
            let ip = format!("10.0.{i}.1");
            (node(&name, &[&cidr], &[&ip]), ours(&cidr, &name, &ip))
        })
        .unzip()
}

#[test]
fn nothing_is_deleted_or_taken_from_a_node_on_an_incomplete_list() {
    let (nodes, routes) = fleet(4);
    let moved = node("n9", &["10.120.3.0/24"], &["10.0.9.1"]);
    let fresh = node("n8", &["10.120.8.0/24"], &["10.0.8.1"]);
    let readdressed = node("n0", &["10.120.0.0/24"], &["10.0.77.1"]);
    let mut known = NodeList::complete([readdressed, nodes[1].clone(), moved, fresh]);
    known.complete = false;
    let plan = weft_routes::plan(&known, &routes, &policy());
    assert_eq!(plan.counts(), (1, 1, 0), "{plan}");
    assert_eq!(plan.withheld.len(), 2, "{plan}");
    for withheld in &plan.withheld {
        assert_eq!(withheld.reason, WithheldReason::IncompleteNodes);
    }
    known.complete = true;
    let plan = weft_routes::plan(&known, &routes, &policy());
    assert_eq!(plan.counts(), (1, 2, 1), "{plan}");
}

#[test]
fn more_deletes_than_half_are_withheld_unless_forced() {
    let (nodes, routes) = fleet(20);
    let half = plan(nodes[10..].to_vec(), &routes, &policy());
    assert_eq!(half.counts(), (0, 0, 10), "{half}");
    let more = plan(nodes[11..].to_vec(), &routes, &policy());
    assert_eq!(more.counts(), (0, 0, 0), "{more}");
    assert_eq!(more.withheld[0].reason, WithheldReason::TooManyDeletes);
    let forced = Policy {
        force: true,
        ..policy()
    };
    assert_eq!(plan([], &routes, &forced).counts(), (0, 0, 20));
}

#[test]
fn more_deletes_than_the_limit_are_withheld_and_few_are_always_accepted() {
    let (nodes, routes) = fleet(20);
    let strict = Policy {
        delete_cap: DeleteCap {
            percent: 50,
            at_most: 3,
            always: 1,
        },
        ..policy()
    };
    assert_eq!(plan(nodes[3..].to_vec(), &routes, &strict).counts().2, 3);
    assert_eq!(plan(nodes[4..].to_vec(), &routes, &strict).counts().2, 0);
    assert_eq!(plan([], &routes[..1], &strict).counts().2, 1);
}

#[test]
fn a_capped_pass_still_creates() {
    let (_, routes) = fleet(20);
    let fresh = node("new", &["10.120.200.0/24"], &["10.0.200.1"]);
    let plan = plan([fresh], &routes, &policy());
    assert_eq!(plan.counts(), (1, 0, 0), "{plan}");
}

#[test]
fn unmarked_routes_are_left_unless_the_range_is_ours_alone() {
    let unmarked = via(route("10.120.200.0/24", ""), "10.0.0.254");
    let left = plan([], std::slice::from_ref(&unmarked), &policy());
    assert!(left.is_empty(), "{left}");
    assert_eq!(left.left[0].reason, LeftReason::NotOurs);
    let claiming = Policy {
        unmarked: Unmarked::Claim,
        ..policy()
    };
    assert_eq!(
        plan([], std::slice::from_ref(&unmarked), &claiming).counts(),
        (0, 0, 1)
    );
    let foreign = marked(unmarked, Mark::Foreign);
    assert!(plan([], &[foreign], &claiming).is_empty());
}

#[test]
fn our_own_routes_outside_the_range_are_cleaned_up_and_others_never() {
    let outside = ours("10.99.0.0/24", "n7", "10.0.7.1");
    assert_eq!(
        plan([], std::slice::from_ref(&outside), &policy())
            .counts()
            .2,
        1
    );
    let unmarked = marked(outside, Mark::None);
    let plan = plan([], &[unmarked], &policy());
    assert_eq!(plan.left[0].reason, LeftReason::OutOfRange);
}

#[test]
fn creates_go_before_deletes_except_where_a_delete_makes_room() {
    let fresh = node("n1", &["10.120.4.0/24"], &["10.0.1.1"]);
    let stale = ours("10.120.5.0/24", "gone", "10.0.5.1");
    let around = ours("10.120.4.0/23", "gone", "10.0.5.1");
    let kinds = |routes: &[Route], policy: &Policy| -> String {
        let plan = plan([fresh.clone()], routes, policy);
        steps(&plan).iter().map(|step| &step[..1]).collect()
    };
    assert_eq!(kinds(std::slice::from_ref(&stale), &policy()), "+-");
    assert_eq!(kinds(&[around], &policy()), "-+");
    let full = |quota| Policy {
        quota: Some(quota),
        ..policy()
    };
    assert_eq!(kinds(std::slice::from_ref(&stale), &full(1)), "-+");
    assert_eq!(kinds(&[stale], &full(2)), "+-");
}

#[test]
fn the_forecast_shows_an_overflow_before_it_happens() {
    let (nodes, routes) = fleet(10);
    let with = |quota| Policy {
        quota: Some(quota),
        ..policy()
    };
    let short = plan(nodes.clone(), &routes[..8], &with(9));
    assert_eq!((short.forecast.after, short.forecast.missing()), (10, 1));
    assert!(plan(nodes.clone(), &routes, &with(11)).forecast.is_tight());
    assert!(!plan(nodes, &routes, &with(20)).forecast.is_tight());
}

#[test]
fn superfluous_routes_of_ours_for_one_destination_are_deleted() {
    let node = node("n1", &["10.120.0.0/24"], &["10.0.1.1"]);
    let right = ours("10.120.0.0/24", "n1", "10.0.1.1");
    let wrong = ours("10.120.0.0/24", "n2", "10.0.2.1");
    let plan = plan([node], &[wrong, right.clone()], &policy());
    assert_eq!(plan.kept, [right]);
    assert_eq!(plan.counts(), (0, 0, 1), "{plan}");
}

#[test]
fn an_excluded_node_gets_no_route_and_loses_ours() {
    let excluded = Node {
        excluded: true,
        ..node("n1", &["10.120.0.0/24"], &["10.0.1.1"])
    };
    assert!(plan([excluded.clone()], &[], &policy()).is_empty());
    let routed = ours("10.120.0.0/24", "n1", "10.0.1.1");
    assert_eq!(
        steps(&plan([excluded], &[routed], &policy())),
        ["- 10.120.0.0/24 via 10.0.1.1 (node n1) [node is excluded]"]
    );
}

/// Routes in the kernel of `n1`, which has 10.120.1.0/24.
fn in_kernel() -> (Vec<Node>, Vec<Route>) {
    let own = Node {
        own: true,
        excluded: true,
        ..node("n1", &["10.120.1.0/24"], &["10.0.1.1"])
    };
    let others = ["2", "3"].map(|i| {
        let cidr = format!("10.120.{i}.0/24");
        node(&format!("n{i}"), &[&cidr], &[&format!("10.0.{i}.1")])
    });
    let nodes = [own].into_iter().chain(others).collect();
    let connected = |destination| marked(route(destination, ""), Mark::Connected);
    let routes = vec![
        // The bridge, and the pods of a plugin that makes a route for each.
        connected("10.120.1.0/24"),
        connected("10.120.1.7/32"),
        // Links where they should not be.
        connected("10.120.3.128/25"),
        connected("10.120.0.0/16"),
        // Other programs' routes in the node's own range.
        marked(via(route("10.120.1.64/26", ""), "10.0.9.9"), Mark::Foreign),
        marked(route("10.120.1.128/26", ""), Mark::Foreign),
    ];
    (nodes, routes)
}

#[test]
fn only_links_in_the_nodes_own_range_are_not_reported() {
    let (nodes, routes) = in_kernel();
    for policy in [policy(), Policy::upstream(policy().cluster_cidrs)] {
        let plan = plan(nodes.clone(), &routes, &policy);
        let mut left: Vec<String> = (plan.left.iter())
            .map(|left| left.route.destination.to_string())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "10.120.0.0/16",
                "10.120.1.128/26",
                "10.120.1.64/26",
                "10.120.3.128/25"
            ],
            "{plan}"
        );
    }
}

#[test]
fn a_link_is_never_replaced_by_a_route_to_another_node() {
    let (nodes, _) = in_kernel();
    let links = ["10.120.2.0/24", "10.120.3.0/24"];
    let links = links.map(|net| marked(route(net, ""), Mark::Connected));
    let plan = plan(nodes, &links, &policy());
    assert!(plan.steps.is_empty(), "{plan}");
    assert_eq!((plan.left.len(), plan.refusals.len()), (2, 2), "{plan}");
}

#[test]
fn a_nodes_own_links_are_no_drift_and_everything_else_is() {
    let (nodes, routes) = in_kernel();
    let nodes = NodeList::complete(nodes);
    let mut cache = TableCache::new(Duration::ZERO);
    cache.listed(Vec::new(), Moment::seconds(0), []);
    let drift = cache.listed(routes.clone(), Moment::seconds(1), []);
    assert_eq!(drift.appeared, routes);
    assert_eq!(drift.without_own(&nodes).appeared, routes[2..]);
    // The bridge goes, and the others' routes, too.
    let drift = cache.listed(Vec::new(), Moment::seconds(2), []);
    let vanished = drift.without_own(&nodes).vanished;
    assert_eq!(vanished.len(), 2, "{vanished:?}");
    assert!(vanished.iter().all(|route| route.mark == Mark::Foreign));
}
