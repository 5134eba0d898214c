//! Properties of traces: for any rules, a trace ends and its probabilities add up to 1.

use std::{collections::BTreeSet, net::SocketAddr};

use proptest::{collection::vec, prelude::*, sample::select};
use weft_model::{IpFamily, Protocol};
use weft_ruleset::{
    ChainName, Ruleset, Table,
    trace::{Entry, Packet},
};

use crate::arbitrary::{self, Kind};

const CHAINS: [&str; 8] = [
    "PREROUTING",
    "INPUT",
    "FORWARD",
    "OUTPUT",
    "POSTROUTING",
    "KUBE-A",
    "KUBE-SVC-B",
    "c_1.d:e/f",
];

fn ruleset() -> impl Strategy<Value = Ruleset> {
    let table = select(&[Table::Filter, Table::Nat][..]);
    let placed = table.prop_flat_map(|table| {
        let kind = Kind {
            family: IpFamily::V4,
            table,
            counters: true,
        };
        (Just(table), select(&CHAINS[..]), arbitrary::rule(kind))
    });
    vec(placed, 0..12).prop_map(|placed| {
        let mut ruleset = Ruleset::new(IpFamily::V4);
        for (table, chain, mut rule) in placed {
            // Random networks and ports would hardly ever match.
            rule.source = None;
            rule.destination = None;
            ruleset.append(table, ChainName::parse(chain).unwrap(), rule);
        }
        ruleset
    })
}

fn packet() -> impl Strategy<Value = Packet> {
    let destination = select(&["192.168.0.2:80", "10.0.0.1:80", "127.0.0.1:53"][..]);
    let device = select(&[None, Some("eth0")][..]);
    let entry = prop_oneof![
        Just(Entry::Sent),
        device.prop_map(|device| Entry::Arriving {
            device: device.map(str::to_owned)
        }),
    ];
    let protocol = select(&Protocol::ALL[..]);
    (destination, entry, protocol, any::<u32>()).prop_map(|(to, entry, protocol, mark)| {
        let to: SocketAddr = to.parse().unwrap();
        let node = "192.168.0.2".parse().unwrap();
        Packet {
            source: node,
            destination: to.ip(),
            protocol,
            destination_port: to.port(),
            entry,
            mark,
            local_addresses: BTreeSet::from([node]),
            affinity: Some(ChainName::fixed("KUBE-A")),
        }
    })
}

proptest! {
    #[test]
    fn the_outcomes_of_a_packet_add_up_to_one_and_can_be_printed(
        ruleset in ruleset(),
        packet in packet(),
    ) {
        let outcomes = ruleset.trace(&packet);
        let sum: f64 = outcomes.iter().map(|outcome| outcome.probability).sum();
        prop_assert!((sum - 1.0).abs() < 1e-9, "{}", sum);
        for outcome in &outcomes {
            let lines = outcome.to_string().lines().count();
            prop_assert_eq!(lines, outcome.path.len() + 1);
        }
    }
}
