//! Recovery after another program removed all rules, and the cost of noticing changes.

use std::{
    net::{IpAddr, Ipv4Addr},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use weft_host::nftables::{Nftables as Connection, Value as Key};
use weft_nftables::{TABLE, Watch, cleanup};
use weft_proxy::{AuditReport, Backend as _, ReadBudget, objects::Object};
use weft_testkit::bench::{Report, Target};

use crate::{FAMILY, World, backend_on, cost};

const DNS: Ipv4Addr = Ipv4Addr::new(10, 95, 0, 10);

/// A cluster that has DNS.
fn world(services: usize, watch: &Watch) -> World {
    let mut world = World::new(services);
    world.backend = backend_on(watch.clone());
    let dns = json!({"kind": "Service", "metadata": {"namespace": "kube-system", "name": "kube-dns"},
        "spec": {"clusterIP": IpAddr::from(DNS),
                 "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}});
    let slice = json!({"kind": "EndpointSlice",
        "metadata": {"namespace": "kube-system", "name": "kube-dns-x",
                     "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.244.0.53"]}],
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]});
    for object in [dns, slice] {
        let object = Object::decode(&object).unwrap().unwrap();
        assert!(world.model.set(&object).is_empty());
    }
    world.take();
    world
}

/// Waits until DNS is served, asked by another socket each millisecond, and returns when that was.
fn dns_is_back(connection: &mut Connection, gone: &AtomicBool) -> Instant {
    let front = Key::EMPTY
        .with(&DNS.octets())
        .with(&[17])
        .with(&53u16.to_be_bytes());
    loop {
        let found = connection.get_elements(FAMILY, TABLE, "services", &[front]);
        let is_there = found.is_ok_and(|found| found.len() == 1);
        match (is_there, gone.load(Ordering::Acquire)) {
            (true, true) => return Instant::now(),
            (false, false) => gone.store(true, Ordering::Release),
            _ => {}
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// `nft flush ruleset` by another program, twice within a moment, until everything is back.
pub(crate) fn measure(services: usize, limit: f64, report: &mut Report) {
    let watch = Watch::new();
    let mut world = world(services, &watch);
    world.full();
    let (sender, disturbed) = mpsc::channel();
    watch.on_change(move |_| {
        let _ = sender.send(());
    });
    let mut notifications = watch.listen().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let listener = thread::spawn(move || {
        while !stopped.load(Ordering::Acquire) {
            notifications.receive(Duration::from_millis(100)).unwrap();
        }
    });
    // The first audit compares, because nothing was counted before.
    world.backend.audit(ReadBudget::Available).unwrap();
    let (mut urgent, mut all) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        while disturbed.try_recv().is_ok() {}
        let gone = Arc::new(AtomicBool::new(false));
        let probe = thread::spawn({
            let gone = gone.clone();
            let mut connection = Connection::open().unwrap();
            move || dns_is_back(&mut connection, &gone)
        });
        let status = Command::new("nft").args(["flush", "ruleset"]).status();
        let flushed = Instant::now();
        assert!(status.unwrap().success());
        gone.store(true, Ordering::Release);
        loop {
            disturbed.recv_timeout(Duration::from_secs(10)).unwrap();
            let audited = world.backend.audit(ReadBudget::Available).unwrap();
            if matches!(audited, AuditReport::Read { repaired, .. } if !repaired.is_empty()) {
                break;
            }
        }
        all.push(flushed.elapsed().as_secs_f64() * 1e3);
        let back = probe.join().unwrap();
        urgent.push(back.saturating_duration_since(flushed).as_secs_f64() * 1e3);
    }
    stop.store(true, Ordering::Release);
    listener.join().unwrap();
    let worst = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    let title = |what: &str| format!("{services} Services x 5, flushed twice: {what}");
    let words = title("DNS served again");
    report.figure(&words, "ms", worst(&urgent), Target::AtMost(100.0));
    let words = title("all served again");
    report.figure(&words, "ms", worst(&all), Target::AtMost(limit));
    cleanup(FAMILY).unwrap();
}

/// The cost of the listener for each change of our own.
pub(crate) fn measure_own_changes(rounds: usize, report: &mut Report) {
    let watch = Watch::new();
    let mut world = world(1_000, &watch);
    world.full();
    let mut notifications = watch.listen().unwrap();
    for round in 0..rounds {
        world.put(round % 1_000, 1 + round / 1_000, 5);
        world.change();
    }
    // The kernel queues what the listener has to look at: of our own changes, nothing.
    let (cost, ()) = cost(|| notifications.receive(Duration::from_millis(10)).unwrap());
    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    let each = cost.own / rounds as f64;
    let words = "own change of a slice, processor time of the listener";
    report.figure(words, "µs", each, Target::AtMost(5.0));
    cleanup(FAMILY).unwrap();
}
