//! Shares of connections among many endpoints, by the counters of elements.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
};

use serde_json::{Value, json};
use weft_model::IpFamily;
use weft_nftables::{
    CounterState, Counters, HostKernel, Nftables, TableOptions, Watch, connections,
};
use weft_testkit::lab;

use super::{Network, Sender::PodA, cluster_ip, networks, service, to};

/// The chi-square value that one of 100,000 fair draws exceeds (Wilson and Hilferty's formula).
fn critical(degrees: f64) -> f64 {
    const NORMAL_QUANTILE: f64 = 4.265;
    let part = 2.0 / (9.0 * degrees);
    degrees * (1.0 - part + NORMAL_QUANTILE * part.sqrt()).powi(3)
}

fn many(family: IpFamily, name: &str, count: u16) -> Value {
    let address = |number: u16| match family {
        IpFamily::V4 => format!("10.244.{}.{}", 100 + (number >> 8), number & 255),
        IpFamily::V6 => format!("fd00:10:244::100:{number:x}"),
    };
    let endpoints = (0..count).map(|number| json!({"addresses": [address(number)]}));
    json!({"kind": "EndpointSlice",
           "metadata": {"namespace": "shop", "name": format!("{name}-x"),
                        "labels": {"kubernetes.io/service-name": name}},
           "addressType": family.as_str(), "endpoints": endpoints.collect::<Vec<_>>(),
           "ports": [{"name": "udp", "protocol": "UDP", "port": 8080}]})
}

/// Connections of each endpoint of a Service.
fn counted(network: &Network, name: &str) -> BTreeMap<SocketAddr, u64> {
    let family = network.family;
    let state = network.node.run(|| {
        let mut kernel = HostKernel::new(family, Watch::new());
        connections(&mut kernel, family).unwrap()
    });
    let CounterState::On(connections) = state else {
        panic!("{state:?}");
    };
    let name = format!("shop/{name}:udp");
    let own = connections
        .into_iter()
        .filter(|((port, _), _)| **port == *name);
    own.map(|((_, endpoint), packets)| (endpoint, packets))
        .collect()
}

/// The endpoints of a Service have got equal shares of this many connections.
fn assert_fair(network: &Network, name: &str, endpoints: u16, sent: u32) {
    let counts = counted(network, name);
    let total: u64 = counts.values().sum();
    assert_eq!(total, u64::from(sent), "{name}");
    assert!(counts.len() <= usize::from(endpoints));
    let expected = f64::from(sent) / f64::from(endpoints);
    let zero = f64::from(endpoints) - f64::from(u16::try_from(counts.len()).unwrap());
    let squares = counts.values().map(|count| {
        let count = f64::from(u32::try_from(*count).unwrap());
        (count - expected).powi(2) / expected
    });
    let chi_square = squares.sum::<f64>() + zero * expected;
    let limit = critical(f64::from(endpoints - 1));
    assert!(
        chi_square < limit,
        "{name}: {chi_square} of {limit}: {counts:?}"
    );
}

#[test]
fn many_endpoints_get_equal_shares_with_and_without_affinity() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let options = TableOptions {
                counters: Counters::On,
                ..TableOptions::default()
            };
            let kernel = network.node.run(|| HostKernel::new(family, Watch::new()));
            network.world.backend = Nftables::with_options(kernel, options);
            let sticky = json!({"sessionAffinity": "ClientIP"});
            network.program(&[
                service(family, "some", 80, &json!({})),
                many(family, "some", 50),
                service(family, "lots", 81, &json!({})),
                many(family, "lots", 1_000),
                service(family, "loyal", 82, &sticky),
                many(family, "loyal", 50),
            ]);
            let front = |number| to(cluster_ip(family, number), 80);
            // Nothing answers: what counts is where the first packet is sent.
            let send = |source: IpAddr, port: u16, front: SocketAddr| {
                let socket = UdpSocket::bind(to(source, port)).unwrap();
                socket.send_to(b"?", front).unwrap();
            };
            let pod = network.source(PodA, front(80));
            network.namespace(PodA).run(|| {
                (0..5_000).for_each(|n| send(pod, 10_000 + n, front(80)));
                (0..20_000).for_each(|n| send(pod, 10_000 + n, front(81)));
            });
            assert_fair(&network, "some", 50, 5_000);
            assert_fair(&network, "lots", 1_000, 20_000);

            // One connection of each of many clients, which all are addresses of one machine.
            let (range, client): (&str, fn(u16) -> IpAddr) = match family {
                IpFamily::V4 => ("172.30.0.0/16", |number| {
                    let [high, low] = number.to_be_bytes();
                    IpAddr::from([172, 30, high, low])
                }),
                IpFamily::V6 => ("fd00:30::/64", |number| {
                    IpAddr::from([0xfd00, 0x30, 0, 0, 0, 0, 1, number])
                }),
            };
            let pods = network.namespace(PodA);
            pods.program("ip", &["route", "add", "local", range, "dev", "lo"]);
            pods.run(|| {
                // Of such a range IPv6 binds no address otherwise.
                fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1").unwrap();
                (1..=4_000).for_each(|number| send(client(number), 5_001, front(82)));
            });
            assert_fair(&network, "loyal", 50, 4_000);
            // And again: each is where it was.
            let before = counted(&network, "loyal");
            pods.run(|| {
                (1..=4_000).for_each(|number| send(client(number), 5_002, front(82)));
            });
            let after = counted(&network, "loyal");
            let doubled = before.into_iter().map(|(endpoint, n)| (endpoint, 2 * n));
            assert_eq!(after, doubled.collect());
        }
    });
}
