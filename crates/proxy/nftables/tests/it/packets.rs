//! Real packets through the table, in a network of namespaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use serde_json::json;
use weft_host::nftables::Nftables as Connection;
use weft_model::{IpFamily, Protocol};
use weft_nftables::{Fate, HostKernel, TABLE, Watch, trace, trace_live};
use weft_proxy::{LocalDetector, NodePortTail, service_networks};
use weft_testkit::{
    exchange::{Conversation, PATIENCE, Reply, SILENCE, ask, serve},
    lab::{self, Lab},
    service_network::{
        FURTHER, SERVER_PORT,
        Sender::{self, Client, ClientAs, Node, PodA, PodB},
        at, cluster_ip, further, service, slice,
    },
};

use crate::world::written;

mod counters;
mod loopback;
mod network;
mod priority;
mod sctp;
mod selection;
mod shares;

use network::Network;

const BOTH: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
const EVERYWHERE: [&str; 3] = ["pod-a", "pod-b", "remote"];

/// A network for each family, one after the other.
fn networks(lab: &Lab) -> impl Iterator<Item = Network> {
    IpFamily::ALL.into_iter().map(|f| Network::new(lab, f))
}

fn answered(reply: Reply) -> (String, IpAddr) {
    match reply {
        Reply::From { server, seen } => (server, seen),
        other => panic!("no answer: {other:?}"),
    }
}

fn to(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

/// All servers that answer in this many tries.
fn servers(network: &Network, sender: Sender, front: SocketAddr, tries: usize) -> BTreeSet<String> {
    let one = |_| answered(network.ask(sender, front, Protocol::Tcp)).0;
    (0..tries).map(one).collect()
}

fn set_of(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn every_front_answers_pods_the_node_and_the_outside() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let more = json!({"type": "LoadBalancer", "balancer": at(family, "balancer"),
                              "externalIPs": [at(family, "external")]});
            network.program(&[
                service(family, "web", 10, &more),
                slice(family, "web", &EVERYWHERE),
            ]);
            let fronts = [
                to(cluster_ip(family, 10), 80),
                to(at(family, "external"), 80),
                to(at(family, "balancer"), 80),
                to(at(family, "node"), 30010),
                to(at(family, "gateway"), 30010),
            ];
            for (index, front) in fronts.into_iter().enumerate() {
                for protocol in BOTH {
                    for sender in [PodA, Node, Client] {
                        let source = network.source(sender, front);
                        let (server, seen) = answered(network.ask(sender, front, protocol));
                        // A pod that uses the ClusterIP is seen as itself, but not by itself.
                        let as_itself = sender == PodA && index == 0 && server != "pod-a";
                        if sender != Node {
                            assert_eq!(seen == source, as_itself, "{front} {server}");
                        }
                    }
                }
            }
            // As upstream, a NodePort does not answer on a loopback address in this mode.
            let loopback = match family {
                IpFamily::V4 => IpAddr::from([127, 0, 0, 1]),
                IpFamily::V6 => std::net::Ipv6Addr::LOCALHOST.into(),
            };
            let reply = network.ask(Node, to(loopback, 30010), Protocol::Tcp);
            assert_eq!(reply, Reply::Refused);
        }
    });
}

#[test]
fn endpoints_get_equal_shares() {
    const CONNECTIONS: u32 = 1500;
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            network.program(&[
                service(family, "web", 10, &json!({})),
                slice(family, "web", &EVERYWHERE),
            ]);
            let front = to(cluster_ip(family, 10), 80);
            let mut counts: BTreeMap<String, u32> = BTreeMap::new();
            for _ in 0..CONNECTIONS {
                let (server, _) = answered(network.ask(PodB, front, Protocol::Udp));
                *counts.entry(server).or_default() += 1;
            }
            let expected = f64::from(CONNECTIONS) / 3.0;
            let share = |place: &&str| f64::from(counts.get(*place).copied().unwrap_or(0));
            let parts = EVERYWHERE.iter().map(share);
            let chi_square: f64 = parts.map(|n| (n - expected).powi(2) / expected).sum();
            // One of 100,000 fair draws is beyond this, with two degrees of freedom.
            assert!(chi_square < 23.0, "{family} {chi_square} {counts:?}");
        }
    });
}

#[test]
fn a_pod_that_reaches_itself_through_its_service_sees_the_node() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            network.program(&[
                service(family, "own", 11, &json!({})),
                slice(family, "own", &["pod-a"]),
            ]);
            for protocol in BOTH {
                let reply = network.ask(PodA, to(cluster_ip(family, 11), 80), protocol);
                let seen = at(family, "gateway");
                assert_eq!(answered(reply), ("pod-a".to_owned(), seen), "{protocol}");
            }
        }
    });
}

#[test]
fn the_external_policy_local_keeps_sources_and_stays_on_the_node() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let more = json!({"type": "LoadBalancer", "balancer": at(family, "balancer"),
                              "externalTrafficPolicy": "Local"});
            let away = json!({"type": "NodePort", "externalTrafficPolicy": "Local"});
            network.program(&[
                service(family, "here", 12, &more),
                slice(family, "here", &["pod-a", "remote"]),
                service(family, "away", 13, &away),
                slice(family, "away", &["remote"]),
            ]);
            let node = at(family, "node");
            let all = set_of(&["pod-a", "remote"]);
            for front in [to(at(family, "balancer"), 80), to(node, 30012)] {
                for protocol in BOTH {
                    for _ in 0..8 {
                        let reply = network.ask(Client, front, protocol);
                        let seen = at(family, "client");
                        assert_eq!(answered(reply), ("pod-a".to_owned(), seen), "{front}");
                    }
                }
                // Clients that are inside already may go on to the other node.
                for sender in [PodB, Node] {
                    assert_eq!(
                        servers(&network, sender, front, 30),
                        all,
                        "{sender:?} {front}"
                    );
                }
            }
            for protocol in BOTH {
                let front = to(node, 30013);
                // A load balancer should try elsewhere.
                assert!(network.is_silent(Client, front, protocol));
                let (server, _) = answered(network.ask(PodB, front, protocol));
                assert_eq!(server, "remote");
            }
        }
    });
}

#[test]
fn the_internal_policy_local_stays_on_the_node() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let local = json!({"internalTrafficPolicy": "Local"});
            let sticky = json!({"internalTrafficPolicy": "Local", "sessionAffinity": "ClientIP"});
            network.program(&[
                service(family, "here", 14, &local),
                slice(family, "here", &["pod-a", "remote"]),
                service(family, "away", 15, &local),
                slice(family, "away", &["remote"]),
                service(family, "loyal", 16, &sticky),
                slice(family, "loyal", &["pod-a", "remote"]),
                service(family, "loyal-away", 17, &sticky),
                slice(family, "loyal-away", &["remote"]),
            ]);
            for protocol in BOTH {
                for number in [14, 16] {
                    for _ in 0..8 {
                        let reply = network.ask(PodB, to(cluster_ip(family, number), 80), protocol);
                        let seen = at(family, "pod-b");
                        assert_eq!(answered(reply), ("pod-a".to_owned(), seen));
                    }
                }
                for sender in [PodB, Node] {
                    for number in [15, 17] {
                        let front = to(cluster_ip(family, number), 80);
                        assert!(network.is_silent(sender, front, protocol), "{sender:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn source_ranges_let_in_the_sources_they_name_and_no_others() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let (welcome, stranger) = (FURTHER.start, FURTHER.start + 1);
            let range = ipnet::IpNet::from(further(family, welcome));
            let more = json!({"type": "LoadBalancer", "balancer": at(family, "balancer"),
                              "loadBalancerSourceRanges": [range]});
            network.program(&[
                service(family, "club", 16, &more),
                slice(family, "club", &EVERYWHERE),
            ]);
            let front = to(at(family, "balancer"), 80);
            for protocol in BOTH {
                answered(network.ask(ClientAs(welcome), front, protocol));
                assert!(network.is_silent(ClientAs(stranger), front, protocol));
                assert!(network.is_silent(PodA, front, protocol));
                // As upstream: the ranges guard the load balancer's address and no other.
                let side = to(at(family, "node"), 30016);
                answered(network.ask(ClientAs(stranger), side, protocol));
            }
            // As upstream in this mode: without endpoints the ranges still count.
            network.program(&[slice(family, "club", &[])]);
            let refused = network.ask(ClientAs(welcome), front, Protocol::Tcp);
            assert_eq!(refused, Reply::Refused);
            assert!(network.is_silent(ClientAs(stranger), front, Protocol::Tcp));
        }
    });
}

/// As kube-proxy: what a node that has the load balancer's address on a device of its own sends
/// there carries that address, and is let in if the node is.
#[test]
fn source_ranges_with_the_node_let_in_what_it_sends_from_the_address_itself() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let balancer = at(family, "balancer");
            network.node.address("lo", IpNet::from(balancer));
            let front = to(balancer, 80);
            let from_itself = |network: &Network, protocol, patience| {
                let node = &network.node;
                node.run(|| ask(balancer, front, protocol, patience))
            };
            let stranger = IpNet::from(further(family, FURTHER.start));
            for ranges in [vec![at(family, "node").into(), stranger], vec![stranger]] {
                let more = json!({"type": "LoadBalancer", "balancer": balancer,
                                  "loadBalancerSourceRanges": ranges});
                network.program(&[
                    service(family, "club", 18, &more),
                    slice(family, "club", &EVERYWHERE),
                ]);
                for protocol in BOTH {
                    if ranges.len() > 1 {
                        answered(from_itself(&network, protocol, PATIENCE));
                    } else {
                        let reply = from_itself(&network, protocol, SILENCE);
                        assert_eq!(reply, Reply::Silence, "{family} {protocol}");
                    }
                    // It is no permission for anyone else.
                    assert!(network.is_silent(PodA, front, protocol));
                }
            }
        }
    });
}

#[test]
fn affinity_is_one_for_all_fronts_and_ends_with_the_endpoint() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let more = json!({"type": "LoadBalancer", "balancer": at(family, "balancer"),
                              "sessionAffinity": "ClientIP"});
            network.program(&[
                service(family, "shop", 17, &more),
                slice(family, "shop", &EVERYWHERE),
            ]);
            let fronts = [
                to(at(family, "node"), 30017),
                to(cluster_ip(family, 17), 80),
                to(at(family, "balancer"), 80),
            ];
            let own = |network: &Network, sender, protocol| {
                let one = |front| answered(network.ask(sender, front, protocol)).0;
                let own: BTreeSet<String> = fronts.repeat(2).into_iter().map(one).collect();
                assert_eq!(own.len(), 1, "{family} {sender:?} {protocol}: {own:?}");
                own.into_iter().next().unwrap()
            };
            let mut chosen = BTreeMap::new();
            for protocol in BOTH {
                let mut servers = BTreeSet::new();
                for number in FURTHER {
                    let server = own(&network, ClientAs(number), protocol);
                    servers.insert(server.clone());
                    chosen.insert((number, protocol.as_str()), server);
                }
                assert!(servers.len() > 1, "16 clients, one server: {servers:?}");
            }
            // A restart changes nothing.
            let report = network.restart();
            assert_eq!(written(&report), 0);
            for protocol in BOTH {
                for number in FURTHER {
                    let server = own(&network, ClientAs(number), protocol);
                    assert_eq!(server, chosen[&(number, protocol.as_str())]);
                }
            }
            // One endpoint goes: its clients go elsewhere, and those of others stay.
            network.program(&[slice(family, "shop", &["pod-a", "remote"])]);
            for protocol in BOTH {
                for number in FURTHER {
                    let server = own(&network, ClientAs(number), protocol);
                    let before = &chosen[&(number, protocol.as_str())];
                    if before == "pod-b" {
                        assert_ne!(server, "pod-b");
                    } else {
                        assert_eq!(server, *before);
                    }
                }
            }
        }
    });
}

#[test]
fn affinity_with_the_policy_local_stays_on_the_node() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let more = json!({"type": "NodePort", "sessionAffinity": "ClientIP",
                              "externalTrafficPolicy": "Local"});
            network.program(&[
                service(family, "shop", 18, &more),
                slice(family, "shop", &EVERYWHERE),
                service(family, "away", 19, &more),
                slice(family, "away", &["remote"]),
            ]);
            let front = to(at(family, "node"), 30018);
            let mut seen_servers = BTreeSet::new();
            for number in FURTHER {
                let one = |_| answered(network.ask(ClientAs(number), front, Protocol::Tcp));
                let replies: BTreeSet<(String, IpAddr)> = (0..4).map(one).collect();
                assert_eq!(replies.len(), 1, "{replies:?}");
                let (server, seen) = replies.into_iter().next().unwrap();
                assert_ne!(server, "remote");
                assert_eq!(seen, further(family, number), "the source is kept");
                seen_servers.insert(server);
            }
            assert_eq!(seen_servers, set_of(&["pod-a", "pod-b"]));
            // From inside, any endpoint, and always the same.
            assert_eq!(servers(&network, PodA, front, 6).len(), 1);
            let away = to(at(family, "node"), 30019);
            assert!(network.is_silent(Client, away, Protocol::Tcp));
            assert_eq!(servers(&network, PodA, away, 2), set_of(&["remote"]));
        }
    });
}

/// The number of remembered clients.
fn remembered(network: &Network) -> usize {
    let family = network.family;
    network.node.run(|| {
        let mut connection = Connection::open().unwrap();
        connection.elements(family, TABLE, "clients").unwrap().len()
    })
}

#[test]
fn affinity_expires_each_after_its_own_time() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let sticky = |seconds: u32| {
                json!({"sessionAffinity": "ClientIP",
                       "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}})
            };
            network.program(&[
                service(family, "short", 20, &sticky(1)),
                slice(family, "short", &EVERYWHERE),
                service(family, "long", 21, &sticky(600)),
                slice(family, "long", &EVERYWHERE),
            ]);
            let short = to(cluster_ip(family, 20), 80);
            let long = to(cluster_ip(family, 21), 80);
            let first = servers(&network, PodA, short, 5);
            assert_eq!(first.len(), 1);
            let kept = servers(&network, PodA, long, 5);
            assert_eq!((kept.len(), remembered(&network)), (1, 2));
            // Draws until another endpoint comes up, each time after the client was forgotten.
            let deadline = Instant::now() + PATIENCE;
            loop {
                while remembered(&network) > 1 {
                    assert!(Instant::now() < deadline, "a client is remembered for ever");
                    thread::yield_now();
                }
                if servers(&network, PodA, short, 1) != first {
                    break;
                }
            }
            assert_eq!(servers(&network, PodA, long, 3), kept);
        }
    });
}

#[test]
fn without_endpoints_and_on_unknown_ports_connections_are_refused_at_once() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let more = json!({"type": "LoadBalancer", "balancer": at(family, "balancer"),
                              "externalIPs": [at(family, "external")]});
            network.program(&[service(family, "empty", 19, &more)]);
            let inside = to(cluster_ip(family, 19), 80);
            let fronts = [
                inside,
                to(cluster_ip(family, 19), 81),
                to(at(family, "node"), 30019),
                to(at(family, "balancer"), 80),
                to(at(family, "external"), 80),
            ];
            let started = Instant::now();
            for front in fronts {
                for sender in [PodA, Node, Client] {
                    for protocol in BOTH {
                        let reply = network.ask(sender, front, protocol);
                        assert_eq!(reply, Reply::Refused, "{sender:?} {front} {protocol}");
                    }
                }
            }
            assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());

            network.program(&[slice(family, "empty", &["pod-b"])]);
            let (server, _) = answered(network.ask(PodA, inside, Protocol::Tcp));
            assert_eq!(server, "pod-b", "the first endpoint opens it");
        }
    });
}

#[test]
fn addresses_of_the_service_networks_that_no_service_has_lead_nowhere() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            network.program(&[
                service(family, "web", 10, &json!({})),
                slice(family, "web", &["pod-b"]),
            ]);
            let [inside, outside, own] = [10, 99, 98].map(|n| to(cluster_ip(family, n), 80));
            // A host elsewhere that happens to have an address of the range, and this node.
            for (namespace, front) in [(network.namespace(Client), outside), (&network.node, own)] {
                namespace.address("lo", IpNet::from(front.ip()));
                namespace.run(|| serve("chance", front, Protocol::Tcp));
            }
            let reply = |network: &Network, sender, front| {
                answered(network.ask(sender, front, Protocol::Tcp)).0
            };
            for sender in [PodA, Node] {
                assert_eq!(reply(&network, sender, outside), "chance");
            }

            let range = IpNet::new(inside.ip(), family.width() - 8).unwrap();
            network.world.settings.service_networks = vec![range.trunc()];
            assert_eq!(written(&network.sync()), 1, "one range");
            for sender in [PodA, Node] {
                assert!(network.is_silent(sender, outside, Protocol::Tcp));
                assert_eq!(reply(&network, sender, inside), "pod-b");
                let no_port = to(inside.ip(), 81);
                assert_eq!(network.ask(sender, no_port, Protocol::Tcp), Reply::Refused);
            }
            assert_eq!(reply(&network, PodA, own), "chance");

            network.world.settings.service_networks.clear();
            assert_eq!(written(&network.sync()), 1);
            assert_eq!(reply(&network, PodA, outside), "chance");
        }
    });
}

#[test]
fn what_is_masqueraded_follows_the_settings() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            network.program(&[
                service(family, "web", 20, &json!({})),
                slice(family, "web", &["remote"]),
            ]);
            let front = to(cluster_ip(family, 20), 80);
            let pods = network.world.settings.local_detector.clone();
            let by_device = Some(LocalDetector::InterfacePrefix("pod".into()));
            let by_one_device = Some(LocalDetector::Bridge("pod-a".into()));
            let mut seen = |all: bool, detector: &Option<LocalDetector>, from: Sender| {
                network.world.settings.masquerade_all = all;
                network.world.settings.local_detector.clone_from(detector);
                network.sync();
                answered(network.ask(from, front, Protocol::Tcp)).1
            };
            let node = at(family, "node");
            for detector in [&pods, &by_device] {
                assert_eq!(seen(false, detector, PodA), at(family, "pod-a"));
                assert_eq!(seen(false, detector, Client), node);
                assert_eq!(seen(true, detector, PodA), node);
            }
            assert_eq!(seen(false, &by_one_device, PodA), at(family, "pod-a"));
            assert_eq!(seen(false, &by_one_device, PodB), node);
            assert_eq!(seen(false, &None, PodB), at(family, "pod-b"));
        }
    });
}

#[test]
fn node_ports_answer_only_on_the_addresses_that_are_named() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            network.world.settings.node_port_tail =
                NodePortTail::Addresses(vec![at(family, "node")]);
            network.program(&[
                service(family, "web", 22, &json!({"type": "NodePort"})),
                slice(family, "web", &EVERYWHERE),
            ]);
            let named = to(at(family, "node"), 30022);
            let other = to(at(family, "gateway"), 30022);
            answered(network.ask(Client, named, Protocol::Tcp));
            let refused = network.ask(PodA, other, Protocol::Tcp);
            assert_eq!(refused, Reply::Refused, "nothing listens there");
            network.world.settings.node_port_tail =
                NodePortTail::Addresses(vec![at(family, "gateway")]);
            network.sync();
            answered(network.ask(PodA, other, Protocol::Tcp));
            let refused = network.ask(PodA, named, Protocol::Tcp);
            assert_eq!(refused, Reply::Refused);
        }
    });
}

#[test]
fn an_established_connection_survives_restarts_and_other_changes() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let more = json!({"type": "NodePort"});
            network.program(&[
                service(family, "web", 21, &more),
                slice(family, "web", &EVERYWHERE),
            ]);
            let from_pod = to(cluster_ip(family, 21), 80);
            let from_outside = to(at(family, "node"), 30021);
            let calls = [(PodA, from_pod), (Client, from_outside), (Node, from_pod)];
            let mut calls = calls.map(|(sender, front)| {
                let source = to(network.source(sender, front), 0);
                let open = || Conversation::open(source, front, Protocol::Tcp, PATIENCE).unwrap();
                network.namespace(sender).run(open)
            });
            let first = calls.each_mut().map(|call| answered(call.ask().unwrap()));
            network.program(&[
                service(family, "new", 22, &json!({})),
                slice(family, "new", &["remote"]),
            ]);
            network.restart();
            network.program(&[slice(family, "web", &["pod-b"])]);
            let mut again = || calls.each_mut().map(|call| answered(call.ask().unwrap()));
            assert_eq!(again(), first);
        }
    });
}

#[test]
fn no_connection_is_lost_while_endpoints_come_and_go() {
    const ROUNDS: usize = 400;
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            network.program(&[
                service(family, "web", 23, &json!({})),
                slice(family, "web", &EVERYWHERE),
                service(family, "loyal", 24, &json!({"sessionAffinity": "ClientIP"})),
                slice(family, "loyal", &EVERYWHERE),
            ]);
            let fronts = [23, 24].map(|number| to(cluster_ip(family, number), 80));
            let is_over = AtomicBool::new(false);
            let Network { machines, world } = &mut network;
            let (pod, node) = (&machines.pods[0], &machines.node);
            let asked: usize = thread::scope(|scope| {
                let asking = fronts.map(|front| {
                    let is_over = &is_over;
                    scope.spawn(move || {
                        let source = at(family, "pod-a");
                        pod.run(|| {
                            let mut count = 0;
                            while !is_over.load(Ordering::Relaxed) {
                                let patience = PATIENCE;
                                let reply = ask(source, front, Protocol::Udp, patience);
                                answered(reply);
                                count += 1;
                            }
                            count
                        })
                    })
                });
                node.run(|| {
                    for round in 0..ROUNDS {
                        let places: &[&str] = match round % 3 {
                            0 => &["pod-b"],
                            1 => &["remote", "pod-b"],
                            _ => &EVERYWHERE,
                        };
                        for name in ["web", "loyal"] {
                            world.put(&slice(family, name, places));
                        }
                        let report = world.sync();
                        assert!(!report.full);
                    }
                });
                is_over.store(true, Ordering::Relaxed);
                let counts = asking.map(|asking| asking.join().unwrap());
                counts.into_iter().sum()
            });
            assert!(asked > 50, "{asked}");
        }
    });
}

#[test]
fn connections_reach_an_endpoint_or_are_refused_while_a_service_loses_and_gets_all_endpoints() {
    const ROUNDS: usize = 400;
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let sticky = json!({"sessionAffinity": "ClientIP"});
            network.program(&[
                service(family, "web", 26, &json!({})),
                slice(family, "web", &EVERYWHERE),
                service(family, "loyal", 27, &sticky),
                slice(family, "loyal", &EVERYWHERE),
            ]);
            let fronts = [26, 27].map(|number| to(cluster_ip(family, number), 80));
            // Packets that are not translated follow the default route and are answered there.
            for front in fronts {
                let outside = network.namespace(Client);
                outside.address("lo", IpNet::from(front.ip()));
                for protocol in BOTH {
                    outside.run(|| serve("untranslated", front, protocol));
                }
            }
            let is_over = AtomicBool::new(false);
            let Network { machines, world } = &mut network;
            let (pod, node) = (&machines.pods[0], &machines.node);
            let replies: BTreeMap<String, usize> = thread::scope(|scope| {
                let questions = fronts
                    .into_iter()
                    .flat_map(|front| BOTH.map(|protocol| (front, protocol)));
                let asking: Vec<_> = questions
                    .map(|(front, protocol)| {
                        let is_over = &is_over;
                        scope.spawn(move || {
                            let source = at(family, "pod-a");
                            pod.run(|| {
                                let mut replies = Vec::new();
                                while !is_over.load(Ordering::Relaxed) {
                                    replies.push(match ask(source, front, protocol, PATIENCE) {
                                        Reply::From { server, .. } => server,
                                        other => format!("{other:?}"),
                                    });
                                }
                                replies
                            })
                        })
                    })
                    .collect();
                node.run(|| {
                    for round in 0..ROUNDS {
                        let places = if round % 2 == 0 { &[][..] } else { &EVERYWHERE };
                        for name in ["web", "loyal"] {
                            world.put(&slice(family, name, places));
                        }
                        let report = world.sync();
                        assert!(!report.full);
                    }
                });
                is_over.store(true, Ordering::Relaxed);
                let mut counts = BTreeMap::new();
                for reply in asking.into_iter().flat_map(|asking| asking.join().unwrap()) {
                    *counts.entry(reply).or_default() += 1;
                }
                counts
            });
            let allowed = set_of(&["pod-a", "pod-b", "remote", "Refused"]);
            let found: BTreeSet<String> = replies.keys().cloned().collect();
            assert_eq!(found, allowed, "{family} {replies:?}");
            assert!(replies.values().sum::<usize>() > 100, "{replies:?}");
        }
    });
}

#[test]
fn sctp_is_translated() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            network.program(&[
                service(family, "signal", 25, &json!({})),
                slice(family, "signal", &["remote"]),
            ]);
            let source = at(family, "pod-a");
            let receiver = network.other.run(|| sctp::Receiver::open(family));
            let front = to(cluster_ip(family, 25), 80);
            network.pods[0].run(|| sctp::send_init(source, front));
            let port = receiver.destination_port(Duration::from_secs(10));
            assert_eq!(port, Some(SERVER_PORT), "{family}");
        }
    });
}

#[test]
fn trace_says_what_packets_do() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let range = ipnet::IpNet::from(further(family, FURTHER.start));
            let node_port = |more: &serde_json::Value| {
                let mut all = json!({"type": "NodePort"});
                for (key, value) in more.as_object().unwrap() {
                    all[key] = value.clone();
                }
                all
            };
            let balanced = json!({"type": "LoadBalancer", "balancer": at(family, "balancer"),
                                  "loadBalancerSourceRanges": [range]});
            let kinds = [
                (1, node_port(&json!({})), &EVERYWHERE[..]),
                (
                    2,
                    node_port(&json!({"externalTrafficPolicy": "Local"})),
                    &EVERYWHERE,
                ),
                (
                    3,
                    node_port(&json!({"externalTrafficPolicy": "Local"})),
                    &["remote"],
                ),
                (
                    4,
                    node_port(&json!({"internalTrafficPolicy": "Local"})),
                    &["remote"],
                ),
                (
                    5,
                    node_port(&json!({"sessionAffinity": "ClientIP"})),
                    &EVERYWHERE,
                ),
                (6, node_port(&json!({})), &[]),
                (7, balanced, &EVERYWHERE),
            ];
            let networks = ["10.96.0.0/16", "fd00:10:96::/112"];
            network.world.settings.service_networks = service_networks(networks, family);
            let mut fronts = vec![
                to(at(family, "balancer"), 80),
                to(cluster_ip(family, 99), 80),
            ];
            for (number, more, places) in &kinds {
                let name = format!("service-{number}");
                network.program(&[
                    service(family, &name, *number, more),
                    slice(family, &name, places),
                ]);
                fronts.extend([
                    to(cluster_ip(family, *number), 80),
                    to(cluster_ip(family, *number), 81),
                    to(at(family, "node"), 30000 + u16::from(*number)),
                ]);
            }
            let senders = [PodA, PodB, Node, Client, ClientAs(FURTHER.start)];
            for (front, sender) in fronts
                .iter()
                .flat_map(|front| senders.map(|sender| (*front, sender)))
            {
                for protocol in BOTH {
                    let packet = network.packet(sender, front, protocol);
                    let settings = network.world.settings.clone();
                    let live = network.node.run(|| {
                        let mut kernel = HostKernel::new(family, Watch::new());
                        trace_live(&mut kernel, &settings, &packet)
                            .unwrap()
                            .unwrap()
                    });
                    let about = format!("{sender:?} {front} {protocol}: {live}");
                    let planned = trace(&network.world.desired, &settings, &packet);
                    assert_eq!(planned.masqueraded, live.masqueraded, "{about}");
                    let sorted = |fate: &Fate| match fate {
                        Fate::Translated(endpoints) => {
                            let mut endpoints = endpoints.clone();
                            endpoints.sort_unstable();
                            Fate::Translated(endpoints)
                        }
                        other => other.clone(),
                    };
                    assert_eq!(sorted(&planned.fate), sorted(&live.fate), "{about}");
                    match &live.fate {
                        Fate::Dropped => assert!(network.is_silent(sender, front, protocol)),
                        Fate::Refused => {
                            let reply = network.ask(sender, front, protocol);
                            assert_eq!(reply, Reply::Refused, "{about}");
                        }
                        Fate::Translated(endpoints) => {
                            let reply = network.ask(sender, front, protocol);
                            let (server, seen) = answered(reply);
                            let endpoint = at(family, &server);
                            let mut addresses = endpoints.iter().map(SocketAddr::ip);
                            assert!(addresses.any(|ip| ip == endpoint), "{about}");
                            let is_kept = seen == packet.source;
                            let is_own = endpoint == packet.source || sender == Node;
                            assert!(is_own || is_kept != live.masqueraded, "{seen} {about}");
                        }
                        Fate::Untouched => panic!("{about}"),
                    }
                }
            }
        }
    });
}
