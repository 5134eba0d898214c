//! Cost of a large cluster for one node: bytes from the API server, and memory.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use http::Method;
use serde_json::json;
use weft_testkit::bench::{Report, Target};

use crate::{
    daemon::{Daemon, add},
    judge::{full_or_quick, unless_quick},
    stage::{NODE, Stage},
};

/// Pods of this node, whatever the cluster's size.
const OWN: usize = 10;

pub(crate) fn measure(report: &mut Report) {
    let large = full_or_quick(10_000, 30);
    let (few, _, _) = received(OWN);
    let (many, stage, daemon) = received(large);
    report.comparison(
        &format!("bytes from the API server, {large} pods in the cluster, compared with {OWN}"),
        "B",
        many,
        few,
        unless_quick(Target::RatioAtMost(1.05)),
    );
    memory(&stage, &daemon, report);
}

/// Bytes that a daemon receives from its start on, while pods of other nodes change.
fn received(pods: usize) -> (f64, Stage, Daemon) {
    let stage = Stage::new(16);
    stage.add_pods(NODE, OWN);
    stage.add_pods("elsewhere", pods - OWN);
    let meter = Meter::to(stage.address);
    let daemon = Daemon::start(stage.directory.path(), meter.address);
    daemon.until_ready();
    let until = Instant::now() + Duration::from_secs(full_or_quick(20, 1));
    for pod in 0..(pods - OWN).min(1_000) {
        let path = format!("/api/v1/namespaces/default/pods/elsewhere-{pod}/status");
        let status = json!({"status": {"phase": "Running", "podIP": "10.9.0.1"}});
        stage.call(Method::PATCH, &path, &status);
    }
    thread::sleep(until.saturating_duration_since(Instant::now()));
    let bytes = u32::try_from(meter.bytes.load(Relaxed)).unwrap();
    (f64::from(bytes), stage, daemon)
}

/// A node as full as it gets.
fn memory(stage: &Stage, daemon: &Daemon, report: &mut Report) {
    let full = full_or_quick(250, 20);
    for pod in OWN..full {
        let object = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("late-{pod}"), "namespace": "default"},
            "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}]}});
        stage.call(Method::POST, "/api/v1/namespaces/default/pods", &object);
    }
    for pod in 0..full {
        add(&daemon.socket, &format!("pod-{pod}")).unwrap();
    }
    thread::sleep(Duration::from_secs(full_or_quick(10, 1)));
    report.figure(
        &format!("RssAnon of weft ipam, {full} pods on the node"),
        "MB",
        daemon.process.anonymous_memory(),
        unless_quick(Target::AtMost(25.0)),
    );
}

/// Passes connections on and counts what comes back.
struct Meter {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
}

impl Meter {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let bytes = Arc::<AtomicU64>::default();
        let counted = bytes.clone();
        // It ends with the benchmark.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(server).unwrap();
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || pass(from, to, &AtomicU64::new(0)));
                let counted = counted.clone();
                thread::spawn(move || pass(server, client, &counted));
            }
        });
        Self { address, bytes }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64) {
    let mut buffer = [0; 16 << 10];
    // Whichever side ends, the other learns of it.
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        count.fetch_add(length as u64, Relaxed);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}
