//! Packets traced through the rules have the outcome that a model of Services without any rules
//! predicts.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use fastrand::Rng;
use serde_json::{Value, json};
use weft_model::{IpFamily, Protocol};
use weft_proxy::{LocalDetector, NodePortTail, Settings};
use weft_ruleset::{
    ChainName, Ruleset,
    trace::{Action, Entry, Outcome, Packet, Step, Verdict},
};
use weft_testkit::cluster::{NODE, RandomCluster};

use crate::world::{OPTIONS, World};

mod model;

use model::{Fates, expected};

/// Sums up what can happen; the same fate may come about in several ways.
fn fates(outcomes: &[Outcome]) -> Fates {
    let mut fates = Fates::new();
    for outcome in outcomes {
        assert!(outcome.is_certain(), "{outcome}");
        let fate = (outcome.verdict, outcome.masqueraded);
        *fates.entry(fate).or_default() += outcome.probability;
    }
    fates
}

/// Alike but for what the kernel's 31 bits of probability cannot tell.
fn alike(left: &Fates, right: &Fates) -> bool {
    left.len() == right.len()
        && left.iter().all(|(fate, probability)| {
            right
                .get(fate)
                .is_some_and(|other| (other - probability).abs() < 1e-6)
        })
}

fn address(family: IpFamily, four: &str, six: &str) -> IpAddr {
    match family {
        IpFamily::V4 => four.parse().unwrap(),
        IpFamily::V6 => six.parse().unwrap(),
    }
}

/// This node's addresses: its own, a bridge's that an endpoint may bear too, at times an external.
fn own_addresses(family: IpFamily, rng: &mut Rng) -> BTreeSet<IpAddr> {
    let mut own = BTreeSet::from([
        address(family, "192.168.0.2", "fd00:192::2"),
        address(family, "10.244.0.1", "fd00:10:244::1"),
    ]);
    if rng.bool() {
        own.insert(address(family, "198.51.100.7", "2001:db8::7"));
    }
    own
}

fn settings(family: IpFamily, rng: &mut Rng) -> Settings {
    let pods = match family {
        IpFamily::V4 => "10.244.0.0/16",
        IpFamily::V6 => "fd00:10:244::/48",
    };
    let node_ip = address(family, "192.168.0.2", "fd00:192::2");
    let detectors = [
        Some(LocalDetector::Network(pods.parse().unwrap())),
        Some(LocalDetector::Network(pods.parse().unwrap())),
        Some(LocalDetector::Bridge("cni0".into())),
        Some(LocalDetector::InterfacePrefix("veth".into())),
        None,
    ];
    let loopback = address(family, "127.0.0.1", "::1");
    Settings {
        family,
        masquerade_all: rng.u8(0..4) == 0,
        masquerade_bit: 14,
        local_detector: rng.choice(detectors).unwrap(),
        // Random source ranges contain the second.
        node_ip: if rng.bool() {
            node_ip
        } else {
            address(family, "203.0.113.9", "2001:db8:1::9")
        },
        node_port_tail: if rng.bool() {
            NodePortTail::AnyLocal
        } else {
            NodePortTail::Addresses(vec![node_ip, loopback])
        },
        localhost_node_ports: family == IpFamily::V4 && rng.bool(),
        external_ips: true,
        loopback: weft_proxy::LoopbackNodePorts::Untouched,
        service_networks: Vec::new(),
    }
}

/// Those who may send: pods, of which some are endpoints themselves, the outside, this node.
fn senders(family: IpFamily, own: &BTreeSet<IpAddr>) -> Vec<(IpAddr, Entry)> {
    let arriving = |device: &str| Entry::Arriving {
        device: Some(device.to_owned()),
    };
    let mut senders = vec![
        (
            address(family, "192.0.2.99", "2001:db8:9::9"),
            arriving("eth0"),
        ),
        (
            address(family, "203.0.113.5", "2001:db8:1::5"),
            arriving("eth0"),
        ),
        (
            address(family, "203.0.113.200", "2001:db8:3::5"),
            arriving("eth0"),
        ),
        (
            address(family, "10.244.3.3", "fd00:10:244:3::3"),
            arriving("eth0"),
        ),
        (address(family, "127.0.0.1", "::1"), Entry::Sent),
    ];
    for number in [7, 12, 20, 33] {
        let pod = address(
            family,
            &format!("10.244.0.{number}"),
            &format!("fd00:10:244::{number:x}"),
        );
        senders.push((pod, arriving("veth4")));
        senders.push((pod, arriving("cni0")));
    }
    senders.extend(own.iter().map(|address| (*address, Entry::Sent)));
    senders
}

/// Every address and port that a Service answers on, and some that none does.
fn targets(world: &World, own: &BTreeSet<IpAddr>) -> BTreeSet<(SocketAddr, Protocol)> {
    let family = world.settings.family;
    let mut own = own.clone();
    own.insert(address(family, "127.0.0.1", "::1"));
    let unrelated = address(family, "192.0.2.250", "2001:db8:ff::1");
    let mut targets = BTreeSet::from([(SocketAddr::new(unrelated, 80), Protocol::Tcp)]);
    for port in world.desired.values().flat_map(|service| &service.ports) {
        let frontend = &port.frontend;
        let external = frontend.external_ips.iter();
        let external = external.chain(&frontend.load_balancer_ips).copied();
        for address in external.chain([frontend.cluster_ip]) {
            targets.insert((SocketAddr::new(address, frontend.port), frontend.protocol));
            targets.insert((SocketAddr::new(address, 7), frontend.protocol));
        }
        for address in own.iter().chain([&unrelated]) {
            if let Some(port) = frontend.node_port {
                targets.insert((SocketAddr::new(*address, port), frontend.protocol));
            }
        }
    }
    targets
}

/// An endpoint and its chain in the rules.
fn chosen(outcomes: &[Outcome]) -> Option<(ChainName, SocketAddr)> {
    let steps = outcomes.iter().rev().flat_map(|outcome| &outcome.path);
    steps.into_iter().find_map(|step| match step {
        Step::Rule {
            action: Action::Jump { chain, endpoint },
            ..
        } => endpoint.map(|endpoint| (*chain, endpoint)),
        _ => None,
    })
}

fn cluster(seed: u64, family: IpFamily, rng: &mut Rng) -> World {
    let mut cluster = RandomCluster::new(seed);
    let mut world = World::new(family, OPTIONS);
    world.settings = settings(family, rng);
    for _ in 0..40 {
        for edit in cluster.edit() {
            world.edit(&edit);
        }
        if rng.u8(0..4) == 0 {
            world.sync();
        }
    }
    for object in guarded(rng) {
        world.put(&object);
    }
    world.sync();
    world
}

/// A Service with source ranges and endpoints, which few random ones have together.
fn guarded(rng: &mut Rng) -> [Value; 3] {
    let policy = rng.choice(["Local", "Cluster"]).unwrap();
    let endpoints = |prefix: &str| -> Value {
        let endpoint = |number: u8| {
            let node = if number.is_multiple_of(2) {
                NODE
            } else {
                "node-1"
            };
            json!({"addresses": [format!("{prefix}{number}")], "nodeName": node})
        };
        (5..5 + rng.u8(1..4)).map(endpoint).collect()
    };
    let slice = |family: &str, endpoints: Value| {
        json!({"kind": "EndpointSlice",
            "metadata": {"namespace": "fixed", "name": family,
                         "labels": {"kubernetes.io/service-name": "guarded"}},
            "addressType": family, "endpoints": endpoints, "ports": [{"port": 8080, "name": ""}]})
    };
    let [four, six] = ["10.244.0.", "fd00:10:244::"].map(endpoints);
    [
        json!({"kind": "Service", "metadata": {"namespace": "fixed", "name": "guarded"},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.96.9.9",
                "clusterIPs": ["10.96.9.9", "fd00:10:96::999"], "ipFamilies": ["IPv4", "IPv6"],
                "externalTrafficPolicy": policy,
                "loadBalancerSourceRanges": ["203.0.113.0/25", "2001:db8:1::/48"],
                "ports": [{"port": 80, "nodePort": 32000}]},
            "status": {"loadBalancer": {"ingress": [
                {"ip": "192.0.2.251"}, {"ip": "192.0.2.252"}, {"ip": "2001:db8:2::999"}]}}}),
        slice("IPv4", four),
        slice("IPv6", six),
    ]
}

/// Number of occurrences of each interesting case: a test without any would show nothing.
#[derive(Debug, Default)]
struct Coverage(BTreeMap<&'static str, usize>);

impl Coverage {
    fn note(&mut self, fates: &Fates, affinity: bool) {
        let mut count = |what, holds| *self.0.entry(what).or_default() += usize::from(holds);
        let any = |fate: fn(Verdict, bool) -> bool| fates.keys().any(|(v, m)| fate(*v, *m));
        count("accepted", any(|v, _| v == Verdict::Accepted));
        count("rejected", any(|v, _| v == Verdict::Rejected));
        count("dropped", any(|v, _| v == Verdict::Dropped));
        count(
            "translated",
            any(|v, m| matches!(v, Verdict::Dnat(_)) && !m),
        );
        count("masqueraded", any(|_, m| m));
        let mixed = any(|_, m| m) && any(|v, m| matches!(v, Verdict::Dnat(_)) && !m);
        count("hairpin and other endpoints", mixed);
        count("three or more endpoints", fates.len() > 2);
        count("held by affinity", affinity);
    }
}

fn check(world: &World, rules: &Ruleset, packet: &Packet, coverage: &mut Coverage) {
    let Some(expected_fates) = expected(world, packet, None) else {
        // Two Services claim one address: the order is not defined.
        return;
    };
    let outcomes = rules.trace(packet);
    let real = fates(&outcomes);
    let told = || {
        let ways: Vec<String> = outcomes.iter().map(ToString::to_string).collect();
        ways.join("\n")
    };
    assert!(
        alike(&real, &expected_fates),
        "{packet:?}\nexpected {expected_fates:?}\n{:?}\n{}",
        world.settings,
        told()
    );
    coverage.note(&real, false);
    // The client was here before: it gets what it got, if the Service wants that.
    let Some((chain, endpoint)) = chosen(&outcomes) else {
        return;
    };
    let again = Packet {
        affinity: Some(chain),
        ..packet.clone()
    };
    let expected_fates = expected(world, packet, Some(endpoint)).unwrap();
    let held = fates(&rules.trace(&again));
    assert!(alike(&held, &expected_fates), "{again:?}: {held:?}");
    coverage.note(&held, held.len() == 1 && real.len() > 1);
}

#[test]
fn a_packets_fate_in_the_rules_is_what_its_service_says() {
    let mut coverage = Coverage::default();
    for seed in 0..12 {
        for family in IpFamily::ALL {
            let mut rng = Rng::with_seed(seed);
            let mut world = cluster(seed, family, &mut rng);
            let own = own_addresses(family, &mut rng);
            let rules = world.rules();
            for (target, protocol) in targets(&world, &own) {
                // A load balancer's own address is that of a node which asks it.
                let itself = Entry::Arriving {
                    device: Some("eth0".to_owned()),
                };
                let mut senders = senders(family, &own);
                senders.push((target.ip(), itself));
                for (source, entry) in senders {
                    let packet = Packet {
                        source,
                        destination: target.ip(),
                        protocol,
                        destination_port: target.port(),
                        entry,
                        mark: 0,
                        local_addresses: own.clone(),
                        affinity: None,
                    };
                    check(&world, &rules, &packet, &mut coverage);
                }
            }
        }
    }
    assert!(coverage.0.values().all(|count| *count > 20), "{coverage:?}");
}
