//! Kernel routes and their events.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use weft_host::{
    Errno,
    routing::{
        Change, Deletion, Event, Events, Hop, KernelRoute, MAIN_TABLE, Reach, RouteKind, Routing,
        Write,
    },
};
use weft_model::IpFamily;
use weft_testkit::lab::{self, Lab, Namespace};

/// Far beyond what the kernel needs to send an event.
const PATIENCE: Duration = Duration::from_secs(20);
const PROTOCOL: u8 = 201;

/// A node with one link, on which are 10.0.0.1/24 and fd00::1/64.
fn node(lab: &Lab) -> Namespace {
    let node = lab.namespace("node");
    let peer = lab.namespace("peer");
    lab.connect((&node, "eth0"), (&peer, "eth0"));
    node.address("eth0", "10.0.0.1/24".parse().unwrap());
    node.address("eth0", "fd00::1/64".parse().unwrap());
    node
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Opens a connection in a namespace for use from other threads.
fn open<T: Send>(runtime: &Runtime, node: &Namespace, open: fn() -> T) -> T {
    let handle = runtime.handle().clone();
    node.run(move || {
        let _context = handle.enter();
        open()
    })
}

fn ip(node: &Namespace, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    node.program("ip", &words)
}

fn route(destination: &str, gateway: &str, interface: u32) -> KernelRoute {
    KernelRoute {
        destination: destination.parse().unwrap(),
        table: MAIN_TABLE,
        protocol: PROTOCOL,
        metric: 201,
        type_of_service: 0,
        kind: RouteKind::Unicast,
        hops: vec![Hop {
            gateway: Some(gateway.parse().unwrap()),
            interface: Some(interface),
            on_link: false,
        }],
    }
}

fn deletion(route: &KernelRoute) -> Deletion {
    Deletion {
        destination: route.destination,
        table: route.table,
        protocol: route.protocol,
        metric: route.metric,
        gateway: route.hops[0].gateway,
    }
}

/// Routes with our protocol number, of both families.
async fn ours(routing: &Routing, table: u32) -> Vec<KernelRoute> {
    let mut found = Vec::new();
    for family in IpFamily::ALL {
        found.extend(routing.routes(family, table).await.unwrap());
    }
    found.retain(|route| route.protocol == PROTOCOL);
    found
}

async fn eth0(routing: &Routing) -> u32 {
    let links = routing.links().await.unwrap();
    let link = links.into_iter().find(|link| link.name == "eth0").unwrap();
    assert!(link.up);
    link.interface
}

#[test]
fn routes_are_added_replaced_listed_and_deleted_in_the_namespace_that_was_opened() {
    lab::inside(|lab| {
        let node = node(lab);
        let runtime = runtime();
        let routing = open(&runtime, &node, || Routing::open().unwrap());
        runtime.block_on(async {
            let interface = eth0(&routing).await;
            for [destination, old, new] in [
                ["10.244.1.0/24", "10.0.0.2", "10.0.0.3"],
                ["fd00:1::/64", "fd00::2", "fd00::3"],
            ] {
                for table in [MAIN_TABLE, 100, 70000] {
                    let mut old = route(destination, old, interface);
                    let mut new = route(destination, new, interface);
                    (old.table, new.table) = (table, table);
                    routing.write(&old, Write::Add).await.unwrap();
                    assert_eq!(ours(&routing, table).await, [old.clone()]);
                    let again = routing.write(&new, Write::Add).await.unwrap_err();
                    assert_eq!(again.errno(), Some(Errno::EXIST));
                    routing.write(&new, Write::Replace).await.unwrap();
                    assert_eq!(ours(&routing, table).await, [new.clone()]);

                    for deletion in [
                        deletion(&old),
                        Deletion {
                            protocol: 4,
                            ..deletion(&new)
                        },
                        Deletion {
                            metric: 202,
                            ..deletion(&new)
                        },
                    ] {
                        let missed = routing.delete(&deletion).await.unwrap_err();
                        assert_eq!(missed.errno(), Some(Errno::SRCH), "{deletion:?}");
                    }
                    routing.delete(&deletion(&new)).await.unwrap();
                    assert_eq!(ours(&routing, table).await, []);
                }
            }
        });
        assert_eq!(lab.program("ip", &["route"]), "");
    });
}

#[test]
fn a_list_shows_every_kind_of_route_and_only_those_of_its_table() {
    lab::inside(|lab| {
        let node = node(lab);
        for command in [
            "route add blackhole 10.244.1.0/24 proto 201",
            "route add unreachable 10.244.2.0/24 proto 201 metric 9",
            "route add 10.244.3.0/24 proto 201 nexthop via 10.0.0.2 nexthop via 10.0.0.3",
            "route add 10.244.4.0/24 via 172.16.0.1 dev eth0 onlink proto 201 table 100",
            "-6 route add fd00:3::/64 proto 201 nexthop via fd00::2 nexthop via fd00::3",
            "-6 route add prohibit fd00:1::/64 proto 201",
            "route add default via 10.0.0.9 proto 201",
        ] {
            ip(&node, command);
        }
        let runtime = runtime();
        let routing = open(&runtime, &node, || Routing::open().unwrap());
        let text = |route: KernelRoute| {
            let hops = route.hops.iter().map(|hop| {
                let gateway = hop.gateway.map_or("-".to_owned(), |ip| ip.to_string());
                format!(" {gateway}{}", if hop.on_link { " onlink" } else { "" })
            });
            let hops: String = hops.collect();
            let (destination, metric) = (route.destination, route.metric);
            format!("{destination} {:?} {metric}{hops}", route.kind)
        };
        let listed = |table| {
            let found = runtime.block_on(ours(&routing, table)).into_iter();
            let mut texts: Vec<String> = found.map(text).collect();
            texts.sort();
            texts
        };
        assert_eq!(
            listed(MAIN_TABLE),
            [
                "0.0.0.0/0 Unicast 0 10.0.0.9",
                "10.244.1.0/24 Blackhole 0",
                "10.244.2.0/24 Unreachable 9",
                "10.244.3.0/24 Unicast 0 10.0.0.2 10.0.0.3",
                "fd00:1::/64 Prohibit 1024",
                "fd00:3::/64 Unicast 1024 fd00::2 fd00::3",
            ]
        );
        assert_eq!(listed(100), ["10.244.4.0/24 Unicast 0 172.16.0.1 onlink"]);
        assert_eq!(listed(4711), [""; 0], "a table that does not exist");
    });
}

#[test]
fn an_address_is_ours_on_the_link_behind_a_gateway_or_nowhere() {
    lab::inside(|lab| {
        let node = node(lab);
        let runtime = runtime();
        let routing = open(&runtime, &node, || Routing::open().unwrap());
        let reach = |address: &str| runtime.block_on(routing.reach(address.parse().unwrap()));
        let interface = runtime.block_on(eth0(&routing));
        for (own, direct, far, gateway) in [
            ("10.0.0.1", "10.0.0.2", "192.0.2.1", "10.0.0.9"),
            ("fd00::1", "fd00::2", "2001:db8::1", "fd00::9"),
        ] {
            assert_eq!(reach(own).unwrap(), Reach::Local);
            assert_eq!(reach(direct).unwrap(), Reach::Direct(interface));
            assert_eq!(reach(far).unwrap_err().errno(), Some(Errno::NETUNREACH));
            node.default_route(gateway.parse().unwrap());
            let through = Reach::Through(gateway.parse().unwrap());
            assert_eq!(reach(far).unwrap(), through);
        }
        let addresses = runtime.block_on(routing.addresses()).unwrap();
        let texts = addresses
            .iter()
            .map(|entry| format!("{}/{}", entry.address, entry.prefix_length));
        let texts: Vec<String> = texts.collect();
        for own in ["10.0.0.1/24", "fd00::1/64", "127.0.0.1/8", "::1/128"] {
            assert!(texts.contains(&own.to_owned()), "{own} in {texts:?}");
        }
    });
}

#[test]
fn lists_that_are_asked_for_at_once_are_all_answered() {
    lab::inside(|lab| {
        let node = node(lab);
        let runtime = runtime();
        let routing = open(&runtime, &node, || Routing::open().unwrap());
        runtime.block_on(async {
            let interface = eth0(&routing).await;
            let many = (0..200)
                .map(|number| route(&format!("10.244.{number}.0/24"), "10.0.0.2", interface));
            for route in many {
                routing.write(&route, Write::Add).await.unwrap();
            }
            // An abandoned list must not disturb the others.
            let given_up = tokio::time::timeout(Duration::ZERO, ours(&routing, MAIN_TABLE)).await;
            assert!(given_up.is_err());
            let tasks = (0..50).map(|_| {
                let routing = routing.clone();
                tokio::spawn(async move { ours(&routing, MAIN_TABLE).await.len() })
            });
            for task in tasks.collect::<Vec<_>>() {
                assert_eq!(task.await.unwrap(), 200);
            }
        });
    });
}

/// Waits for an event that matches.
async fn event(events: &mut Events, fits: impl Fn(&Event) -> bool) -> Event {
    let search = async {
        loop {
            let event = events.next().await.unwrap();
            if fits(&event) {
                return event;
            }
        }
    };
    tokio::time::timeout(PATIENCE, search).await.unwrap()
}

#[test]
fn events_tell_what_changed_and_who_did_it() {
    lab::inside(|lab| {
        let node = node(lab);
        let runtime = runtime();
        let (routing, mut events) = open(&runtime, &node, || {
            (Routing::open().unwrap(), Events::open().unwrap())
        });
        runtime.block_on(async {
            let interface = eth0(&routing).await;
            let new = route("10.244.1.0/24", "10.0.0.2", interface);
            routing.write(&new, Write::Add).await.unwrap();
            let written = Change::RouteWritten(new.clone());
            let seen = event(&mut events, |event| event.change == written).await;
            assert_eq!(seen.port, routing.port());

            ip(&node, "route del 10.244.1.0/24");
            let deleted = Change::RouteDeleted(new);
            let seen = event(&mut events, |event| event.change == deleted).await;
            assert_ne!(seen.port, routing.port());

            ip(&node, "address add 10.0.0.7/24 dev eth0");
            let seven = "10.0.0.7".parse::<std::net::IpAddr>().unwrap();
            let is_seven = |event: &Event| matches!(&event.change, Change::Address(entry) if entry.address == seven);
            event(&mut events, is_seven).await;

            for (command, up) in [("down", false), ("up", true)] {
                ip(&node, &format!("link set eth0 {command}"));
                let wanted = Change::Link { interface, up };
                event(&mut events, |event| event.change == wanted).await;
            }
            ip(&node, "link del eth0");
            let gone = Change::LinkGone { interface };
            event(&mut events, |event| event.change == gone).await;
        });
    });
}

#[test]
fn a_slow_reader_is_notified_of_lost_events() {
    lab::inside(|lab| {
        let node = node(lab);
        let runtime = runtime();
        let (routing, mut events) = open(&runtime, &node, || {
            (Routing::open().unwrap(), Events::open().unwrap())
        });
        runtime.block_on(async {
            let commands = (0..5000).map(|number| {
                let (high, low) = (100 + number / 250, number % 250);
                format!("route add 10.{high}.{low}.0/24 via 10.0.0.2 proto 201\n")
            });
            let batch = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(batch.path(), commands.collect::<String>()).unwrap();
            // Nothing reads the socket while this thread waits for the program.
            ip(&node, &format!("-batch {}", batch.path().display()));
            event(&mut events, |event| event.change == Change::Lost).await;
            // The list is complete although events were lost.
            assert_eq!(ours(&routing, MAIN_TABLE).await.len(), 5000);
            ip(&node, "link set eth0 down");
            let down = |event: &Event| matches!(event.change, Change::Link { up: false, .. });
            event(&mut events, down).await;
        });
    });
}
