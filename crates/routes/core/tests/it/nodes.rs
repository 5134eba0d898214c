//! Node changes that start a pass, and those that do not.

use weft_model::SharedStr;
use weft_routes::{AddressKind, NextHopKind, Node, NodeAddress, NodeCondition, NodeWatch, Policy};

use crate::world::{addresses, node, policy};

fn ready() -> Node {
    node("n1", &["10.120.0.0/24"], &["10.0.1.1"])
}

fn started(old: Option<Node>, new: Node, policy: &Policy) -> bool {
    let mut watch = NodeWatch::default();
    watch.relist(old, policy);
    watch.apply(new, policy)
}

#[test]
fn a_node_counts_when_it_can_be_routed_to() {
    let policy = policy();
    let mut watch = NodeWatch::default();
    watch.relist([], &policy);
    assert!(!watch.apply(node("n1", &[], &[]), &policy));
    assert!(!watch.apply(node("n1", &["10.120.0.0/24"], &[]), &policy));
    assert!(!watch.apply(node("n2", &[], &["10.0.1.1"]), &policy));
    assert!(watch.apply(ready(), &policy));
    assert!(!watch.apply(ready(), &policy), "nothing changed");
    assert!(watch.apply(node("n1", &[], &["10.0.1.1"]), &policy));
}

#[test]
fn only_what_a_route_depends_on_counts() {
    let heartbeat = Node {
        network_unavailable: Some(NodeCondition {
            status: false,
            reason: SharedStr::new("RouteCreated"),
        }),
        ..ready()
    };
    let two = Node {
        addresses: vec![
            NodeAddress {
                kind: AddressKind::ExternalIp,
                text: SharedStr::new("192.0.2.1"),
            },
            NodeAddress::internal("10.0.1.1".parse().unwrap()),
        ],
        ..ready()
    };
    let reordered = Node {
        addresses: two.addresses.iter().rev().cloned().collect(),
        ..ready()
    };
    let moved = Node {
        addresses: addresses(&["10.0.1.2"]),
        ..ready()
    };
    let renumbered = node("n1", &["10.121.0.0/24"], &["10.0.1.1"]);
    let reborn = Node {
        uid: SharedStr::new("another"),
        ..ready()
    };
    let excluded = Node {
        excluded: true,
        ..ready()
    };
    let named = Node {
        provider_id: Some(SharedStr::new("i-1")),
        ..ready()
    };
    let attached = Node {
        triggers: vec![SharedStr::new("attached")],
        ..ready()
    };
    for (case, old, new, expected) in [
        ("heartbeat", ready(), heartbeat, false),
        ("order of addresses", two, reordered, false),
        ("provider ID, not declared", ready(), named.clone(), false),
        ("address", ready(), moved, true),
        ("range", ready(), renumbered, true),
        ("same name, new UID", ready(), reborn, true),
        ("exclusion", ready(), excluded.clone(), true),
        ("end of exclusion", excluded, ready(), true),
        ("declared fact", ready(), attached, true),
    ] {
        assert_eq!(started(Some(old), new, &policy()), expected, "{case}");
    }
    let declaring = Policy {
        watch_provider_id: true,
        ..policy()
    };
    assert!(started(Some(ready()), named.clone(), &declaring));
    let instances = Policy {
        next_hop: NextHopKind::Instance,
        ..policy()
    };
    assert!(!started(None, ready(), &instances), "no provider ID yet");
    assert!(started(Some(ready()), named, &instances));
}

#[test]
fn the_order_of_internal_addresses_counts_because_the_first_is_the_next_hop() {
    let two = |ips: &[&str]| node("n1", &["10.120.0.0/24"], ips);
    let (old, new) = (
        two(&["10.0.1.1", "10.0.1.2"]),
        two(&["10.0.1.2", "10.0.1.1"]),
    );
    assert!(started(Some(old), new, &policy()));
}

#[test]
fn a_relist_finds_missed_deletes_and_nothing_else() {
    let mut watch = NodeWatch::default();
    assert!(watch.relist([ready()], &policy()), "the first list");
    assert!(!watch.relist([ready()], &policy()));
    assert!(watch.relist([], &policy()), "a missed delete");
    assert!(!watch.delete("n1"), "known to be gone");
}
