//! Rules for writing `NetworkUnavailable`.

use weft_model::SharedStr;
use weft_routes::{ConditionPolicy, Node, NodeCondition, NodeList, Policy, Reason};

use crate::world::{condition, node, policy, route};

fn written(
    present: Option<NodeCondition>,
    created: bool,
    conditions: ConditionPolicy,
) -> Vec<Reason> {
    let node = Node {
        network_unavailable: present,
        ..node("n1", &["10.120.0.0/24"], &["10.0.1.1"])
    };
    let nodes = NodeList::complete([node]);
    let policy = Policy {
        conditions,
        ..policy()
    };
    let plan = weft_routes::plan(&nodes, &[], &policy);
    let changes = plan.conditions(&nodes, &policy, |_| created);
    changes.iter().map(|change| change.reason).collect()
}

#[test]
fn a_condition_is_written_unless_it_says_so_already_with_our_reason() {
    use Reason::{NoRouteCreated, RouteCreated};
    for (present, created, expected) in [
        (None, true, vec![RouteCreated]),
        (None, false, vec![NoRouteCreated]),
        (Some(condition(false, "RouteCreated")), true, vec![]),
        (
            Some(condition(false, "CalicoIsUp")),
            true,
            vec![RouteCreated],
        ),
        (
            Some(condition(false, "ExternalCNI")),
            true,
            vec![RouteCreated],
        ),
        (
            Some(condition(true, "SomeOtherReason")),
            false,
            vec![NoRouteCreated],
        ),
        (
            Some(condition(false, "RouteCreated")),
            false,
            vec![NoRouteCreated],
        ),
        (Some(condition(true, "NoRouteCreated")), false, vec![]),
    ] {
        let context = format!("{present:?} {created}");
        assert_eq!(
            written(present, created, ConditionPolicy::Own),
            expected,
            "{context}"
        );
    }
}

#[test]
fn a_networks_own_condition_can_be_respected() {
    use Reason::{NoRouteCreated, RouteCreated};
    for (present, created, expected) in [
        (None, true, vec![RouteCreated]),
        (Some(condition(false, "CalicoIsUp")), true, vec![]),
        (Some(condition(false, "CalicoIsUp")), false, vec![]),
        (
            Some(condition(true, "NoRouteCreated")),
            true,
            vec![RouteCreated],
        ),
        (
            Some(condition(false, "RouteCreated")),
            false,
            vec![NoRouteCreated],
        ),
        (Some(condition(false, "RouteCreated")), true, vec![]),
    ] {
        let context = format!("{present:?} {created}");
        assert_eq!(
            written(present, created, ConditionPolicy::RespectCni),
            expected,
            "{context}"
        );
    }
}

#[test]
fn nothing_is_written_when_switched_off_or_only_observing() {
    assert!(written(None, false, ConditionPolicy::Off).is_empty());
    let nodes = NodeList::complete([node("n1", &["10.120.0.0/24"], &["10.0.1.1"])]);
    let policy = Policy {
        observe_only: true,
        ..policy()
    };
    let plan = weft_routes::plan(&nodes, &[], &policy);
    assert_eq!(plan.steps.len(), 1);
    assert!(plan.executable().is_empty());
    assert!(plan.conditions(&nodes, &policy, |_| false).is_empty());
}

#[test]
fn a_node_that_becomes_excluded_is_released_from_our_condition_and_from_no_other() {
    for (present, expected) in [
        (None, vec![]),
        (
            Some(condition(true, "NoRouteCreated")),
            vec![Reason::RouteNotWanted],
        ),
        (Some(condition(true, "SomeOtherReason")), vec![]),
        (Some(condition(false, "RouteCreated")), vec![]),
    ] {
        let node = Node {
            excluded: true,
            network_unavailable: present,
            ..node("n1", &["10.120.0.0/24"], &["10.0.1.1"])
        };
        let nodes = NodeList::complete([node]);
        let plan = weft_routes::plan(&nodes, &[route("10.120.9.0/24", "n9")], &policy());
        let changes = plan.conditions(&nodes, &policy(), |_| true);
        let reasons: Vec<_> = changes.iter().map(|change| change.reason).collect();
        assert_eq!(reasons, expected);
        assert!(plan.is_empty(), "{plan}");
    }
}

#[test]
fn reasons_and_messages_are_upstreams() {
    assert_eq!(Reason::RouteCreated.as_str(), "RouteCreated");
    assert_eq!(
        Reason::RouteCreated.message(),
        "RouteController created a route"
    );
    assert_eq!(
        Reason::NoRouteCreated.message(),
        "RouteController failed to create a route"
    );
    let expected = NodeCondition {
        status: true,
        reason: SharedStr::new("NoRouteCreated"),
    };
    assert_eq!(Reason::NoRouteCreated.to_condition(), expected);
}
