//! Routes of address pool blocks, next to those of pod CIDRs.

use weft_routes::{
    Blocks, Cidr, Engine, LeftReason, Mark, Moment, Node, NodeList, Policy, RefusalReason, Route,
    RouteController as _, Timing,
};

use crate::world::{marked, node, plan, policy, route, steps, via};

fn holding(node: Node, blocks: &[&str]) -> Node {
    let blocks = blocks.iter().map(|block| block.parse().unwrap());
    Node {
        blocks: Blocks::known(blocks),
        ..node
    }
}

fn unknown(node: Node) -> Node {
    Node {
        blocks: Blocks::Unknown,
        ..node
    }
}

fn n1(cidrs: &[&str]) -> Node {
    node("n1", cidrs, &["10.0.0.1"])
}

fn ours(destination: &str, target: &str, hop: &str) -> Route {
    marked(via(route(destination, target), hop), Mark::Ours)
}

fn destinations(node: &Node) -> Vec<&str> {
    node.ranges().map(Cidr::text).collect()
}

#[test]
fn a_nodes_ranges_are_its_pod_cidrs_and_the_blocks_beyond_them() {
    let blocks = [
        "10.120.1.16/28",
        "10.120.7.16/28",
        "10.120.7.0/28",
        "10.120.7.20/32",
        "10.120.7.16/28",
    ];
    let node = holding(n1(&["10.120.1.0/24"]), &blocks);
    let expected = ["10.120.1.0/24", "10.120.7.0/28", "10.120.7.16/28"];
    assert_eq!(destinations(&node), expected);
    assert_eq!(
        destinations(&unknown(n1(&["10.120.1.0/24"]))),
        ["10.120.1.0/24"]
    );
}

#[test]
fn blocks_get_routes_and_lose_them_when_they_are_given_back() {
    let with = holding(n1(&["10.120.1.0/24"]), &["10.120.7.0/28"]);
    let made = plan([with], &[], &policy());
    assert_eq!(made.counts(), (2, 0, 0), "{made}");
    let table = [
        ours("10.120.1.0/24", "n1", "10.0.0.1"),
        ours("10.120.7.0/28", "n1", "10.0.0.1"),
    ];
    let without = holding(n1(&["10.120.1.0/24"]), &[]);
    let gone = plan([without], &table, &policy());
    assert_eq!(
        steps(&gone),
        ["- 10.120.7.0/28 via 10.0.0.1 (node n1) [node does not have the range]"]
    );
}

#[test]
fn a_block_that_moves_is_one_step() {
    let table = [ours("10.120.7.0/28", "n1", "10.0.0.1")];
    let nodes = [
        holding(n1(&[]), &[]),
        holding(node("n2", &[], &["10.0.0.2"]), &["10.120.7.0/28"]),
    ];
    let moved = plan(nodes, &table, &policy());
    assert_eq!(moved.counts(), (0, 1, 0), "{moved}");
}

#[test]
fn nothing_that_may_be_a_block_is_deleted_while_blocks_are_unknown() {
    let table = [
        ours("10.120.1.0/24", "n1", "10.0.0.1"),
        ours("10.120.7.0/28", "n1", "10.0.0.1"),
        ours("10.120.8.0/28", "gone", "10.0.0.9"),
    ];
    let nodes = [unknown(n1(&["10.120.1.0/24"]))];
    let careful = plan(nodes, &table, &policy());
    let expected = ["- 10.120.8.0/28 via 10.0.0.9 (node gone) [node is gone]"];
    assert_eq!(
        steps(&careful),
        expected,
        "whose node is gone leads nowhere"
    );
    assert_eq!(careful.left.len(), 1, "{careful}");
    assert_eq!(careful.left[0].reason, LeftReason::BlocksUnknown);
    // Without blocks the same table is cleaned up.
    let plain = plan([n1(&["10.120.1.0/24"])], &table, &policy());
    assert_eq!(plain.counts(), (0, 0, 2), "{plain}");
}

#[test]
fn a_node_of_blocks_alone_is_served_and_one_of_which_nothing_is_known_not_blamed() {
    let alone = plan([holding(n1(&[]), &["10.120.7.0/28"])], &[], &policy());
    assert_eq!((alone.counts().0, alone.refusals.len()), (1, 0), "{alone}");
    let nothing = plan([unknown(n1(&[]))], &[], &policy());
    assert_eq!(nothing.refusals, []);
    assert!(nothing.verdicts.is_empty());
    let certain = plan([holding(n1(&[]), &[])], &[], &policy());
    assert_eq!(certain.refusals[0].reason, RefusalReason::NoPodCidr);
}

#[test]
fn a_block_outside_the_cluster_range_is_not_refused_and_an_overlapping_one_is() {
    let elsewhere = holding(n1(&["10.120.1.0/24"]), &["192.168.0.0/28"]);
    let fine = plan([elsewhere], &[], &policy());
    assert_eq!((fine.counts().0, fine.refusals.len()), (1, 0), "{fine}");
    let nodes = [
        n1(&["10.120.1.0/24"]),
        holding(node("n2", &[], &["10.0.0.2"]), &["10.120.1.16/28"]),
    ];
    let clash = plan(nodes, &[], &policy());
    assert_eq!(clash.refusals.len(), 1, "{clash}");
    assert_eq!(&*clash.refusals[0].node, "n2");
}

#[test]
fn blocks_that_become_known_or_change_start_a_pass() {
    let base = n1(&["10.120.1.0/24"]);
    let mut engine = Engine::new(Policy::new(policy().cluster_cidrs), Timing::default(), 8, 1);
    let known = NodeList::complete([unknown(base.clone())]);
    engine.nodes_listed(known.nodes.into_values().collect(), Moment::START);
    let _list = engine.poll(Moment::START);
    engine.listed(Ok(Vec::new()), Moment::START);
    let _creates = engine.poll(Moment::START);
    let later = Moment::seconds(10);
    engine.node_applied(unknown(base.clone()), later);
    let idle = engine.wake(later);
    engine.node_applied(holding(base, &["10.120.7.0/28"]), later);
    let soon = engine.wake(later);
    assert!(soon < idle, "{soon:?} {idle:?}");
}
