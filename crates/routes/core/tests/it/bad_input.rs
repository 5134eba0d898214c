//! Bad input of one node is refused and affects no other node.

use weft_model::{IpFamily, SharedStr};
use weft_routes::{Mark, NextHopKind, Node, NodeList, Policy, Reason, RefusalReason};

use crate::world::{marked, node, plan, policy, route, steps, via};

fn good() -> Node {
    node("good", &["10.120.9.0/24"], &["10.0.9.1"])
}

/// Asserts that the good node gets its route and the bad one its condition; returns the refusal of
/// the bad one.
fn refusal(bad: Node, policy: &Policy) -> RefusalReason {
    let name = bad.name.clone();
    let nodes = NodeList::complete([bad, good()]);
    let plan = weft_routes::plan(&nodes, &[], policy);
    assert_eq!(plan.counts(), (1, 0, 0), "{plan}");
    assert_eq!(plan.steps[0].node().unwrap().as_str(), "good");
    let [refusal] = &plan.refusals[..] else {
        panic!("{plan}");
    };
    assert_eq!(refusal.node, name);
    let changes = plan.conditions(&nodes, policy, |_| true);
    let unavailable = changes
        .iter()
        .any(|change| change.node == name && change.reason == Reason::NoRouteCreated);
    assert_eq!(unavailable, refusal.reason.blocks(), "{}", refusal.reason);
    refusal.reason.clone()
}

#[test]
fn a_bad_range_or_address_is_refused_by_name_and_affects_no_other_node() {
    let ip = |text: &str| text.parse().unwrap();
    let address = &["10.0.1.1"][..];
    let cases: [(&[&str], &[&str], RefusalReason); 12] = [
        (&[], address, RefusalReason::NoPodCidr),
        (&["10.120.300.0/24"], address, RefusalReason::Malformed),
        (&[""], address, RefusalReason::Malformed),
        (&["0.0.0.0/0"], address, RefusalReason::DefaultRoute),
        (&["10.121.0.0/24"], address, RefusalReason::OutOfRange),
        (&["10.0.0.0/8"], address, RefusalReason::OutOfRange),
        (&["fd00::/64"], address, RefusalReason::OutOfRange),
        (
            &["10.120.0.0/24"],
            &[],
            RefusalReason::NoAddress(IpFamily::V4),
        ),
        (
            &["10.120.0.0/24"],
            &["fd00::1"],
            RefusalReason::NoAddress(IpFamily::V4),
        ),
        (
            &["10.120.0.0/24"],
            &["10.120.0.7"],
            RefusalReason::NextHopInside(ip("10.120.0.7")),
        ),
        (
            &["10.120.0.0/24"],
            &["127.0.0.1"],
            RefusalReason::BadNextHop(ip("127.0.0.1")),
        ),
        (
            &["10.120.0.0/24"],
            &["224.0.0.1"],
            RefusalReason::BadNextHop(ip("224.0.0.1")),
        ),
    ];
    for (cidrs, addresses, expected) in cases {
        let bad = node("bad", cidrs, addresses);
        assert_eq!(refusal(bad, &policy()), expected, "{cidrs:?} {addresses:?}");
    }
}

#[test]
fn a_family_that_the_provider_never_routes_does_not_hold_the_node_back() {
    let policy = Policy {
        families: vec![IpFamily::V4],
        cluster_cidrs: vec!["10.120.0.0/16".parse().unwrap(), "a00::/8".parse().unwrap()],
        ..policy()
    };
    let bad = node("bad", &["a00:100::/24"], &["10.0.1.1"]);
    assert_eq!(
        refusal(bad, &policy),
        RefusalReason::FamilyNotRouted(IpFamily::V6)
    );
}

#[test]
fn a_claimed_address_that_the_instance_does_not_have_is_refused() {
    let bad = Node {
        instance_addresses: Some(vec!["10.0.1.9".parse().unwrap()]),
        ..node("bad", &["10.120.0.0/24"], &["10.0.1.1"])
    };
    assert_eq!(
        refusal(bad, &policy()),
        RefusalReason::AddressNotOfInstance("10.0.1.1".parse().unwrap())
    );
    let honest = Node {
        instance_addresses: Some(vec!["10.0.1.1".parse().unwrap()]),
        ..node("honest", &["10.120.0.0/24"], &["10.0.1.1"])
    };
    assert_eq!(plan([honest], &[], &policy()).counts(), (1, 0, 0));
}

#[test]
fn a_provider_that_routes_to_instances_needs_the_provider_id() {
    let policy = Policy {
        next_hop: NextHopKind::Instance,
        ..policy()
    };
    let without = node("n1", &["10.120.0.0/24"], &["10.0.1.1"]);
    let refused = plan([without.clone()], &[], &policy);
    assert_eq!(refused.refusals[0].reason, RefusalReason::NoProviderId);
    let with = Node {
        provider_id: Some(SharedStr::new("i-1")),
        ..without
    };
    assert_eq!(
        steps(&plan([with], &[], &policy)),
        ["+ 10.120.0.0/24 via i-1 (node n1) [missing]"]
    );
}

#[test]
fn of_two_nodes_with_one_range_the_one_that_packets_reach_today_stays() {
    let (a, b) = (
        node("a", &["10.120.0.0/24"], &["10.0.1.1"]),
        node("b", &["10.120.0.0/24"], &["10.0.1.2"]),
    );
    let fresh = plan([a.clone(), b.clone()], &[], &policy());
    assert_eq!(fresh.steps[0].node().unwrap().as_str(), "a");
    assert_eq!(
        fresh.refusals[0].reason,
        RefusalReason::Duplicate(SharedStr::new("a"))
    );
    let held = [via(route("10.120.0.0/24", "b"), "10.0.1.2")];
    let kept = plan([a, b], &held, &policy());
    assert!(kept.is_empty(), "{kept}");
    assert_eq!(kept.refusals[0].node.as_str(), "a");
}

#[test]
fn overlapping_ranges_are_refused_whichever_contains_the_other() {
    for (first, second) in [
        ("10.120.0.0/23", "10.120.1.0/24"),
        ("10.120.1.0/24", "10.120.0.0/23"),
    ] {
        let a = node("a", &[first], &["10.0.1.1"]);
        let b = node("b", &[second], &["10.0.1.2"]);
        let plan = plan([a, b, good()], &[], &policy());
        assert_eq!(plan.counts(), (2, 0, 0), "{plan}");
        assert_eq!(
            plan.refusals[0].reason,
            RefusalReason::Overlaps {
                node: SharedStr::new("a"),
                net: first.parse().unwrap()
            }
        );
    }
}

#[test]
fn a_foreign_route_on_a_nodes_range_is_left_and_reported() {
    let foreign = marked(via(route("10.120.0.0/24", ""), "10.0.0.254"), Mark::Foreign);
    let node = node("n1", &["10.120.0.0/24"], &["10.0.1.1"]);
    let plan = plan([node], &[foreign], &policy());
    assert!(plan.is_empty(), "{plan}");
    assert_eq!(plan.refusals[0].reason, RefusalReason::DestinationTaken);
}

#[test]
fn a_route_whose_node_cannot_be_routed_to_right_now_stays() {
    let held = [marked(
        via(route("10.120.0.0/24", "n1"), "10.0.1.1"),
        Mark::Ours,
    )];
    let plan = plan([node("n1", &["10.120.0.0/24"], &[])], &held, &policy());
    assert!(plan.is_empty(), "{plan}");
}

#[test]
fn a_range_with_host_bits_is_sent_without_them() {
    let node = node("n1", &["10.120.2.5/24"], &["10.0.1.1"]);
    let plan = plan([node], &[], &policy());
    assert_eq!(plan.steps[0].destination().text(), "10.120.2.0/24");
}

#[test]
fn the_providers_name_for_a_machine_need_not_be_the_nodes() {
    let node = node("n1", &["10.120.0.0/24"], &["10.0.1.1"]);
    let listed = [via(route("10.120.0.0/24", "server-17"), "10.0.1.1")];
    assert!(plan([node], &listed, &policy()).is_empty());
}
