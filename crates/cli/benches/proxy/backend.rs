//! The backend over the real kernel.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Write as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use weft_host::{
    iptables::{Iptables as Programs, Limits, VariantChoice},
    process::own_processor_time,
};
use weft_iptables::{
    Fingerprint, HostKernel, Iptables, Kernel, KernelError, Options, OwnWrites, RawHash,
    RestoreScope, render,
};
use weft_model::{IpFamily, ObjectKey};
use weft_proxy::{
    Backend as _, Desired, LocalDetector, LoopbackNodePorts, Model, NodeFacts, NodePortTail, Scope,
    Settings, SyncReport, objects::Object,
};
use weft_ruleset::{ChainName, Table};
use weft_testkit::bench::{Report, Target, alternate, is_quick, median};

use crate::objects;

const OPTIONS: Options = Options {
    random_fully: true,
    drop_invalid: true,
    nfacct: false,
    restore: RestoreScope::Changes,
};

/// Cost of one change.
struct Cost {
    wall: f64,
    own: f64,
    all: f64,
    bytes: f64,
}

/// The time of one changed slice.
struct Slice {
    ours: f64,
    /// The bare program with the same text, in turns with ours.
    bare: f64,
}

/// The real kernel, which remembers the last input.
struct Recording {
    kernel: HostKernel,
    last: String,
}

impl Kernel for Recording {
    fn save(&mut self, line: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        self.kernel.save(line)
    }

    fn restore(&mut self, input: &str) -> Result<(), KernelError> {
        input.clone_into(&mut self.last);
        self.kernel.restore(input)
    }

    fn fingerprint(&mut self) -> Option<Fingerprint> {
        self.kernel.fingerprint()
    }

    fn raw_chains(
        &mut self,
        which: Option<&[(Table, ChainName)]>,
        each: &mut dyn FnMut(Table, ChainName, RawHash),
    ) -> Result<bool, KernelError> {
        self.kernel.raw_chains(which, each)
    }

    fn chain_rules(&mut self, table: Table, chain: ChainName) -> Result<Vec<String>, KernelError> {
        self.kernel.chain_rules(table, chain)
    }

    fn take_cpu_time(&mut self) -> Duration {
        self.kernel.take_cpu_time()
    }
}

/// A cluster and its proxy.
struct World {
    model: Model,
    desired: Desired,
    settings: Settings,
    backend: Iptables<Recording>,
    services: usize,
}

impl World {
    fn new(variant: &str, services: usize, restore: RestoreScope) -> Self {
        let facts = NodeFacts {
            name: "node-0".into(),
            zone: None,
        };
        let choice = match variant {
            "nft" => VariantChoice::Nft,
            _ => VariantChoice::Legacy,
        };
        let limits = Limits {
            program: Duration::from_secs(1800),
            ..Limits::default()
        };
        let programs = Programs::detect(IpFamily::V4, choice).unwrap();
        let kernel = Recording {
            kernel: HostKernel::new(programs.with_limits(limits), OwnWrites::default()),
            last: String::new(),
        };
        let mut world = Self {
            model: Model::new(IpFamily::V4, facts),
            desired: Desired::new(),
            settings: settings(),
            backend: Iptables::new(kernel, Options { restore, ..OPTIONS }),
            services,
        };
        for index in 0..services {
            world.put(index, 0);
        }
        world.take();
        world
    }

    fn put(&mut self, index: usize, round: usize) {
        for object in [objects::service(index), objects::slice(index, round)] {
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

    fn full(&mut self) -> Cost {
        self.cost(|world| {
            world
                .backend
                .sync(&world.desired, &world.settings, Scope::Full)
                .unwrap()
        })
    }

    /// Derives and writes the changes of the model.
    fn change(&mut self) -> Cost {
        let cost = self.cost(|world| {
            let keys = world.take();
            world
                .backend
                .sync(&world.desired, &world.settings, Scope::Changed(&keys))
                .unwrap()
        });
        assert!(cost.bytes > 0.0);
        cost
    }

    fn cost(&mut self, act: impl FnOnce(&mut Self) -> SyncReport) -> Cost {
        let (began, own) = (Instant::now(), own_processor_time().unwrap());
        let report = act(self);
        assert!(report.partial_failure.is_none(), "{report:?}");
        let own = own_processor_time().unwrap().saturating_sub(own);
        Cost {
            wall: milliseconds(began.elapsed()),
            own: milliseconds(own),
            all: milliseconds(own + report.children),
            bytes: float(report.bytes),
        }
    }
}

fn settings() -> Settings {
    Settings {
        family: IpFamily::V4,
        masquerade_all: false,
        masquerade_bit: 14,
        local_detector: Some(LocalDetector::Network("10.244.0.0/16".parse().unwrap())),
        node_ip: [127, 0, 0, 1].into(),
        node_port_tail: NodePortTail::AnyLocal,
        localhost_node_ports: true,
        external_ips: true,
        loopback: LoopbackNodePorts::Untouched,
        service_networks: Vec::new(),
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 bytes")]
fn float(number: usize) -> f64 {
    number as f64
}

/// Forgets all rules of this namespace.
fn flush(variant: &str) {
    for table in ["mangle", "filter", "nat"] {
        let input = format!("*{table}\nCOMMIT\n");
        // Without --noflush an empty table is what is left.
        let mut child = Command::new(format!("iptables-{variant}-restore"))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        assert!(child.wait().unwrap().success());
    }
}

/// The time of the bare program with this input.
fn bare(variant: &str, input: &str) -> f64 {
    fs::write("/run/input", input).unwrap();
    let began = Instant::now();
    let status = Command::new(format!("iptables-{variant}-restore"))
        .args(["-w", "5", "--noflush"])
        .stdin(File::open("/run/input").unwrap())
        .status()
        .unwrap();
    assert!(status.success(), "{variant}");
    milliseconds(began.elapsed())
}

pub(crate) fn measure(variant: &str, sizes: &[usize], report: &mut Report) {
    let rounds = if is_quick() { 1 } else { 7 };
    let mut slices = Vec::new();
    for &size in sizes {
        let largest = size == *sizes.last().unwrap();
        slices.push(measure_size(variant, size, rounds, largest, report));
        flush(variant);
        measure_without_gate(variant, size, report);
        flush(variant);
    }
    if let ([small, .., large], "nft") = (&slices[..], variant) {
        compare_growth(small, large, report);
    }
}

/// Growth of the time of one changed slice with the number of Services.
///
/// A commit that adds a rule with a verdict, whatever the rule, has the kernel validate the whole
/// table: the bare program grows by more than the 1.5 that was wanted, and no program that writes rules
/// through it can do better. Both are shown, and ours is judged by the bare program's time at the
/// largest size: a growth is the worse the faster ours is at the smallest.
fn compare_growth(small: &Slice, large: &Slice, report: &mut Report) {
    for (who, of) in [
        ("ours", (|slice| slice.ours) as fn(&Slice) -> f64),
        ("the bare program", |slice| slice.bare),
    ] {
        report.comparison(
            &format!("nft: one changed slice, 10,000 Services to 1,000, {who} (wanted: ≤ 1.5 ×)"),
            "ms",
            of(large),
            of(small),
            Target::None,
        );
    }
    report.comparison(
        "nft: growth of one changed slice, ours to the bare program's",
        "×",
        large.ours / small.ours,
        large.bare / small.bare,
        Target::None,
    );
}

fn measure_size(
    variant: &str,
    size: usize,
    rounds: usize,
    judged: bool,
    report: &mut Report,
) -> Slice {
    let judge = |target: Target| if judged { target } else { Target::None };
    let title = |what: &str| format!("{variant}, {size} Services: {what}");
    let mut world = World::new(variant, size, RestoreScope::Changes);
    let full = world.full();
    report.figure(&title("full sync"), "ms", full.wall, Target::None);
    report.figure(&title("full sync, input"), "B", full.bytes, Target::None);
    let again = world.full();
    report.figure(
        &title("full sync over the same rules"),
        "ms",
        again.wall,
        Target::None,
    );
    // One text and its way back: both can be written again and again.
    let texts = [1, 0].map(|round| {
        world.put(3, round);
        world.change();
        world.backend.kernel().last.clone()
    });
    let mut own = Vec::new();
    let mut all = Vec::new();
    let mut bytes = 0.0;
    let mut round = 0;
    let (ours, peer) = alternate(
        rounds * 2,
        || {
            round += 1;
            world.put(3, round);
            let cost = world.change();
            own.push(cost.own);
            all.push(cost.all);
            bytes = cost.bytes;
            cost.wall
        },
        || {
            // There and back again, so that the backend finds what it left.
            let there = bare(variant, &texts[1]);
            let back = bare(variant, &texts[0]);
            f64::midpoint(there, back)
        },
    );
    report.figure(
        &title("one changed slice, input"),
        "B",
        bytes,
        judge(Target::AtMost(4096.0)),
    );
    report.comparison(
        &title("one changed slice, compared with the bare program"),
        "ms",
        ours,
        peer,
        judge(Target::RatioAtMost(1.2)),
    );
    report.figure(
        &title("one changed slice, own processor time"),
        "ms",
        median(own),
        judge(Target::AtMost(2.0)),
    );
    report.figure(
        &title("one changed slice, processor time with children"),
        "ms",
        median(all),
        Target::None,
    );
    for (what, removed) in [("one added Service", false), ("one removed Service", true)] {
        let costs: Vec<Cost> = (0..rounds)
            .map(|round| {
                let index = world.services + round;
                if removed {
                    let key = ObjectKey::namespaced("bench", &format!("service-{index}"));
                    world.model.remove_service(&key);
                } else {
                    world.put(index, 0);
                }
                world.change()
            })
            .collect();
        let of = |figure: fn(&Cost) -> f64| median(costs.iter().map(figure).collect());
        report.figure(&title(what), "ms", of(|cost| cost.wall), Target::None);
        let words = format!("{what}, processor time with children");
        report.figure(&title(&words), "ms", of(|cost| cost.all), Target::None);
        let words = format!("{what}, input");
        report.figure(&title(&words), "B", of(|cost| cost.bytes), Target::None);
    }
    Slice { ours, bare: peer }
}

/// As kube-proxy did before KEP-3453: every change writes everything.
fn measure_without_gate(variant: &str, size: usize, report: &mut Report) {
    // On nft this takes minutes at the larger sizes and shows nothing new.
    if variant == "nft" && size > 1_000 {
        return;
    }
    let title = |what: &str| format!("{variant}, {size} Services, gate off: {what}");
    let mut world = World::new(variant, size, RestoreScope::Everything);
    world.full();
    world.put(3, 1);
    let cost = world.change();
    report.figure(&title("one changed slice"), "ms", cost.wall, Target::None);
    report.figure(
        &title("one changed slice, processor time with children"),
        "ms",
        cost.all,
        Target::None,
    );
    report.figure(
        &title("one changed slice, input"),
        "B",
        cost.bytes,
        Target::None,
    );
}

/// A full input as we order it, and with its chains in random order.
pub(crate) fn measure_chain_order(report: &mut Report) {
    let size = if is_quick() { 20 } else { 4_000 };
    let world = World::new("nft", size, RestoreScope::Changes);
    let ordered = render(&world.desired, &world.settings, OPTIONS).to_string();
    let shuffled = shuffle_chains(&ordered);
    flush("nft");
    let ours = bare("nft", &ordered);
    flush("nft");
    let random = bare("nft", &shuffled);
    flush("nft");
    report.comparison(
        &format!("nft, {size} Services: full input, random chain order to ours"),
        "ms",
        random,
        ours,
        if is_quick() {
            Target::None
        } else {
            Target::RatioAtLeast(4.0)
        },
    );
}

fn shuffle_chains(input: &str) -> String {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut shuffled = String::with_capacity(input.len());
    for table in input.split_inclusive("COMMIT\n") {
        let is_chain = |line: &&str| line.starts_with(':');
        let mut chains: Vec<&str> = table.lines().filter(is_chain).collect();
        rng.shuffle(&mut chains);
        let mut chains = chains.into_iter();
        for line in table.lines() {
            let line = if line.starts_with(':') {
                chains.next().unwrap()
            } else {
                line
            };
            shuffled.push_str(line);
            shuffled.push('\n');
        }
    }
    shuffled
}
