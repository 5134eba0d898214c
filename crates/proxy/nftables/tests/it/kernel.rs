//! The backend over the real kernel.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use weft_host::nftables::{
    Batch, Change, CommitError, Element, Expression, Field, Kind, Nftables as Connection,
    Ownership, Reason, Set, Table, TableChange, Traits, Value as Key,
};
use weft_model::{IpFamily, error_text};
use weft_nftables::{
    Counters, HostKernel, Kernel, KernelError, Nftables, Structure, TABLE, TableOptions, Watch,
    cleanup, differences, probe_by, render,
};
use weft_proxy::{AuditReport, Backend as _, LoopbackNodePorts, ReadBudget, service_networks};
use weft_testkit::{
    cluster::RandomCluster,
    lab::{self, Lab},
};

use crate::{
    simulated::refused,
    world::{World, written},
};

fn service(family: IpFamily, name: &str, number: u8, more: &Value) -> Value {
    let cluster_ip = match family {
        IpFamily::V4 => format!("10.96.0.{number}"),
        IpFamily::V6 => format!("fd00:96::{number:x}"),
    };
    let mut spec = json!({"clusterIP": cluster_ip,
                          "ports": [{"name": "http", "port": 80, "nodePort": 30000 + u16::from(number)}]});
    let mut ingress = json!([]);
    for (key, value) in more.as_object().unwrap() {
        match key.as_str() {
            "balancer" => ingress = json!([{"ip": value}]),
            _ => spec[key] = value.clone(),
        }
    }
    json!({"kind": "Service", "metadata": {"namespace": "shop", "name": name}, "spec": spec,
           "status": {"loadBalancer": {"ingress": ingress}}})
}

fn slice(family: IpFamily, name: &str, endpoints: std::ops::Range<u16>) -> Value {
    let address = |number: u16| match family {
        IpFamily::V4 => format!("10.244.{}.{}", number >> 8, number & 255),
        IpFamily::V6 => format!("fd00:10:244::{number:x}"),
    };
    let endpoints: Vec<Value> = endpoints
        .map(|number| json!({"addresses": [address(number)], "nodeName": "node-1"}))
        .collect();
    json!({"kind": "EndpointSlice",
           "metadata": {"namespace": "shop", "name": format!("{name}-x"),
                        "labels": {"kubernetes.io/service-name": name}},
           "addressType": family.as_str(), "endpoints": endpoints,
           "ports": [{"name": "http", "protocol": "TCP", "port": 8080}]})
}

/// All elements of the table but for those that packets write.
type Contents = BTreeMap<String, Vec<String>>;

fn contents(family: IpFamily) -> Contents {
    let mut connection = Connection::open().unwrap();
    let mut contents = Contents::new();
    for set in connection.sets(family, TABLE).unwrap() {
        if set.traits.dynamic.is_some() {
            continue;
        }
        let elements = connection.elements(family, TABLE, &set.name).unwrap();
        let mut words: Vec<String> = elements.iter().map(|e| format!("{e:?}")).collect();
        words.sort();
        contents.insert(set.name, words);
    }
    for rule in connection.rules(family, TABLE).unwrap() {
        let rules = contents.entry(format!("chain {}", rule.chain)).or_default();
        rules.push(format!("{rule:?}"));
    }
    contents
}

/// The contents of numbered maps depend on history, and unused chains and hairpin elements stay for a
/// while: a fresh start would write the same elements in another order.
fn without_order(contents: &Contents) -> Contents {
    let mut contents = contents.clone();
    contents.retain(|name, _| {
        let name = name.as_str();
        let stays = ["pick", "sticky", "remember", "hairpin"];
        !stays.iter().any(|word| name.contains(word))
    });
    for (name, words) in &mut contents {
        if name.ends_with("endpoints") || name.ends_with("slots") {
            *words = vec![words.len().to_string()];
        }
        if name.ends_with("affinity") {
            words.clear();
        }
    }
    contents
}

fn everything(family: IpFamily) -> Vec<Value> {
    let balancer = match family {
        IpFamily::V4 => "192.0.2.1",
        IpFamily::V6 => "2001:db8::1",
    };
    let range = match family {
        IpFamily::V4 => "198.51.100.0/25",
        IpFamily::V6 => "2001:db8:7::/49",
    };
    vec![
        service(family, "plain", 1, &json!({})),
        slice(family, "plain", 1..4),
        service(
            family,
            "club",
            2,
            &json!({"type": "LoadBalancer", "balancer": balancer,
                    "loadBalancerSourceRanges": [range], "externalTrafficPolicy": "Local"}),
        ),
        slice(family, "club", 4..6),
        service(
            family,
            "loyal",
            3,
            &json!({"type": "NodePort", "sessionAffinity": "ClientIP"}),
        ),
        slice(family, "loyal", 6..9),
        service(family, "empty", 4, &json!({})),
    ]
}

#[test]
fn the_kernel_holds_what_was_written_and_a_restart_writes_nothing() {
    lab::inside(|_| {
        for family in IpFamily::ALL {
            let mut world = World::real(family);
            for object in everything(family) {
                world.put(&object);
            }
            let report = world.sync();
            assert!(report.full && written(&report) > 10, "{report:?}");
            let before = contents(family);
            let mut connection = Connection::open().unwrap();
            let generation = connection.generation().unwrap();

            let report = world.restart(HostKernel::new(family, Watch::new()));
            assert_eq!((written(&report), report.bytes), (0, 0), "{report:?}");
            assert_eq!(connection.generation().unwrap(), generation);
            assert_eq!(contents(family), before);

            assert!(cleanup(family).unwrap());
            assert!(!cleanup(family).unwrap(), "there is none any more");
        }
    });
}

#[test]
fn what_another_process_flushes_twice_comes_back_as_it_was() {
    lab::with_programs(&["nft"], |lab| {
        for family in IpFamily::ALL {
            let (mut world, mut notifications) = listening(family);
            world.settings.service_networks =
                service_networks(["10.96.0.0/16", "fd00:96::/112"], family);
            for object in everything(family) {
                world.put(&object);
            }
            // Named by two: the one that has it keeps it, also if its name is the later one.
            world.put(&service(family, "z-first", 77, &json!({})));
            world.sync();
            world.put(&service(family, "a-second", 77, &json!({})));
            let total = world.sync().elements.unwrap().total;
            let before = contents(family);
            for _ in 0..2 {
                lab.program("nft", &["flush", "ruleset"]);
                receive(&mut notifications);
                let report = world.backend.audit(ReadBudget::Available).unwrap();
                let AuditReport::Read { repaired, .. } = report else {
                    panic!("{report:?}");
                };
                assert_eq!(repaired[0].to_string(), "weft differs");
                assert_eq!(contents(family), before);
            }
            receive(&mut notifications);
            let report = world.backend.audit(ReadBudget::Available).unwrap();
            assert_eq!(report, AuditReport::Unchanged, "own writes are not foreign");
            world.put(&slice(family, "z-first", 1..3));
            let report = world.sync();
            assert!(!report.full, "{report:?}");
            assert_eq!(
                report.elements.unwrap().total,
                total + 4,
                "two fronts of two"
            );
            lab.program("nft", &["flush", "ruleset"]);
        }
    });
}

#[test]
fn service_networks_are_followed_without_reading_the_table() {
    lab::inside(|lab| {
        for family in IpFamily::ALL {
            lab.namespace(&format!("networks-{family}")).run(|| {
                let mut world = World::on(CountingReads::new(family), family);
                for object in everything(family) {
                    world.put(&object);
                }
                world.sync();
                let reads = world.backend.kernel().reads;
                let lists = match family {
                    IpFamily::V4 => [
                        &["10.96.0.0/16"][..],
                        &["10.96.0.0/12"],
                        &["10.96.0.0/16", "10.98.0.0/16", "192.168.0.0/24"],
                        &["10.98.0.0/16", "10.99.0.0/17"],
                        &["0.0.0.0/1", "255.0.0.0/8"],
                        &[],
                    ],
                    IpFamily::V6 => [
                        &["fd00:96::/112"][..],
                        &["fd00:96::/108"],
                        &["fd00:96::/112", "fd00:97::/112", "2001:db8::/64"],
                        &["fd00:97::/112", "fd00:98::/113"],
                        &["::/1", "ffff::/16"],
                        &[],
                    ],
                };
                for list in lists {
                    let networks = service_networks(list.iter().copied(), family);
                    assert_eq!(networks.len(), list.len());
                    world.settings.service_networks = networks;
                    let report = world.sync();
                    assert!(!report.full && written(&report) <= 4, "{report:?}");
                    let after = contents(family);
                    assert_eq!(after["service-networks"].len(), list.len(), "{after:?}");
                    assert_eq!(world.backend.kernel().reads, reads);
                    let again = World::real(family).take_over(&world);
                    assert_eq!(written(&again), 0, "a restart reads the same: {list:?}");
                }
            });
        }
    });
}

/// The real kernel, with the reads of it counted.
struct CountingReads {
    kernel: HostKernel,
    reads: usize,
}

impl CountingReads {
    fn new(family: IpFamily) -> Self {
        Self {
            kernel: HostKernel::new(family, Watch::new()),
            reads: 0,
        }
    }
}

impl Kernel for CountingReads {
    fn commit(&mut self, changes: &[Change]) -> Result<usize, KernelError> {
        self.kernel.commit(changes)
    }

    fn structure(&mut self) -> Result<Option<Structure>, KernelError> {
        self.reads += 1;
        self.kernel.structure()
    }

    fn elements(&mut self, set: &str) -> Result<Vec<Element>, KernelError> {
        self.reads += 1;
        self.kernel.elements(set)
    }

    fn get_elements(&mut self, set: &str, keys: &[Key]) -> Result<Vec<Element>, KernelError> {
        self.reads += 1;
        self.kernel.get_elements(set, keys)
    }

    fn byte_limit(&self) -> usize {
        self.kernel.byte_limit()
    }

    fn foreign_changes(&mut self) -> Option<u64> {
        self.kernel.foreign_changes()
    }
}

#[test]
fn nft_prints_the_table_and_loads_what_it_printed() {
    lab::with_programs(&["nft"], |lab| {
        let cases = IpFamily::ALL.map(|family| [Counters::Off, Counters::On].map(|c| (family, c)));
        for (family, counters) in cases.into_iter().flatten() {
            let mut world = World::real(family);
            let options = TableOptions {
                counters,
                ..TableOptions::default()
            };
            world.backend = Nftables::with_options(HostKernel::new(family, Watch::new()), options);
            world.settings.loopback = LoopbackNodePorts::Rejected;
            world.settings.service_networks =
                service_networks(["10.96.0.0/16", "fd00:96::/112"], family);
            for object in everything(family) {
                world.put(&object);
            }
            world.sync();
            let printed = lab.program("nft", &["-s", "list", "ruleset"]);
            let network = world.settings.service_networks[0].to_string();
            let counter = if counters == Counters::On {
                "\t\tcounter\n"
            } else {
                ""
            };
            for words in [
                "shop/plain:http",
                "pick-3",
                "goto node-port-service",
                &network,
                counter,
            ] {
                assert!(printed.contains(words), "{words} is not in:\n{printed}");
            }
            let before = contents(family);
            cleanup(family).unwrap();
            // nft 1.0.6 cannot load an update of a map whose key is longer than a register.
            let is_loadable = |line: &&str| family == IpFamily::V4 || !line.contains("@clients {");
            let text: Vec<&str> = printed.lines().filter(is_loadable).collect();
            std::fs::write("/run/printed.nft", text.join("\n")).unwrap();
            lab.program("nft", &["-f", "/run/printed.nft"]);
            let after = contents(family);
            for (name, words) in &before {
                if !name.starts_with("chain ") {
                    assert_eq!(after.get(name), Some(words), "{family} {name}");
                }
            }
            assert_eq!(
                lab.program("nft", &["-s", "list", "ruleset"]),
                text.join("\n") + "\n",
                "printed again"
            );
            cleanup(family).unwrap();
        }
    });
}

#[test]
fn every_partial_sync_leaves_what_a_fresh_start_would() {
    lab::inside(|_| {
        for family in IpFamily::ALL {
            for seed in [40, 41] {
                let mut cluster = RandomCluster::new(seed);
                let mut world = World::real(family);
                assert!(world.sync().full);
                for round in 0..40 {
                    for edit in cluster.edit() {
                        world.edit(&edit);
                    }
                    let report = world.sync();
                    let when = format!("{family} seed {seed} round {round}");
                    assert!(!report.full, "{when}: {report:?}");
                    let after = contents(family);
                    let report = world.restart(HostKernel::new(family, Watch::new()));
                    assert_eq!(
                        written(&report),
                        0,
                        "{when}: a restart has nothing to write"
                    );
                    cleanup(family).unwrap();
                    world.restart(HostKernel::new(family, Watch::new()));
                    let fresh = contents(family);
                    assert_eq!(without_order(&after), without_order(&fresh), "{when}");
                    let has = |element| after["hairpin"].contains(element);
                    assert!(fresh["hairpin"].iter().all(has), "{when}");
                }
                cleanup(family).unwrap();
            }
        }
    });
}

fn listening(family: IpFamily) -> (World, weft_nftables::Notifications) {
    let watch = Watch::new();
    let notifications = watch.listen().unwrap();
    (
        World::on(HostKernel::new(family, watch), family),
        notifications,
    )
}

/// Receives everything that is there.
fn receive(notifications: &mut weft_nftables::Notifications) {
    for _ in 0..20 {
        notifications.receive(Duration::from_millis(2)).unwrap();
    }
}

#[test]
fn what_another_process_changes_is_noticed_and_repaired() {
    lab::with_programs(&["nft"], |lab| {
        for family in IpFamily::ALL {
            let (mut world, mut notifications) = listening(family);
            for object in everything(family) {
                world.put(&object);
            }
            world.sync();
            receive(&mut notifications);
            let unchanged = world.backend.audit(ReadBudget::Available).unwrap();
            assert_eq!(
                unchanged,
                AuditReport::Unchanged,
                "own changes do not count"
            );
            let right = contents(family);
            let word = match family {
                IpFamily::V4 => "ip",
                IpFamily::V6 => "ip6",
            };
            let disturbances = [
                "flush ruleset".to_owned(),
                format!("delete table {word} {TABLE}"),
                format!("flush chain {word} {TABLE} services"),
                format!("add rule {word} {TABLE} services drop"),
                format!("flush map {word} {TABLE} services"),
                format!("flush map {word} {TABLE} endpoints"),
                format!("flush map {word} {TABLE} pick"),
                format!("flush set {word} {TABLE} cluster-ips"),
                format!("add chain {word} {TABLE} intruder"),
                format!("add element {word} {TABLE} node-ports {{ tcp . 31999 : 0:1 }}"),
                format!("delete element {word} {TABLE} pick {{ 0:3 }}"),
            ];
            for disturbance in disturbances {
                let arguments: Vec<&str> = disturbance.split(' ').collect();
                lab.program("nft", &arguments);
                receive(&mut notifications);
                let postponed = world.backend.audit(ReadBudget::Spent).unwrap();
                assert_eq!(postponed, AuditReport::Postponed, "{disturbance}");
                let report = world.backend.audit(ReadBudget::Available).unwrap();
                let AuditReport::Read { repaired, .. } = report else {
                    panic!("{disturbance}: {report:?}");
                };
                assert!(!repaired.is_empty(), "{disturbance}");
                assert_eq!(contents(family), right, "{family} {disturbance}");
                receive(&mut notifications);
                let report = world.backend.audit(ReadBudget::Available).unwrap();
                assert_eq!(report, AuditReport::Unchanged, "{disturbance}");
            }
            // What happens to other tables does not concern us.
            lab.program("nft", &["add", "table", word, "other"]);
            receive(&mut notifications);
            let report = world.backend.audit(ReadBudget::Available).unwrap();
            assert_eq!(report, AuditReport::Unchanged);
            lab.program("nft", &["flush", "ruleset"]);
        }
    });
}

#[test]
fn lost_notifications_count_as_a_change_and_the_table_is_read() {
    lab::inside(|_| {
        let family = IpFamily::V4;
        let (mut world, mut notifications) = listening(family);
        for object in everything(family) {
            world.put(&object);
        }
        world.sync();
        receive(&mut notifications);
        let audited = world.backend.audit(ReadBudget::Available).unwrap();
        assert_eq!(audited, AuditReport::Unchanged);
        // Another program's table, which does not concern us, but for the buffer it fills.
        fill_notifications(family);
        receive(&mut notifications);
        let audited = world.backend.audit(ReadBudget::Available).unwrap();
        let AuditReport::Read { repaired, .. } = audited else {
            panic!("{audited:?}");
        };
        assert_eq!(repaired, []);
        receive(&mut notifications);
        let audited = world.backend.audit(ReadBudget::Available).unwrap();
        assert_eq!(audited, AuditReport::Unchanged, "once");
    });
}

/// Has another socket cause more notifications than the buffer of a listener holds.
fn fill_notifications(family: IpFamily) {
    const TABLE: &str = "other";
    const BUFFER: usize = 16 << 20;
    let mut connection = Connection::open().unwrap();
    let mut commit = |changes: &[Change]| {
        let mut batch = Batch::new();
        for change in changes {
            batch.push(change);
        }
        connection.commit(&batch).unwrap();
        batch.len()
    };
    let within = |change| Change::Within {
        family,
        table: TABLE.to_owned(),
        change,
    };
    commit(&[
        Change::AddTable(Table {
            family,
            name: TABLE.to_owned(),
            comment: None,
            ownership: Ownership::Shared,
        }),
        within(TableChange::AddSet(Set {
            name: "numbers".to_owned(),
            key: vec![Field::Classid],
            kind: Kind::Set,
            traits: Traits::default(),
        })),
    ]);
    let element = |number| Element::of_key(Key::EMPTY.with_number(number));
    let elements: Vec<Element> = (0..1_000).map(element).collect();
    let (set, is_concatenation) = ("numbers".to_owned(), false);
    let add = within(TableChange::AddElements {
        set: set.clone(),
        is_concatenation,
        elements: elements.clone(),
    });
    let delete = within(TableChange::DeleteElements {
        set,
        is_concatenation,
        elements,
    });
    let mut sent = 0;
    while sent < BUFFER {
        sent += commit(std::slice::from_ref(&add)) + commit(std::slice::from_ref(&delete));
    }
}

/// Ends after this many commits, as a process that is killed.
struct Killed {
    kernel: HostKernel,
    commits: usize,
}

impl Kernel for Killed {
    fn commit(&mut self, changes: &[Change]) -> Result<usize, KernelError> {
        if self.commits == 0 {
            return Err(KernelError::Commit(CommitError::Unknown));
        }
        self.commits -= 1;
        let added = changes.iter().map(|change| match change {
            Change::Within {
                change: TableChange::AddElements { set, elements, .. },
                ..
            } if set != "pick" && !set.contains("sticky") => elements.len(),
            _ => 0,
        });
        let added: usize = added.sum();
        assert!(added <= self.element_limit(), "{added} elements at once");
        self.kernel.commit(changes)
    }

    fn structure(&mut self) -> Result<Option<Structure>, KernelError> {
        self.kernel.structure()
    }

    fn elements(&mut self, set: &str) -> Result<Vec<Element>, KernelError> {
        self.kernel.elements(set)
    }

    fn get_elements(&mut self, set: &str, keys: &[Key]) -> Result<Vec<Element>, KernelError> {
        self.kernel.get_elements(set, keys)
    }

    /// Small, so that there are many commits.
    fn element_limit(&self) -> usize {
        7
    }

    fn byte_limit(&self) -> usize {
        self.kernel.byte_limit()
    }

    fn foreign_changes(&mut self) -> Option<u64> {
        None
    }
}

#[test]
fn a_load_that_is_killed_anywhere_is_completed_by_the_next_start() {
    lab::inside(|_| {
        let family = IpFamily::V4;
        let kernel = |commits| Killed {
            kernel: HostKernel::new(family, Watch::new()),
            commits,
        };
        let mut world = World::on(kernel(usize::MAX), family);
        for object in everything(family) {
            world.put(&object);
        }
        world.put(&service(family, "large", 9, &json!({})));
        world.put(&slice(family, "large", 100..130));
        world.derive();
        world.restart(kernel(usize::MAX));
        let right = contents(family);
        let mut commits = 0;
        loop {
            cleanup(family).unwrap();
            world.backend = Nftables::new(kernel(commits));
            let (desired, settings) = (world.desired.clone(), world.settings.clone());
            let scope = weft_proxy::Scope::Full;
            let outcome = world.backend.sync(&desired, &settings, scope);
            if outcome.is_ok() {
                break;
            }
            world.restart(kernel(usize::MAX));
            assert_eq!(contents(family), right, "killed after {commits} commits");
            commits += 1;
        }
        assert!(commits > 5, "{commits}");
    });
}

#[test]
fn a_service_of_many_endpoints_grows_and_shrinks() {
    lab::inside(|_: &Lab| {
        let family = IpFamily::V4;
        let mut world = World::real(family);
        world.put(&service(family, "large", 9, &json!({"type": "NodePort"})));
        for end in [10_000, 9_000, 1, 3, 0, 12_000] {
            world.put(&slice(family, "large", 1..end + 1));
            let report = world.sync();
            assert!(report.partial_failure.is_none(), "{report:?}");
            let endpoints = contents(family);
            for map in ["endpoints", "node-port-endpoints"] {
                assert_eq!(endpoints[map].len(), usize::from(end), "{map}");
            }
            assert!(endpoints.contains_key(&format!("chain pick-{end}")) || end == 0);
        }
        let report = world.restart(HostKernel::new(family, Watch::new()));
        assert_eq!(written(&report), 0);
    });
}

#[test]
fn source_ranges_that_overlap_former_ones_are_replaced_by_a_change_and_by_a_restart() {
    lab::inside(|_| {
        for family in IpFamily::ALL {
            let (balancer, lists) = match family {
                IpFamily::V4 => (
                    "192.0.2.1",
                    [
                        &["198.51.101.0/24", "10.0.0.0/8"][..],
                        &["198.51.100.0/23"],
                        &["198.51.100.0/25", "198.51.101.128/25"],
                    ],
                ),
                IpFamily::V6 => (
                    "2001:db8::1",
                    [
                        &["2001:db8:7:1::/64", "fd00::/8"][..],
                        &["2001:db8:7::/63"],
                        &["2001:db8:7::/65", "2001:db8:7:1:8000::/65"],
                    ],
                ),
            };
            let mut world = World::real(family);
            for round in 0..6 {
                let list = lists[round % lists.len()];
                let more = json!({"type": "LoadBalancer", "balancer": balancer,
                                  "loadBalancerSourceRanges": list});
                world.put(&service(family, "club", 1, &more));
                if round < 3 {
                    let report = world.sync();
                    assert!(report.partial_failure.is_none(), "{report:?}");
                } else {
                    world.restart(HostKernel::new(family, Watch::new()));
                }
                assert_eq!(contents(family)["source-ranges"].len(), list.len());
            }
            cleanup(family).unwrap();
        }
    });
}

#[test]
fn a_name_longer_than_a_comment_is_cut_and_nothing_is_written_again() {
    lab::inside(|_| {
        let family = IpFamily::V4;
        let mut world = World::real(family);
        let mut long = service(family, &"n".repeat(63), 1, &json!({}));
        long["metadata"]["namespace"] = "s".repeat(63).into();
        world.put(&long);
        world.sync();
        let report = world.restart(HostKernel::new(family, Watch::new()));
        assert_eq!(written(&report), 0);
    });
}

#[test]
fn two_services_with_one_front_do_not_disturb_each_other() {
    lab::inside(|_| {
        let family = IpFamily::V4;
        let mut world = World::real(family);
        let shared = json!({"type": "NodePort", "externalIPs": ["192.0.2.9"]});
        for (name, number) in [("z-first", 1), ("a-second", 2)] {
            world.put(&service(family, name, number, &shared));
            world.put(&slice(family, name, 1..3));
            let contested = world.sync().elements.map(|count| count.contested);
            assert_eq!(contested, Some(usize::from(number - 1)));
        }
        let owner = || {
            let all = contents(family);
            let found = all["services"].iter().find(|e| e.contains("c0000209"));
            found.map(|e| e.contains("shop/z-first:http"))
        };
        assert_eq!(owner(), Some(true), "the first keeps it");
        assert_eq!(contents(family)["services"].len(), 3);
        let report = world.restart(HostKernel::new(family, Watch::new()));
        assert_eq!(written(&report), 0, "also over a restart");
        let key = weft_model::ObjectKey::namespaced("shop", "z-first");
        world.model.remove_service(&key);
        let contested = world.sync().elements.map(|count| count.contested);
        assert_eq!(contested, Some(0));
        assert_eq!(owner(), Some(false), "the second inherits it");
        let report = world.restart(HostKernel::new(family, Watch::new()));
        assert_eq!(written(&report), 0);
    });
}

#[test]
fn a_service_that_cannot_be_written_is_left_out_and_named() {
    lab::inside(|_| {
        let family = IpFamily::V4;
        let mut world = World::real(family);
        let bad = json!({"kind": "EndpointSlice",
            "metadata": {"namespace": "shop", "name": "bad-x",
                         "labels": {"kubernetes.io/service-name": "bad"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["224.0.0.1"]}],
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}]});
        world.put(&service(family, "bad", 1, &json!({})));
        world.put(&bad);
        world.put(&service(family, "good", 2, &json!({})));
        world.put(&slice(family, "good", 1..3));
        world.guarded_sync().unwrap();
        assert_eq!(world.held(), ["bad"]);
        assert_eq!(contents(family)["services"].len(), 1);
        world.put(&slice(family, "bad", 1..2));
        world.guarded_sync().unwrap();
        assert_eq!(world.held(), Vec::<String>::new());
        assert_eq!(contents(family)["services"].len(), 2);
    });
}

/// Refuses elements that hold these bytes, as a kernel would.
struct Picky {
    kernel: HostKernel,
    poison: Arc<[u8]>,
}

impl Kernel for Picky {
    fn commit(&mut self, changes: &[Change]) -> Result<usize, KernelError> {
        for (place, change) in changes.iter().enumerate() {
            if let Change::Within {
                change: TableChange::AddElements { elements, .. },
                ..
            } = change
            {
                let found = elements.iter().position(|element| {
                    let key = element.key.as_bytes();
                    key.windows(self.poison.len()).any(|w| *w == *self.poison)
                });
                if let Some(element) = found {
                    return Err(refused(place, element, Reason::Invalid));
                }
            }
        }
        self.kernel.commit(changes)
    }

    fn structure(&mut self) -> Result<Option<Structure>, KernelError> {
        self.kernel.structure()
    }

    fn elements(&mut self, set: &str) -> Result<Vec<Element>, KernelError> {
        self.kernel.elements(set)
    }

    fn get_elements(&mut self, set: &str, keys: &[Key]) -> Result<Vec<Element>, KernelError> {
        self.kernel.get_elements(set, keys)
    }

    fn byte_limit(&self) -> usize {
        self.kernel.byte_limit()
    }

    fn foreign_changes(&mut self) -> Option<u64> {
        None
    }
}

#[test]
fn a_service_that_the_kernel_refuses_is_left_out_and_the_rest_is_written() {
    lab::inside(|_| {
        let family = IpFamily::V4;
        let kernel = Picky {
            kernel: HostKernel::new(family, Watch::new()),
            poison: [10, 96, 0, 3].into(),
        };
        let mut world = World::on(kernel, family);
        for number in 1..=5 {
            let name = format!("service-{number}");
            world.put(&service(family, &name, number, &json!({})));
            world.put(&slice(family, &name, 1..4));
        }
        world.guarded_sync().unwrap();
        assert_eq!(world.held(), ["service-3"]);
        assert_eq!(contents(family)["services"].len(), 4);
        assert_eq!(contents(family)["endpoints"].len(), 12);
        // And in a partial sync, whose other changes are written.
        world.put(&slice(family, "service-1", 1..2));
        world.put(&slice(family, "service-3", 1..3));
        let report = world.guarded_sync().unwrap();
        assert!(!report.full, "{report:?}");
        assert_eq!(contents(family)["endpoints"].len(), 10);
    });
}

#[test]
fn a_map_that_is_full_leaves_out_the_services_that_do_not_fit() {
    lab::with_programs(&["nft"], |lab| {
        let family = IpFamily::V4;
        World::real(family).sync();
        // The same table, but for a limit that another program gave one of its maps.
        let printed = lab.program("nft", &["list", "ruleset"]);
        let limited = printed.replacen("\tmap services {\n", "\tmap services {\n\t\tsize 3\n", 1);
        assert_ne!(printed, limited, "{printed}");
        cleanup(family).unwrap();
        std::fs::write("/run/limited.nft", limited).unwrap();
        lab.program("nft", &["-f", "/run/limited.nft"]);

        let mut world = World::real(family);
        for number in 1..=5 {
            let name = format!("service-{number}");
            world.put(&service(family, &name, number, &json!({})));
            world.put(&slice(family, &name, 1..3));
        }
        let report = world.guarded_sync().unwrap();
        assert_eq!(world.held(), ["service-4", "service-5"]);
        let refusals = report.refusals.iter().map(|refusal| error_text(refusal));
        let refusals: Vec<String> = refusals.collect();
        let is_full = |words: &String| words.contains("services: the set is full");
        assert!(refusals.iter().all(is_full), "{refusals:?}");
        assert_eq!(contents(family)["services"].len(), 3);
        assert_eq!(contents(family)["endpoints"].len(), 6);
        // One that goes makes room, and one that stays changes.
        let key = weft_model::ObjectKey::namespaced("shop", "service-1");
        world.model.remove_service(&key);
        world.put(&slice(family, "service-2", 1..2));
        world.guarded_sync().unwrap();
        world.put(&slice(family, "service-4", 1..2));
        world.now += Duration::from_hours(1);
        world.guarded_sync().unwrap();
        assert_eq!(world.held(), ["service-5"]);
        assert_eq!(contents(family)["services"].len(), 3);
    });
}

#[test]
fn what_would_be_written_loads_by_nft_and_differs_from_nothing() {
    lab::with_programs(&["nft"], |lab| {
        for family in IpFamily::ALL {
            let mut world = World::real(family);
            for object in everything(family) {
                world.put(&object);
            }
            world.derive();
            let rendered = render(&world.desired, &world.settings).unwrap();
            assert!(
                rendered.contains("comment \"shop/plain:http\""),
                "{rendered}"
            );
            world.sync();
            let mut kernel = HostKernel::new(family, Watch::new());
            let desired = world.desired.clone();
            let mut left = || differences(&mut kernel, &desired, &world.settings).unwrap();
            assert_eq!(left(), "");
            let before = contents(family);
            let word = match family {
                IpFamily::V4 => "ip",
                IpFamily::V6 => "ip6",
            };
            for map in [
                "services",
                "endpoints",
                "node-ports",
                "source-ranges",
                "hairpin",
            ] {
                let kind = if map.ends_with('s') && !map.starts_with("source") {
                    "map"
                } else {
                    "set"
                };
                lab.program("nft", &["flush", kind, word, TABLE, map]);
            }
            let missing = left();
            std::fs::write("/run/missing.nft", missing).unwrap();
            lab.program("nft", &["-f", "/run/missing.nft"]);
            assert_eq!(contents(family), before, "{family}");
            assert_eq!(left(), "");
            // A number of endpoints that has no chain yet, and an affinity timeout that has none.
            world.put(&slice(family, "plain", 1..12));
            let sticky = json!({"sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 77}}});
            world.put(&service(family, "empty", 4, &sticky));
            world.put(&slice(family, "empty", 20..22));
            world.derive();
            let text = differences(&mut kernel, &world.desired, &world.settings).unwrap();
            let rule =
                format!("add rule {word} {TABLE} pick-11 meta priority set numgen random mod 11");
            let pick = format!("add element {word} {TABLE} pick {{ 0:b : jump pick-11 }}");
            let sticky =
                format!("# add element {word} {TABLE} sticky {{ 0:4d : goto sticky-77s }}");
            for words in [&rule, &pick, &sticky] {
                let is_there = text.lines().any(|line| line.starts_with(words));
                assert!(is_there, "{words} is not in:\n{text}");
            }
            std::fs::write("/run/more.nft", &text).unwrap();
            lab.program("nft", &["-f", "/run/more.nft"]);
            // What is left is what was a comment: the chains of the timeout.
            let text = differences(&mut kernel, &world.desired, &world.settings).unwrap();
            let is_comment = |line: &str| line.starts_with("# ");
            assert!(!text.is_empty() && text.lines().all(is_comment), "{text}");
            world.sync();
            let text = differences(&mut kernel, &world.desired, &world.settings).unwrap();
            assert_eq!(text, "");
            // The chain for eleven endpoints stays for a while: no mistake of anyone.
            world.put(&slice(family, "plain", 1..5));
            world.sync();
            lab.program("nft", &["list", "chain", word, TABLE, "pick-11"]);
            let text = differences(&mut kernel, &world.desired, &world.settings).unwrap();
            assert_eq!(text, "");
            cleanup(family).unwrap();
        }
    });
}

/// The commands that docs/proxy.md has for operators.
#[test]
fn nft_shows_the_program_on_a_page_and_a_service_by_its_front() {
    lab::with_programs(&["nft"], |lab| {
        for family in IpFamily::ALL {
            let mut world = World::real(family);
            for object in everything(family) {
                world.put(&object);
            }
            world.sync();
            let page = || lab.program("nft", &["-t", "list", "ruleset"]);
            let (word, front, node) = match family {
                IpFamily::V4 => ("ip", "10.96.0.1", "10.244.0.2"),
                IpFamily::V6 => ("ip6", "fd00:96::1", "fd00:10:244::2"),
            };
            let before = page();
            assert!(
                before.contains(&format!("table {word} {TABLE} {{")),
                "{before}"
            );
            for words in [
                "map services {",
                "chain pick-3 {",
                "numgen random mod 3",
                "goto no-endpoints",
            ] {
                assert!(before.contains(words), "{words} is not in:\n{before}");
            }
            assert!(!before.contains("shop/"), "no elements:\n{before}");
            // More Services of the same numbers of endpoints: the same page.
            for number in 10..30 {
                let name = format!("more-{number}");
                world.put(&service(family, &name, number, &json!({})));
                world.put(&slice(family, &name, 1..4));
            }
            world.sync();
            assert_eq!(page(), before);
            let get = |map: &str, key: &str| {
                let key = format!("{{ {key} }}");
                lab.program("nft", &["get", "element", word, TABLE, map, &key])
            };
            let found = get("services", &format!("{front} . tcp . 80"));
            assert!(
                found.contains("comment \"shop/plain:http\" : 1000:3"),
                "{found}"
            );
            let found = get("node-ports", "tcp . 30003");
            assert!(found.contains("comment \"shop/loyal:http\""), "{found}");
            let found = get("endpoints", &format!("{front} . tcp . 80 . 1000:2"));
            assert!(found.contains(&format!(": {node} . 8080")), "{found}");
            cleanup(family).unwrap();
        }
    });
}

/// A kernel that lacks the expression `masq`: it gets another one that no kernel has.
struct Lacking(HostKernel);

impl Kernel for Lacking {
    fn commit(&mut self, changes: &[Change]) -> Result<usize, KernelError> {
        let mut changes = changes.to_vec();
        for change in &mut changes {
            if let Change::Within {
                change: TableChange::AddRule(rule),
                ..
            } = change
            {
                let lacks = |expression: &&mut Expression| **expression == Expression::Masquerade;
                for expression in rule.expressions.iter_mut().filter(lacks) {
                    *expression = Expression::Other("none".to_owned());
                }
            }
        }
        self.0.commit(&changes)
    }

    fn structure(&mut self) -> Result<Option<Structure>, KernelError> {
        self.0.structure()
    }

    fn elements(&mut self, set: &str) -> Result<Vec<Element>, KernelError> {
        self.0.elements(set)
    }

    fn get_elements(&mut self, set: &str, keys: &[Key]) -> Result<Vec<Element>, KernelError> {
        self.0.get_elements(set, keys)
    }

    fn byte_limit(&self) -> usize {
        self.0.byte_limit()
    }

    fn foreign_changes(&mut self) -> Option<u64> {
        None
    }
}

#[test]
fn a_probe_leaves_nothing_and_names_what_the_kernel_lacks() {
    lab::with_programs(&["nft"], |lab| {
        for family in IpFamily::ALL {
            let kernel = || HostKernel::new(family, Watch::new());
            let options = TableOptions::default();
            probe_by(&mut kernel(), family, options).unwrap();
            let error = probe_by(&mut Lacking(kernel()), family, options).unwrap_err();
            // And nothing else of the rule.
            assert_eq!(
                error_text(&error),
                "cannot add rule postrouting (masq): the kernel does not support it"
            );
            assert_eq!(lab.program("nft", &["list", "tables"]), "");
        }
    });
}
