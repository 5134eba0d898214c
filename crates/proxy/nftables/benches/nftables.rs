//! Costs of the nftables mode: a change of a Service next to the bare netlink write of the same
//! elements; loads, restarts and repairs of whole clusters.
//!
//! Everything happens in a network namespace of its own.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on should panic"
)]

use std::{
    collections::BTreeSet,
    env,
    process::Command,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use weft_host::{
    nftables::{Change, Element, Value as Key},
    process::anonymous_memory,
};
use weft_model::{IpFamily, ObjectKey};
use weft_nftables::{HostKernel, Kernel, KernelError, Nftables, Structure, Watch, cleanup};
use weft_proxy::{
    Backend as _, Desired, LocalDetector, LoopbackNodePorts, Model, NodeFacts, NodePortTail, Scope,
    Settings, SyncReport, objects::Object,
};
use weft_testkit::bench::{Report, Target, is_quick, median};

#[path = "nftables/counters.rs"]
mod counters;
#[path = "nftables/flushed.rs"]
mod flushed;

const INSIDE: &str = "WEFT_BENCH_INSIDE";
const FAMILY: IpFamily = IpFamily::V4;

/// The real kernel, which remembers the last commit.
struct Recording {
    kernel: HostKernel,
    last: Vec<Change>,
}

impl Kernel for Recording {
    fn commit(&mut self, changes: &[Change]) -> Result<usize, KernelError> {
        // Only small ones are written again.
        if changes.len() < 8 {
            changes.clone_into(&mut self.last);
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
        self.kernel.foreign_changes()
    }
}

struct World {
    model: Model,
    desired: Desired,
    settings: Settings,
    backend: Nftables<Recording>,
}

/// Times in microseconds.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    own: f64,
}

fn backend() -> Nftables<Recording> {
    backend_on(Watch::new())
}

fn backend_on(watch: Watch) -> Nftables<Recording> {
    Nftables::new(Recording {
        kernel: HostKernel::new(FAMILY, watch),
        last: Vec::new(),
    })
}

impl World {
    fn new(services: usize) -> Self {
        let facts = NodeFacts {
            name: "node-0".into(),
            zone: None,
        };
        let mut world = Self {
            model: Model::new(FAMILY, facts),
            desired: Desired::new(),
            settings: Settings {
                family: FAMILY,
                masquerade_all: false,
                masquerade_bit: 14,
                local_detector: Some(LocalDetector::Network("10.244.0.0/16".parse().unwrap())),
                node_ip: [127, 0, 0, 1].into(),
                node_port_tail: NodePortTail::AnyLocal,
                localhost_node_ports: false,
                external_ips: true,
                loopback: LoopbackNodePorts::Untouched,
                service_networks: Vec::new(),
            },
            backend: backend(),
        };
        for index in 0..services {
            world.put(index, 0, 5);
        }
        world.take();
        world
    }

    fn put(&mut self, index: usize, round: usize, endpoints: usize) {
        for object in [service(index), slice(index, round, endpoints)] {
            self.model.set(&Object::decode(&object).unwrap().unwrap());
        }
    }

    fn take(&mut self) -> BTreeSet<ObjectKey> {
        let changes = self.model.take_changes();
        let keys = changes.keys().cloned().collect();
        for (key, service) in changes {
            match service {
                Some(service) => self.desired.insert(key, service),
                None => self.desired.remove(&key),
            };
        }
        keys
    }

    fn full(&mut self) -> (Cost, SyncReport) {
        cost(|| {
            self.backend
                .sync(&self.desired, &self.settings, Scope::Full)
                .unwrap()
        })
    }

    /// Derives and writes the changes of the model.
    fn change(&mut self) -> Cost {
        let (cost, report) = cost(|| {
            let keys = self.take();
            self.backend
                .sync(&self.desired, &self.settings, Scope::Changed(&keys))
                .unwrap()
        });
        assert!(report.bytes > 0 && !report.full, "{report:?}");
        cost
    }
}

fn cost<T>(act: impl FnOnce() -> T) -> (Cost, T) {
    let (began, before) = (Instant::now(), thread_time());
    let result = act();
    let own = thread_time().checked_sub(before).unwrap();
    let wall = began.elapsed();
    let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
    let cost = Cost {
        wall: micros(wall),
        own: micros(own),
    };
    (cost, result)
}

fn thread_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

fn service(index: usize) -> Value {
    let ip = format!(
        "10.{}.{}.{}",
        96 + index / 50_000,
        (index / 200) % 250,
        index % 200 + 2
    );
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "bench", "name": format!("service-{index}")},
        "spec": {"type": "ClusterIP", "clusterIP": ip,
                 "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}})
}

/// Its slice; each `round` another address for the first endpoint.
fn slice(index: usize, round: usize, endpoints: usize) -> Value {
    let endpoints: Vec<Value> = (0..endpoints)
        .map(|endpoint| {
            let first = if endpoint == 0 { round % 2 } else { 0 };
            let number = index * 7 + endpoint * 65_521;
            let address = format!(
                "{}.{}.{}.{}",
                11 + first,
                (number >> 16) & 255,
                (number >> 8) & 255,
                number & 255
            );
            json!({"addresses": [address], "nodeName": format!("node-{endpoint}")})
        })
        .collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": "bench", "name": format!("service-{index}-x"),
                     "labels": {"kubernetes.io/service-name": format!("service-{index}")}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]})
}

fn measure(services: usize, rounds: usize, report: &mut Report) -> f64 {
    let title = |what: &str| format!("{services} Services x 5: {what}");
    let memory_before = anonymous_memory().unwrap();
    let mut world = World::new(services);
    let objects = anonymous_memory().unwrap().saturating_sub(memory_before);
    let (load, _) = world.full();
    report.figure(&title("first sync"), "ms", load.wall / 1e3, Target::None);
    let words = title("first sync, processor time");
    report.figure(&words, "ms", load.own / 1e3, Target::None);
    let state = anonymous_memory().unwrap().saturating_sub(memory_before);
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 bytes")]
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    report.figure(
        &title("memory of objects"),
        "MB",
        megabytes(objects),
        Target::None,
    );
    report.figure(
        &title("memory with what was written"),
        "MB",
        megabytes(state),
        Target::None,
    );

    let mut walls = Vec::new();
    let mut owns = Vec::new();
    let (mut bare_walls, mut bare_owns) = (Vec::new(), Vec::new());
    let mut kernel = HostKernel::new(FAMILY, Watch::new());
    for round in 1..=rounds {
        let index = round * 37 % services;
        // There by the backend, and back and there again by the bare write.
        world.put(index, 1, 5);
        let ours = world.change();
        walls.push(ours.wall);
        owns.push(ours.own);
        let there = std::mem::take(&mut world.backend.kernel().last);
        world.put(index, 0, 5);
        world.change();
        let back = std::mem::take(&mut world.backend.kernel().last);
        for changes in [there, back] {
            let (bare, _) = cost(|| kernel.commit(&changes).unwrap());
            bare_walls.push(bare.wall);
            bare_owns.push(bare.own);
        }
    }
    let p99 = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[(all.len() - 1) * 99 / 100]
    };
    let judged = services >= 10_000;
    let judge = |target| if judged { target } else { Target::None };
    let one = median(walls.clone());
    report.comparison(
        &title("one changed slice, next to the bare netlink write"),
        "µs",
        one,
        median(bare_walls),
        judge(Target::None),
    );
    let words = title("one changed slice, 99th percentile");
    report.figure(&words, "µs", p99(walls), judge(Target::AtMost(3_000.0)));
    let own = median(owns);
    report.comparison(
        &title("one changed slice, processor time, next to the bare netlink write"),
        "µs",
        own,
        median(bare_owns),
        judge(Target::None),
    );
    report.figure(
        &title("one changed slice, processor time, limit"),
        "µs",
        own,
        judge(Target::AtMost(200.0)),
    );

    let mut added = Vec::new();
    let mut removed = Vec::new();
    for round in 0..rounds {
        world.put(services + round, 0, 5);
        added.push(world.change().own);
        let key = ObjectKey::namespaced("bench", &format!("service-{}", services + round));
        world.model.remove_service(&key);
        removed.push(world.change().own);
    }
    let words = title("Service added, processor time");
    report.figure(&words, "µs", median(added), Target::None);
    let words = title("Service removed, processor time");
    report.figure(&words, "µs", median(removed), Target::None);

    world.backend = backend();
    let (restart, done) = world.full();
    assert_eq!(done.bytes, 0, "a restart has nothing to write");
    let words = title("restart with nothing to write");
    report.figure(&words, "ms", restart.wall / 1e3, Target::None);
    let words = title("restart with nothing to write, processor time");
    report.figure(&words, "ms", restart.own / 1e3, Target::None);
    cleanup(FAMILY).unwrap();
    let (repair, _) = world.full();
    let words = title("all again after the table was deleted");
    report.figure(&words, "ms", repair.wall / 1e3, Target::None);
    cleanup(FAMILY).unwrap();
    own
}

/// One Service of many endpoints, of which one goes and comes.
fn measure_large(endpoints: usize, rounds: usize, report: &mut Report) {
    let mut world = World::new(0);
    world.put(0, 0, endpoints);
    world.take();
    world.full();
    let mut owns = Vec::new();
    for round in 0..rounds {
        world.put(0, 0, endpoints - 1 + round % 2);
        owns.push(world.change().own);
    }
    report.figure(
        &format!("one Service x {endpoints}: an endpoint goes or comes, processor time"),
        "µs",
        median(owns),
        Target::None,
    );
    cleanup(FAMILY).unwrap();
}

fn main() {
    if env::var_os(INSIDE).is_none() {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let status = command
            .arg("--net")
            .arg(env::current_exe().unwrap())
            .env(INSIDE, "1")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    let mut report = Report::new();
    let (sizes, rounds): (&[usize], usize) = if is_quick() {
        (&[20, 40], 2)
    } else {
        (&[1_000, 10_000, 50_000], 200)
    };
    let owns: Vec<f64> = sizes
        .iter()
        .map(|size| measure(*size, rounds, &mut report))
        .collect();
    let (first, last) = (owns[0], owns[owns.len() - 1]);
    report.comparison(
        "one changed slice, processor time, most Services to fewest",
        "µs",
        last,
        first,
        Target::RatioAtMost(1.2),
    );
    if is_quick() {
        flushed::measure(40, 500.0, &mut report);
    } else {
        flushed::measure(10_000, 500.0, &mut report);
        flushed::measure(50_000, 1_500.0, &mut report);
    }
    flushed::measure_own_changes(rounds, &mut report);
    let (services, flows) = if is_quick() {
        (20, 50)
    } else {
        (10_000, 4_000)
    };
    counters::measure(services, flows, &mut report);
    measure_large(if is_quick() { 100 } else { 10_000 }, rounds, &mut report);
    report.finish().unwrap();
}
