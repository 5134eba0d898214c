//! Text of a plan.

use weft_routes::{Mark, Policy};

use crate::world::{marked, node, plan, policy, route, via};

#[test]
fn a_plan_says_what_is_done_and_why_and_what_is_not() {
    let ours = |cidr, target, hop| marked(via(route(cidr, target), hop), Mark::Ours);
    let routes = [
        ours("10.120.1.0/24", "n1", "10.0.1.1"),
        ours("10.120.2.0/24", "n9", "10.0.9.1"),
        ours("10.120.3.0/24", "n8", "10.0.8.1"),
        via(route("10.120.77.0/24", ""), "10.0.0.254"),
    ];
    let nodes = [
        node("n1", &["10.120.1.0/24"], &["10.0.1.1"]),
        node("n2", &["10.120.2.0/24"], &["10.0.2.1"]),
        node("n4", &["10.120.4.0/24"], &["10.0.4.1"]),
        node("n5", &["10.120.500.0/24"], &["10.0.5.1"]),
    ];
    let policy = Policy {
        quota: Some(100),
        ..policy()
    };
    let expected = "\
routes: +1 ~1 -1 =1, 1 refused, 1 left alone
~ 10.120.2.0/24 via 10.0.2.1 (node n2), was 10.120.2.0/24 via 10.0.9.1 (node n9) [range moved]
+ 10.120.4.0/24 via 10.0.4.1 (node n4) [missing]
- 10.120.3.0/24 via 10.0.8.1 (node n8) [node is gone]
! 10.120.500.0/24 (node n5): not a CIDR
  10.120.77.0/24 via 10.0.0.254 [left alone: not ours]
quota: 4 of 100 routes afterwards
";
    assert_eq!(plan(nodes, &routes, &policy).to_string(), expected);
}
