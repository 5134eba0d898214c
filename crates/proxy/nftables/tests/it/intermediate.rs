//! The states between the transactions of a Service that is too large for one.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use serde_json::{Value, json};
use weft_host::nftables::Datum;
use weft_model::{IpFamily, ObjectKey, Protocol};
use weft_nftables::{Fate, Packet, Trace, trace_live};
use weft_proxy::Settings;
use weft_testkit::cluster;

use crate::{
    simulated::{Elements, Simulated},
    world::World,
};

const FAMILY: IpFamily = IpFamily::V4;
const NODE: &str = "10.0.0.1";
const BALANCER: &str = "192.0.2.1";
const EXTERNAL: &str = "192.0.2.2";

/// Bits of the numbers in the maps, as docs/proxy.md has them.
const COUNT: u32 = 0x00ff_ffff;
const STICKY: u32 = 1 << 24;
const LOCAL: u32 = 1 << 25;
const RANGES: u32 = 1 << 26;
const STICKY_LOCAL: u32 = 1 << 30;
const NUMBERS: u32 = 0x1000_0000;
const LOCAL_NUMBERS: u32 = 0x3000_0000;

fn endpoint(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    IpAddr::from([10, 244, high, low])
}

/// One Service with its endpoints, of which every third is on this node.
#[derive(Clone, Debug)]
struct Version {
    spec: Value,
    endpoints: std::ops::Range<u16>,
}

impl Version {
    fn new(endpoints: std::ops::Range<u16>, more: &Value) -> Self {
        let mut spec = json!({"clusterIP": "10.96.0.1", "type": "LoadBalancer",
            "externalIPs": [EXTERNAL], "ports": [
                {"name": "http", "port": 80, "nodePort": 30080},
                {"name": "admin", "port": 81, "nodePort": 30081}]});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        Self { spec, endpoints }
    }

    fn objects(&self) -> [Value; 2] {
        let one = |number: u16| {
            let node = if number.is_multiple_of(3) {
                cluster::NODE
            } else {
                "elsewhere"
            };
            json!({"addresses": [endpoint(number)], "nodeName": node})
        };
        let endpoints: Vec<Value> = self.endpoints.clone().map(one).collect();
        let metadata = json!({"namespace": "shop", "name": "large"});
        [
            json!({"kind": "Service", "metadata": metadata, "spec": self.spec,
                   "status": {"loadBalancer": {"ingress": [{"ip": BALANCER}]}}}),
            json!({"kind": "EndpointSlice",
                   "metadata": {"namespace": "shop", "name": "large-x",
                                "labels": {"kubernetes.io/service-name": "large"}},
                   "addressType": "IPv4", "endpoints": endpoints,
                   "ports": [{"name": "http", "protocol": "TCP", "port": 8080},
                             {"name": "admin", "protocol": "TCP", "port": 8081}]}),
        ]
    }
}

fn put(world: &mut World<Simulated>, version: Option<&Version>) {
    match version {
        Some(version) => version
            .objects()
            .iter()
            .for_each(|object| world.put(object)),
        None => world
            .model
            .remove_service(&ObjectKey::namespaced("shop", "large")),
    }
}

/// Packets to every front, from each kind of client.
fn packets(versions: [Option<&Version>; 2], sources: &[&str]) -> Vec<Packet> {
    let cluster_ips = versions.into_iter().flatten().map(|version| {
        let address = version.spec["clusterIP"].as_str();
        address.unwrap().to_owned()
    });
    let mut fronts: BTreeSet<(String, u16)> = cluster_ips
        .flat_map(|address| [80, 82].map(|port| (address.clone(), port)))
        .collect();
    fronts.insert((BALANCER.to_owned(), 80));
    fronts.insert((NODE.to_owned(), 30080));
    let mut packets = Vec::new();
    for (address, port) in fronts {
        for source in sources {
            packets.push(Packet {
                source: source.parse().unwrap(),
                destination: SocketAddr::new(address.parse().unwrap(), port),
                protocol: Protocol::Tcp,
                device: None,
                local_addresses: [NODE.parse::<IpAddr>().unwrap()].into(),
            });
        }
    }
    packets
}

fn traces(kernel: &mut Simulated, settings: &Settings, packets: &[Packet]) -> Vec<Trace> {
    let mut one = |packet| match trace_live(kernel, settings, packet).unwrap() {
        Some(trace) => trace,
        None => Trace {
            steps: Vec::new(),
            fate: Fate::Untouched,
            masqueraded: false,
        },
    };
    packets.iter().map(&mut one).collect()
}

/// True if a packet may be treated like this between two versions of its Service.
fn is_allowed(found: &Trace, before: &Trace, after: &Trace, served: &BTreeSet<IpAddr>) -> bool {
    let is_either = before.fate == found.fate || after.fate == found.fate;
    match &found.fate {
        Fate::Translated(list) => {
            list.iter().all(|endpoint| served.contains(&endpoint.ip()))
                && [before.masqueraded, after.masqueraded].contains(&found.masqueraded)
        }
        // A front that is gone is refused until its address is gone too.
        Fate::Refused => is_either || after.fate == Fate::Untouched,
        Fate::Dropped | Fate::Untouched => is_either,
    }
}

/// Everything that an element leads to is there.
fn check_links(elements: &Elements, about: &str) {
    let number = |set: &str, key: &[u8]| match elements.get(set)?.get(key)?.datum {
        Some(Datum::Value(value)) => value.last_number(),
        _ => None,
    };
    let has = |set: &str, key: &[u8]| elements.get(set).is_some_and(|set| set.contains_key(key));
    let with = |front: &[u8], number: u32| [front, &number.to_ne_bytes()].concat();
    for prefix in ["", "node-port-"] {
        let map = |name: &str| format!("{prefix}{name}");
        let fronts = match prefix {
            "" => "services",
            _ => "node-ports",
        };
        for front in elements
            .get(fronts)
            .into_iter()
            .flatten()
            .map(|(key, _)| key)
        {
            let value = number(fronts, front).unwrap();
            let mut lists = vec![(NUMBERS, value & COUNT)];
            if value & (LOCAL | STICKY_LOCAL) != 0 {
                let local = number(&map("local-counts"), front);
                let local = local.unwrap_or_else(|| panic!("no count of local ones: {about}"));
                lists.push((LOCAL_NUMBERS, local));
            }
            let is_sticky = value & (STICKY | STICKY_LOCAL) != 0;
            for (first, count) in lists {
                for place in 1..=count {
                    let key = with(front, first + place);
                    assert!(has(&map("endpoints"), &key), "{first:x} {place}: {about}");
                    if is_sticky {
                        let slot = number(&map("affinity-slots"), &key).unwrap();
                        let key = with(&[6, 0, 0, 0], slot);
                        let is_there =
                            has("sticky-endpoints", &key) || has("sticky-local-endpoints", &key);
                        assert!(is_there, "slot {slot:x}: {about}");
                    }
                }
            }
            if is_sticky {
                assert!(has(&map("affinity"), front), "{about}");
                assert!(has(&map("affinity-timeouts"), front), "{about}");
            }
            if value & RANGES != 0 {
                let ranges = elements.get("source-ranges").into_iter().flatten();
                let mut keys = ranges.map(|(key, _)| key);
                assert!(keys.any(|key| key.starts_with(front)), "{about}");
            }
        }
    }
}

/// The sync that writes the new version.
#[derive(Clone, Copy, Debug)]
enum Way {
    Change,
    /// By a process that starts and reads what the former one wrote.
    Restart,
}

/// Writes one version after another and looks at every state between. Returns how many there were.
fn walk([from, to]: [Option<&Version>; 2], way: Way, limit: usize, sources: &[&str]) -> usize {
    let mut world = World::on(Simulated::default(), FAMILY);
    world.backend.kernel().element_limit = Some(limit);
    world.settings.node_ip = NODE.parse().unwrap();
    if from.is_some() {
        put(&mut world, from);
    }
    world.sync();
    let settings = world.settings.clone();
    let packets = packets([from, to], sources);
    let served = [from, to].into_iter().flatten();
    let served = served.flat_map(|version| version.endpoints.clone().map(endpoint));
    let served: BTreeSet<IpAddr> = served.collect();
    let before = traces(world.backend.kernel(), &settings, &packets);
    world.backend.kernel().states = Some(Vec::new());
    put(&mut world, to);
    match way {
        Way::Change => {
            let report = world.sync();
            assert!(!report.full && report.partial_failure.is_none());
        }
        Way::Restart => {
            let kernel = std::mem::take(world.backend.kernel());
            world.restart(kernel);
        }
    }
    let kernel = world.backend.kernel();
    let states = kernel.states.take().unwrap();
    let after = traces(kernel, &settings, &packets);
    check_links(kernel.values(), "the last state");
    for (place, elements) in states.iter().enumerate() {
        let about = format!(
            "{way:?} after commit {} of {}, {from:?} to {to:?}",
            place + 1,
            states.len()
        );
        check_links(elements, &about);
        let mut kernel = kernel.with_elements(elements.clone());
        let found = traces(&mut kernel, &settings, &packets);
        for (packet, ((found, before), after)) in
            packets.iter().zip(found.iter().zip(&before).zip(&after))
        {
            let (source, destination) = (packet.source, packet.destination);
            assert!(
                is_allowed(found, before, after, &served),
                "{source} to {destination}: {found:?}\nbefore {before:?}\nafter {after:?}\n{about}"
            );
        }
    }
    states.len()
}

#[test]
fn a_service_above_the_limit_of_a_transaction_is_usable_after_each_of_its_transactions() {
    let port = json!([{"name": "http", "port": 80, "nodePort": 30080}]);
    let plain = |endpoints| Version::new(endpoints, &json!({"externalIPs": [], "ports": port}));
    // Of this size, the first transaction ends between ClusterIPs and hairpin elements.
    let large = plain(1..1_601);
    let (larger, moved) = (plain(1..2_001), plain(1_950..3_950));
    for (from, to) in [
        (None, Some(&large)),
        (Some(&larger), Some(&moved)),
        (Some(&larger), None),
    ] {
        for way in [Way::Change, Way::Restart] {
            let commits = walk([from, to], way, usize::MAX, &["198.51.100.7"]);
            assert!(commits > 1, "{commits} commits");
        }
    }
}

#[test]
fn every_change_of_a_service_in_small_transactions_leaves_it_usable_after_each() {
    let sticky = json!({"sessionAffinity": "ClientIP"});
    let sticky_local = json!({"sessionAffinity": "ClientIP", "externalTrafficPolicy": "Local",
        "internalTrafficPolicy": "Local"});
    let ranges = |list: &[&str]| json!({"loadBalancerSourceRanges": list});
    let versions = [
        None,
        Some(Version::new(1..1, &json!({}))),
        Some(Version::new(1..13, &json!({}))),
        Some(Version::new(8..20, &json!({}))),
        Some(Version::new(1..13, &json!({"clusterIP": "10.96.0.2"}))),
        Some(Version::new(
            1..13,
            &json!({"externalTrafficPolicy": "Local"}),
        )),
        Some(Version::new(
            1..13,
            &json!({"internalTrafficPolicy": "Local"}),
        )),
        Some(Version::new(1..13, &sticky)),
        Some(Version::new(5..16, &sticky)),
        Some(Version::new(1..13, &sticky_local)),
        Some(Version::new(1..13, &ranges(&["198.51.100.0/25"]))),
        Some(Version::new(
            1..13,
            &ranges(&["198.51.100.0/24", "203.0.113.0/24"]),
        )),
        Some(Version::new(1..13, &ranges(&["198.51.0.0/16"]))),
    ];
    let sources = ["10.244.0.9", "198.51.100.7", "203.0.113.7"];
    let pairs = versions
        .iter()
        .flat_map(|from| versions.iter().map(move |to| (from, to)));
    for (index, (from, to)) in pairs.enumerate() {
        // Other limits have other boundaries between commits.
        let limit = 9 + index % 17;
        let way = [Way::Change, Way::Restart][index % 2];
        walk([from.as_ref(), to.as_ref()], way, limit, &sources);
    }
}

#[test]
fn a_start_replaces_service_networks_that_overlap_whatever_else_it_deletes() {
    let mut world = World::on(Simulated::default(), FAMILY);
    world.settings.service_networks = vec!["10.98.0.0/16".parse().unwrap()];
    put(&mut world, Some(&Version::new(1..30, &json!({}))));
    world.sync();
    world.settings.service_networks = vec!["10.96.0.0/12".parse().unwrap()];
    put(&mut world, None);
    let kernel = std::mem::take(world.backend.kernel());
    world.restart(kernel);
    let contents = world.backend.kernel().contents();
    assert_eq!(contents.count("service-networks"), 1);
    assert_eq!(contents.count("services"), 0);
}
