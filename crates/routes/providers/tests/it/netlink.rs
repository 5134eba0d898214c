//! Real routes in real kernels: three nodes on one link, each with a pod behind it.

use std::{
    net::{IpAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use weft_model::IpFamily;
use weft_providers::{
    Provider as _,
    netlink::{Gateways, HostWarning, NetlinkSettings},
};
use weft_routes::{Mark, NextHop, ProviderError, Route};
use weft_testkit::lab::{self, pod_addresses};

mod network;

use network::{Network, Node, address, create, delete, of, option, range, replace};

/// Ours, by destination: the gateway, or `nowhere`.
fn ours(node: Node<'_>) -> Vec<String> {
    let mut texts: Vec<String> = node
        .list()
        .into_iter()
        .filter(|route| route.mark == Mark::Ours)
        .map(|route| text(&route))
        .collect();
    texts.sort();
    texts
}

fn text(route: &Route) -> String {
    match (&route.next_hop, route.blackhole) {
        (Some(NextHop::Address(gateway)), false) => format!("{} {gateway}", route.destination),
        _ => format!("{} nowhere", route.destination),
    }
}

fn listed(node: Node<'_>, destination: &str, mark: Mark) -> Route {
    let routes = node.list();
    let mut fitting = routes
        .iter()
        .filter(|route| route.destination.text() == destination && route.mark == mark);
    let found = fitting.next().cloned();
    assert_eq!(fitting.count(), 0, "{destination} twice");
    found.unwrap_or_else(|| panic!("no {destination} of {mark:?} among {routes:?}"))
}

#[test]
fn pods_of_three_nodes_reach_each_other_over_both_families() {
    lab::inside(|lab| {
        let network = Network::new(lab);
        assert_eq!(network.pods.talk(1, 2), [false, false], "without routes");
        network.route_everything();
        for (from, to) in [(1, 2), (2, 1), (1, 3), (3, 2)] {
            assert_eq!(network.pods.talk(from, to), [true, true], "{from} to {to}");
        }
        assert_eq!(
            ours(network.node(1)),
            [
                "10.244.2.0/24 10.0.0.2",
                "10.244.3.0/24 10.0.0.3",
                "fd00:10:0:2::/64 fd00::2",
                "fd00:10:0:3::/64 fd00::3",
            ]
        );
        let table = network.node(1).ip("-6 route show proto 201");
        assert!(
            table.contains("fd00:10:0:2::/64 via fd00::2 dev eth0 metric 201"),
            "{table}"
        );
    });
}

#[test]
fn a_foreign_route_survives_and_is_reported() {
    lab::inside(|lab| {
        let network = Network::new(lab);
        let node = network.node(1);
        for (family, prefix, gateway) in [
            (IpFamily::V4, "10.244.2.0/24", "10.0.0.3"),
            (IpFamily::V6, "fd00:10:0:2::/64", "fd00::3"),
        ] {
            let second: IpAddr = address(2, family);
            let show = format!("{} route show {prefix}", option(family));
            // With our own metric there is room for one only.
            node.ip(&format!("route add {prefix} via {gateway} metric 201"));
            let before = node.ip(&show);
            let foreign = listed(node, prefix, Mark::Foreign);
            assert_eq!(text(&foreign), format!("{prefix} {gateway}"));
            let step = create(range(2, family), second);
            assert_eq!(node.apply(&step), Err(ProviderError::Conflict));
            // Taken for ours, since it was when it was listed.
            let mut believed = foreign.clone();
            believed.mark = Mark::Ours;
            let step = replace(&believed, second);
            assert_eq!(node.apply(&step), Err(ProviderError::Conflict));
            let step = delete(&believed);
            assert_eq!(node.apply(&step), Err(ProviderError::Gone));
            assert_eq!(node.ip(&show), before);

            // With another metric both stay.
            node.ip(&format!("route del {prefix} metric 201"));
            node.ip(&format!("route add {prefix} via {gateway} metric 7"));
            node.apply(&create(range(2, family), second)).unwrap();
            let mine = listed(node, prefix, Mark::Ours);
            assert_eq!(
                listed(node, prefix, Mark::Foreign).next_hop,
                foreign.next_hop
            );
            node.apply(&delete(&mine)).unwrap();
            listed(node, prefix, Mark::Foreign);
        }
    });
}

#[test]
fn routes_that_a_link_took_along_are_missed_and_made_again() {
    lab::inside(|lab| {
        let network = Network::new(lab);
        network.route_everything();
        let node = network.node(1);
        let full = ours(node);
        assert_eq!(full.len(), 4);
        for round in ["first", "second"] {
            node.ip("link set eth0 down");
            node.changes();
            let left = ours(node);
            assert_eq!(left, [""; 0], "{round}");
            let missing = create(range(2, IpFamily::V4), address(2, IpFamily::V4));
            let refused = node.apply(&missing).unwrap_err();
            assert_eq!(refused.label(), "not_ready", "{refused}");
            node.ip("link set eth0 up");
            // The kernel drops these with the link, and gives only IPv4 addresses back.
            node.ip("address replace fd00::1/64 dev eth0 nodad");
            node.changes();
            network.route_from(1);
            assert_eq!(ours(node), full, "{round}");
            assert_eq!(network.pods.talk(1, 2), [true, true], "{round}");
        }
    });
}

#[test]
fn stale_routes_of_ours_are_listed_and_deleted_and_a_missing_one_is_gone() {
    lab::inside(|lab| {
        let network = Network::new(lab);
        let node = network.node(1);
        for command in [
            "route add 10.244.8.0/24 via 10.0.0.3 proto 201",
            "route add 10.244.9.0/24 via 10.0.0.3 proto 201 metric 201",
            "route add 10.244.9.0/24 via 10.0.0.3 proto 201 metric 500",
            "route add blackhole 10.244.10.0/24 proto 201 metric 201",
            "route add 192.0.2.0/24 via 10.0.0.3 proto 201 metric 201",
            "-6 route add fd00:10:0:9::/64 via fd00::3 proto 201",
            "-6 route add unreachable fd00:10:0:a::/64 proto 201",
            "route add 10.244.9.0/24 via 10.0.0.3 metric 9",
        ] {
            node.ip(command);
        }
        assert_eq!(
            ours(node),
            [
                "10.244.10.0/24 nowhere",
                "10.244.8.0/24 10.0.0.3",
                "10.244.9.0/24 10.0.0.3",
                "10.244.9.0/24 10.0.0.3",
                "192.0.2.0/24 10.0.0.3",
                "fd00:10:0:9::/64 fd00::3",
                "fd00:10:0:a::/64 nowhere",
            ]
        );
        let stale = node.list().into_iter().filter(|r| r.mark == Mark::Ours);
        let stale: Vec<Route> = stale.collect();
        for route in &stale {
            node.apply(&delete(route)).unwrap();
        }
        assert_eq!(ours(node), [""; 0]);
        for route in &stale {
            assert_eq!(node.apply(&delete(route)), Err(ProviderError::Gone));
        }
        let kept = node.ip("route show 10.244.9.0/24");
        assert_eq!(kept.lines().count(), 1, "{kept}");
        assert!(kept.contains("via 10.0.0.3 dev eth0 metric 9"), "{kept}");
    });
}

#[test]
fn a_gateway_has_to_be_on_the_link_or_declared_to_be() {
    lab::inside(|lab| {
        let mut network = Network::new(lab);
        let node = network.node(1);
        for (family, far) in [(IpFamily::V4, "172.16.0.2"), (IpFamily::V6, "fd99::2")] {
            let step = create(range(2, family), far.parse().unwrap());
            let nowhere = node.apply(&step).unwrap_err();
            assert_eq!(nowhere.label(), "not_ready", "{nowhere}");
            let gateway = address(3, family);
            node.namespace.default_route(gateway);
            let behind = node.apply(&step).unwrap_err();
            assert_eq!(
                behind.to_string(),
                format!(
                    "node is not ready to be routed to: {far} is not on a link of this machine, \
                     but behind {gateway}"
                )
            );
            let own = create(range(2, family), address(1, family));
            assert_eq!(node.apply(&own).unwrap_err().label(), "not_ready");
        }
        let no_default = node.ip("route show proto 201");
        assert_eq!(no_default, "");

        node.ip("-6 route del default");

        // The second node has another address, which shares no network with the first.
        network.node(2).ip("address add 172.16.0.2/32 dev eth0");
        network.node(2).ip("route add 10.0.0.1/32 dev eth0");
        let interface = "eth0".to_owned();
        let settings = NetlinkSettings {
            gateways: Gateways::OnLink { interface },
            ..Network::settings()
        };
        network.open(1, settings);
        let step = create(range(2, IpFamily::V4), "172.16.0.2".parse().unwrap());
        network.node(1).apply(&step).unwrap();
        let back = create(range(1, IpFamily::V4), address(1, IpFamily::V4));
        network.node(2).apply(&back).unwrap();
        assert_eq!(network.pods.talk(1, 2), [true, false]);

        let interface = "wg7".to_owned();
        let settings = NetlinkSettings {
            gateways: Gateways::OnLink { interface },
            ..Network::settings()
        };
        network.open(1, settings);
        let refused = network.node(1).apply(&step).unwrap_err();
        assert_eq!(refused.label(), "not_ready", "{refused}");
    });
}

#[test]
fn a_range_that_moves_is_never_without_a_route_and_never_has_two() {
    lab::inside(|lab| {
        let network = Network::new(lab);
        let node = network.node(1);
        for family in IpFamily::ALL {
            let [second, third] = [2, 3].map(|number| address(number, family));
            node.apply(&create(range(9, family), second)).unwrap();
            let target = of(pod_addresses(9), family);
            let done = AtomicBool::new(false);
            let (looked, lost) = thread::scope(|scope| {
                let look = scope.spawn(|| node.namespace.run(|| look_up(target, &done)));
                let destination = range(9, family).to_string();
                for gateway in [third, second].into_iter().cycle().take(300) {
                    let old = listed(node, &destination, Mark::Ours);
                    node.apply(&replace(&old, gateway)).unwrap();
                    let new = listed(node, &destination, Mark::Ours);
                    assert_eq!(new.next_hop, Some(NextHop::Address(gateway)));
                }
                done.store(true, Ordering::Relaxed);
                look.join().unwrap()
            });
            assert!(looked > 300, "looked {looked} times only");
            assert_eq!(lost, 0, "of {looked} packets");
        }
    });
}

/// Asks for the route to an address as fast as possible: how often, and how often there was none.
fn look_up(target: IpAddr, done: &AtomicBool) -> (u64, u64) {
    let (mut looked, mut lost) = (0, 0);
    while !done.load(Ordering::Relaxed) {
        looked += 1;
        lost += u64::from(!has_route(target));
    }
    (looked, lost)
}

/// True if a packet to an address would be sent. Connecting a UDP socket looks up the route and
/// sends nothing.
fn has_route(target: IpAddr) -> bool {
    let any = if target.is_ipv4() { "0.0.0.0" } else { "::" };
    let any: IpAddr = any.parse().unwrap();
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.connect((target, 9)).is_ok()
}

#[test]
fn a_route_with_two_gateways_becomes_one_with_the_right_one() {
    lab::inside(|lab| {
        let network = Network::new(lab);
        let node = network.node(1);
        for (family, command) in [
            (
                IpFamily::V4,
                "route replace 10.244.2.0/24 proto 201 metric 201 nexthop via 10.0.0.2 nexthop via 10.0.0.3",
            ),
            (
                IpFamily::V6,
                "route append fd00:10:0:2::/64 via fd00::3 proto 201 metric 201",
            ),
        ] {
            let second = address(2, family);
            let destination = range(2, family).to_string();
            node.apply(&create(range(2, family), second)).unwrap();
            // Once more, as if it had been lost: still one gateway.
            node.apply(&create(range(2, family), second)).unwrap();
            assert!(!listed(node, &destination, Mark::Ours).blackhole);
            node.ip(command);
            let show = format!("{} route show {destination}", option(family));
            assert!(node.ip(&show).contains("nexthop"), "{}", node.ip(&show));
            let two = listed(node, &destination, Mark::Ours);
            assert!(two.blackhole);
            node.apply(&replace(&two, second)).unwrap();
            assert!(!node.ip(&show).contains("nexthop"), "{}", node.ip(&show));
            let one = listed(node, &destination, Mark::Ours);
            assert_eq!(one.next_hop, Some(NextHop::Address(second)));
        }
    });
}

#[test]
fn a_change_of_the_metric_moves_routes_when_they_are_replaced() {
    lab::inside(|lab| {
        let mut network = Network::new(lab);
        let [second, third] = [2, 3].map(|number| address(number, IpFamily::V4));
        let step = create(range(2, IpFamily::V4), second);
        network.node(1).apply(&step).unwrap();
        let metric = 500;
        network.open(
            1,
            NetlinkSettings {
                metric,
                ..Network::settings()
            },
        );
        let node = network.node(1);
        let old = listed(node, "10.244.2.0/24", Mark::Ours);
        node.apply(&replace(&old, third)).unwrap();
        let table = node.ip("route show 10.244.2.0/24");
        assert_eq!(table.lines().count(), 1, "{table}");
        let new = "via 10.0.0.3 dev eth0 proto 201 metric 500";
        assert!(table.contains(new), "{table}");
    });
}

#[test]
fn foreign_changes_are_reported_and_our_own_are_not() {
    lab::inside(|lab| {
        let network = Network::new(lab);
        let node = network.node(1);
        let second = address(2, IpFamily::V4);
        let step = create(range(2, IpFamily::V4), second);
        // What happened while the network was built.
        node.settles();
        node.apply(&step).unwrap();
        let route = listed(node, "10.244.2.0/24", Mark::Ours);
        node.apply(&delete(&route)).unwrap();
        node.apply(&step).unwrap();
        assert!(!node.changes_within(Duration::from_millis(600)));
        node.ip("route add 192.0.2.0/24 via 10.0.0.3");
        assert!(!node.changes_within(Duration::from_millis(600)));

        for command in [
            "route del 10.244.2.0/24",
            "route add 10.244.2.0/24 via 10.0.0.3",
            "route del 10.244.2.0/24",
            "address add 10.0.0.77/24 dev eth0",
            "address del 10.0.0.77/24 dev eth0",
            "link set eth0 down",
            "link set eth0 up",
        ] {
            node.ip(command);
            node.changes();
        }
        // Pods come and go without a notification.
        node.settles();
        node.ip("link add pod7 type veth peer name far7");
        node.ip("link set pod7 up");
        node.ip("address add 10.244.1.77/32 dev pod7");
        node.ip("route add 10.244.1.78/32 dev pod7");
        node.ip("link del pod7");
        assert!(!node.changes_within(Duration::from_millis(600)));

        // A cut on the other side of the link is as good as one here.
        lab.program("ip", &["link", "set", "br0p0", "down"]);
        node.changes();
    });
}

#[test]
fn packets_to_pods_of_no_node_are_refused_if_wanted_and_a_flush_leaves_nothing() {
    lab::inside(|lab| {
        let mut network = Network::new(lab);
        let settings = NetlinkSettings {
            fallback: true,
            ..Network::settings()
        };
        let third = address(3, IpFamily::V4);
        network.open(1, settings);
        network.node(1).namespace.default_route(third);
        network
            .node(1)
            .namespace
            .default_route(address(3, IpFamily::V6));
        let refused = |network: &Network, target: &str| {
            let target = target.parse().unwrap();
            network.node(1).namespace.run(|| !has_route(target))
        };
        for target in ["10.244.9.9", "fd00:10:0:9::9"] {
            assert!(!refused(&network, target), "goes to the default gateway");
        }
        for _ in 0..2 {
            network.node(1).prepare();
            for target in ["10.244.9.9", "fd00:10:0:9::9"] {
                assert!(refused(&network, target), "{target}");
            }
        }
        assert_eq!(ours(network.node(1)), [""; 0], "it is not in the list");
        let step = create(range(2, IpFamily::V4), address(2, IpFamily::V4));
        network.node(1).apply(&step).unwrap();
        assert!(!refused(&network, "10.244.2.9"), "a node takes it");

        network.open(1, Network::settings());
        network.node(1).prepare();
        assert!(!refused(&network, "10.244.9.9"), "switched off");
        assert_eq!(network.node(1).flush(), 1);
        assert_eq!(network.node(1).flush(), 0);
        assert_eq!(network.node(1).ip("route show proto 201"), "");
    });
}

#[test]
fn settings_of_the_machine_that_stop_packets_are_warned_of() {
    lab::inside(|lab| {
        let network = Network::new(lab);
        let warnings = || network.node(1).warnings();
        assert_eq!(warnings(), []);
        network.pods.node(1).sysctl("net/ipv4/ip_forward", "0");
        network
            .pods
            .node(1)
            .sysctl("net/ipv6/conf/all/forwarding", "0");
        assert_eq!(
            warnings(),
            [
                HostWarning::NotForwarding(IpFamily::V4),
                HostWarning::NotForwarding(IpFamily::V6)
            ]
        );
        network.pods.node(1).sysctl("net/ipv4/ip_forward", "1");
        network
            .pods
            .node(1)
            .sysctl("net/ipv6/conf/all/forwarding", "1");
        network
            .pods
            .node(1)
            .sysctl("net/ipv4/conf/all/rp_filter", "1");
        assert_eq!(warnings(), [], "there is one network only");
        let node = network.node(1);
        node.ip("link add other0 type bridge");
        node.ip("address add 192.0.2.1/24 dev other0");
        network
            .pods
            .node(1)
            .sysctl("net/ipv4/conf/other0/rp_filter", "2");
        let interface = "eth0".to_owned();
        let strict = HostWarning::StrictReversePath { interface };
        let text = strict.to_string();
        assert!(text.starts_with("net/ipv4/conf/eth0/rp_filter"), "{text}");
        assert_eq!(warnings(), [strict]);
    });
}

#[test]
fn the_table_is_free_to_read_and_takes_addresses_of_both_families() {
    lab::inside(|lab| {
        let network = Network::new(lab);
        let provider = network.node(1).provider;
        assert_eq!(provider.name(), "netlink");
        let capabilities = provider.capabilities();
        assert!(capabilities.free_lists);
        assert_eq!(capabilities.families, IpFamily::ALL);
    });
}
