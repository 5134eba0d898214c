//! The cases of upstream's own tests, by its rules and by ours, with the conditions asserted that
//! upstream's tests only look for.

use weft_routes::{Node, NodeList, Policy, Reason, Route, RouteTarget, Semantics, Unmarked};

use crate::world::{addresses, carry_out, essence, node, plan, route};

struct Case {
    name: &'static str,
    nodes: Vec<Node>,
    before: Vec<Route>,
    after: Vec<Route>,
    records_addresses: bool,
    untouched: Vec<&'static str>,
}

const IPS_1: &[&str] = &["10.0.1.1"];
const IPS_2: &[&str] = &["10.0.2.1"];
const IPS_3: &[&str] = &["10.0.3.1", "fd00::3"];
const IPS_4: &[&str] = &["10.0.4.1", "fd00::4"];

fn n1() -> Node {
    node("n1", &["10.120.0.0/24"], IPS_1)
}
fn n2() -> Node {
    node("n2", &["10.120.1.0/24"], IPS_2)
}
fn n3() -> Node {
    node("n3", &["10.120.0.0/24", "a00:100::/24"], IPS_3)
}
fn n4() -> Node {
    node("n4", &["10.120.1.0/24", "a00:200::/24"], IPS_4)
}

fn single() -> Vec<Route> {
    vec![route("10.120.0.0/24", "n1"), route("10.120.1.0/24", "n2")]
}
fn dual() -> Vec<Route> {
    vec![
        route("10.120.0.0/24", "n3"),
        route("a00:100::/24", "n3"),
        route("10.120.1.0/24", "n4"),
        route("a00:200::/24", "n4"),
    ]
}

/// The same routes with addresses recorded, as the node has them unless said otherwise.
fn recorded(routes: Vec<Route>, of: impl Fn(&str) -> &'static [&'static str]) -> Vec<Route> {
    routes
        .into_iter()
        .map(|route| {
            let RouteTarget::Node(name) = &route.target else {
                panic!("only for routes to nodes");
            };
            let recorded = Some(addresses(of(name)));
            Route {
                target_addresses: recorded,
                ..route
            }
        })
        .collect()
}

fn current(name: &str) -> &'static [&'static str] {
    match name {
        "n1" => IPS_1,
        "n2" => IPS_2,
        "n3" => IPS_3,
        _ => IPS_4,
    }
}

fn with(mut routes: Vec<Route>, more: &[Route]) -> Vec<Route> {
    routes.extend_from_slice(more);
    routes
}

fn blackhole(destination: &str) -> Route {
    Route {
        blackhole: true,
        ..route(destination, "")
    }
}

fn case(name: &'static str, nodes: Vec<Node>, before: Vec<Route>, after: Vec<Route>) -> Case {
    let records_addresses = before.iter().any(|route| route.target_addresses.is_some());
    Case {
        name,
        nodes,
        before,
        after,
        records_addresses,
        untouched: Vec::new(),
    }
}

fn cases() -> Vec<Case> {
    let pair = || vec![n1(), n2()];
    let both = || vec![n3(), n4()];
    let old = |name: &str| -> &'static [&'static str] {
        match name {
            "n3" => &["10.0.13.1", "fd00::13"],
            _ => &["10.0.14.1", "fd00::14"],
        }
    };
    let moved = |name: &str| -> &'static [&'static str] {
        match name {
            "n1" => &["10.0.1.2"],
            _ => &["10.0.2.2"],
        }
    };
    let crossed = vec![
        route("10.120.0.0/24", "n4"),
        route("a00:100::/24", "n4"),
        route("10.120.1.0/24", "n3"),
        route("a00:200::/24", "n3"),
    ];
    let strangers = [
        route("10.120.2.0/24", "node-x"),
        route("a00:300::/24", "node-y"),
    ];
    let extra = [
        route("10.120.2.0/24", "node-3"),
        route("10.120.3.0/24", "node-4"),
    ];
    let no_cidr = node("n2", &[], IPS_2);
    let outside = || with(single(), &[blackhole("10.1.2.0/24")]);
    vec![
        case(
            "no addresses recorded",
            both(),
            recorded(dual(), |_| &[]),
            recorded(dual(), current),
        ),
        case(
            "addresses changed",
            both(),
            recorded(dual(), old),
            recorded(dual(), current),
        ),
        case("dual, none", both(), vec![], dual()),
        case("dual, all", both(), dual(), dual()),
        case("dual, wrong", both(), crossed, dual()),
        case(
            "dual, some",
            both(),
            vec![route("10.120.0.0/24", "n3"), route("a00:200::/24", "n4")],
            dual(),
        ),
        case("dual, too many", both(), with(dual(), &strangers), dual()),
        case("single, all", pair(), single(), single()),
        case(
            "single, address changed",
            pair(),
            recorded(single(), moved),
            recorded(single(), current),
        ),
        case("single, one", pair(), single()[..1].to_vec(), single()),
        case("single, none", pair(), vec![], single()),
        case("single, too many", pair(), with(single(), &extra), single()),
        case(
            "single, one wrong",
            pair(),
            with(single()[..1].to_vec(), &extra[..1]),
            single(),
        ),
        Case {
            untouched: vec!["n2"],
            ..case(
                "no range",
                vec![n1(), no_cidr],
                vec![],
                single()[..1].to_vec(),
            )
        },
        case(
            "blackhole in range",
            pair(),
            with(single(), &[blackhole("10.120.2.0/24")]),
            single(),
        ),
        case("blackhole out of range", pair(), outside(), outside()),
    ]
}

fn policy(semantics: Semantics) -> Policy {
    Policy {
        semantics,
        unmarked: Unmarked::Claim,
        ..Policy::new(["10.120.0.0/16".parse().unwrap(), "a00::/8".parse().unwrap()])
    }
}

fn check(case: &Case, semantics: Semantics) {
    let context = format!("{} by {semantics:?} rules", case.name);
    let policy = policy(semantics);
    let nodes = NodeList::complete(case.nodes.clone());
    let plan = weft_routes::plan(&nodes, &case.before, &policy);
    let (table, failed) = carry_out(&plan, &case.before, case.records_addresses);
    assert_eq!(essence(&table), essence(&case.after), "{context}");
    assert_eq!(failed, [] as [usize; 0], "{context}");

    let changes = plan.conditions(&nodes, &policy, |_| true);
    let said: Vec<_> = changes
        .iter()
        .map(|change| (change.node.to_string(), change.reason))
        .collect();
    let expected: Vec<_> = case
        .nodes
        .iter()
        .map(|node| node.name.to_string())
        .filter(|name| !case.untouched.contains(&name.as_str()))
        .map(|name| (name, Reason::RouteCreated))
        .collect();
    assert_eq!(said, expected, "{context}");

    let again = weft_routes::plan(&nodes, &table, &policy);
    assert!(again.is_empty(), "{context}: {again}");
}

#[test]
fn upstreams_cases_come_out_as_upstream_says_by_its_rules() {
    for case in cases() {
        check(&case, Semantics::Upstream);
    }
}

#[test]
fn upstreams_cases_come_out_as_upstream_says_by_our_rules() {
    for case in cases() {
        check(&case, Semantics::Own);
    }
}

#[test]
fn a_failed_create_makes_only_its_own_node_unavailable() {
    for semantics in [Semantics::Upstream, Semantics::Own] {
        let policy = policy(semantics);
        let nodes = NodeList::complete([n3(), n4()]);
        let plan = weft_routes::plan(&nodes, &[], &policy);
        let changes = plan.conditions(&nodes, &policy, |step| step != 0);
        let failing = plan.steps[0].node().unwrap().clone();
        for change in changes {
            let expected = if change.node == failing {
                Reason::NoRouteCreated
            } else {
                Reason::RouteCreated
            };
            assert_eq!(change.reason, expected, "{semantics:?}: {}", change.node);
        }
    }
}

#[test]
fn a_node_that_lost_its_range_while_a_route_names_it_is_unavailable() {
    let nodes = NodeList::complete([node("n1", &[], IPS_1)]);
    for semantics in [Semantics::Upstream, Semantics::Own] {
        let policy = policy(semantics);
        let plan = weft_routes::plan(&nodes, &single()[..1], &policy);
        let changes = plan.conditions(&nodes, &policy, |_| true);
        assert_eq!(changes.len(), 1, "{semantics:?}");
        assert_eq!(changes[0].reason, Reason::NoRouteCreated, "{semantics:?}");
    }
}

#[test]
fn a_repeated_range_is_created_twice_by_upstreams_rules_and_once_by_ours() {
    let repeated = node("n4", &["10.120.1.0/24", "10.120.1.0/24"], IPS_4);
    let nodes = NodeList::complete([repeated]);
    for (semantics, creates, failures) in [(Semantics::Upstream, 2, 1), (Semantics::Own, 1, 0)] {
        let policy = policy(semantics);
        let plan = weft_routes::plan(&nodes, &[], &policy);
        assert_eq!(plan.counts().0, creates, "{semantics:?}");
        let (table, failed) = carry_out(&plan, &[], false);
        assert_eq!(table.len(), 1);
        assert_eq!(failed.len(), failures);
        let changes = plan.conditions(&nodes, &policy, |step| !failed.contains(&step));
        assert_eq!(changes[0].reason, Reason::RouteCreated, "{semantics:?}");
    }
}

#[test]
fn a_blackhole_that_names_its_node_heals_in_two_passes_by_upstreams_rules_and_one_by_ours() {
    let dead = Route {
        blackhole: true,
        ..route("10.120.0.0/24", "n1")
    };
    for (semantics, expected) in [(Semantics::Upstream, 0), (Semantics::Own, 1)] {
        let policy = policy(semantics);
        let first = plan([n1()], std::slice::from_ref(&dead), &policy);
        let (table, _) = carry_out(&first, std::slice::from_ref(&dead), false);
        assert_eq!(table.len(), expected, "{semantics:?}");
        let (table, _) = carry_out(&plan([n1()], &table, &policy), &table, false);
        assert_eq!(essence(&table), essence(&single()[..1]), "{semantics:?}");
    }
}

#[test]
fn routes_with_recorded_addresses_wait_for_all_deletes_by_upstreams_rules() {
    let policy = policy(Semantics::Upstream);
    let first_records = recorded(single(), current);
    assert!(plan([n1(), n2()], &first_records, &policy).deletes_first);
    assert!(!plan([n1(), n2()], &single(), &policy).deletes_first);
    assert!(!plan([n1(), n2()], &[], &policy).deletes_first);
}

#[test]
fn upstreams_responsibility_is_the_first_or_last_address_in_the_range() {
    for (range, route_cidr, deleted) in [
        ("10.244.0.0/16", "10.244.0.0/24", true),
        ("10.244.0.0/16", "10.244.10.0/24", true),
        ("10.244.0.0/16", "10.244.255.0/24", true),
        ("10.244.0.0/16", "10.224.0.0/24", false),
        ("10.244.0.0/16", "10.0.10.0/24", false),
        ("10.244.0.0/16", "10.255.255.0/24", false),
        ("10.244.0.0/14", "10.244.0.0/24", true),
        ("10.244.0.0/14", "10.247.255.0/24", true),
        ("10.244.0.0/14", "10.248.0.0/24", false),
        ("10.244.0.0/14", "10.243.255.0/24", false),
        ("a00:100::/10", "a00:100::/24", true),
        ("a00:100::/10", "b00:100::/24", false),
        // Around the whole range, and over one end of it.
        ("10.244.0.0/16", "10.0.0.0/8", false),
        ("10.244.128.0/17", "10.244.0.0/16", true),
        ("10.244.0.0/16", "nonsense", false),
    ] {
        let policy = Policy::upstream([range.parse().unwrap()]);
        let plan = plan([], &[route(route_cidr, "gone")], &policy);
        assert_eq!(plan.counts().2 == 1, deleted, "{route_cidr} in {range}");
    }
}

#[test]
fn by_our_rules_a_range_that_moves_is_one_step() {
    let before = [route("10.120.0.0/24", "old")];
    let plan = plan([n1()], &before, &policy(Semantics::Own));
    assert_eq!(plan.counts(), (0, 1, 0), "{plan}");
}
