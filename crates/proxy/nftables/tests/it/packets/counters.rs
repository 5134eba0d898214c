//! Counters of elements: a connection is counted once, for the endpoint that got it.

use std::{collections::BTreeMap, net::SocketAddr};

use serde_json::json;
use weft_model::Protocol;
use weft_nftables::{
    CounterState, Counters, HostKernel, Nftables, TableOptions, Watch, connections,
};
use weft_testkit::lab;

use super::{
    EVERYWHERE, SERVER_PORT,
    Sender::{Client, Node, PodA},
    answered, at, cluster_ip, networks, service, slice, to,
};

#[test]
fn every_connection_is_counted_once_for_its_endpoint() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let read = |network: &super::Network| {
                network.node.run(|| {
                    let mut kernel = HostKernel::new(family, Watch::new());
                    connections(&mut kernel, family).unwrap()
                })
            };
            assert_eq!(read(&network), CounterState::NoTable);
            network.sync();
            assert_eq!(read(&network), CounterState::Off);
            let options = TableOptions {
                counters: Counters::On,
                ..TableOptions::default()
            };
            let with_counters = |network: &super::Network| {
                let kernel = network.node.run(|| HostKernel::new(family, Watch::new()));
                Nftables::with_options(kernel, options)
            };
            network.world.backend = with_counters(&network);
            let sticky = json!({"type": "NodePort", "sessionAffinity": "ClientIP"});
            let local = json!({"type": "NodePort", "externalTrafficPolicy": "Local"});
            network.program(&[
                service(family, "web", 60, &json!({"type": "NodePort"})),
                slice(family, "web", &EVERYWHERE),
                service(family, "sticky", 61, &sticky),
                slice(family, "sticky", &EVERYWHERE),
                service(family, "local", 62, &local),
                slice(family, "local", &EVERYWHERE),
            ]);
            let mut expected: BTreeMap<(String, SocketAddr), u64> = BTreeMap::new();
            for (name, number) in [("web", 60), ("sticky", 61), ("local", 62)] {
                for round in 0..30 {
                    let port = 30000 + u16::from(number);
                    let front = match round % 2 {
                        0 => to(cluster_ip(family, number), 80),
                        _ => to(at(family, "node"), port),
                    };
                    let sender = [PodA, Node, Client][round % 3];
                    let (server, _) = answered(network.ask(sender, front, Protocol::Tcp));
                    let endpoint = to(at(family, &server), SERVER_PORT);
                    let count = expected.entry((format!("shop/{name}:tcp"), endpoint));
                    *count.or_default() += 1;
                }
            }
            let CounterState::On(counts) = read(&network) else {
                panic!("nothing is counted");
            };
            let counts: BTreeMap<(String, SocketAddr), u64> = counts
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(|((service, endpoint), count)| ((service.to_string(), endpoint), count))
                .collect();
            assert_eq!(counts, expected, "{family}");

            // Counters are no reason to write anything again.
            network.world.backend = with_counters(&network);
            let report = network.sync();
            assert_eq!(report.bytes, 0, "{report:?}");
        }
    });
}
