//! New connections through a Service, all the time, while one proxy takes over from the other.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use weft_testkit::{
    cluster::{Edit, ObjectName, RandomCluster},
    lab::{Lab, Namespace},
};

use crate::arena::{Arena, PATIENCE, Running};

/// A SYN without an answer is sent again after a second: a connection that was quicker was answered
/// at first.
const UNANSWERED: Duration = Duration::from_millis(900);

const SERVICE: &str = "10.96.200.1:80";

/// A Service whose endpoint changes, to show that a proxy has taken over.
const MARKER: &str = "10.96.200.2:80";

/// The port of the Service's endpoint.
const PORT: u16 = 8080;

/// The endpoint, in a namespace of its own behind the node.
const ENDPOINT: &str = "10.1.0.2";

/// Outcomes of the connections.
struct Traffic {
    connections: usize,
    failures: Vec<String>,
}

impl Traffic {
    /// Connects repeatedly until `stop` is set. Failures name the step.
    fn flow(client: &Namespace, stop: &AtomicBool, step: &Mutex<String>) -> Self {
        client.run(|| {
            let mut traffic = Self {
                connections: 0,
                failures: Vec::new(),
            };
            let service: SocketAddr = SERVICE.parse().unwrap();
            let mut known = sent_again();
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                let answer = TcpStream::connect_timeout(&service, Duration::from_secs(5));
                let took = began.elapsed();
                traffic.connections += 1;
                match answer {
                    Ok(_) if took < UNANSWERED => {}
                    // The client itself may have waited that long for a processor.
                    Ok(_) => {
                        let now = sent_again();
                        if now > known {
                            known = now;
                            let line = format!("answered the second SYN, after {took:?}");
                            let step = step.lock().unwrap();
                            traffic.failures.push(format!("{step}: {line}"));
                        }
                    }
                    Err(error) => {
                        let step = step.lock().unwrap();
                        let line = format!("{step}: {error} after {took:?}");
                        traffic.failures.push(line);
                    }
                }
                thread::sleep(Duration::from_millis(2));
            }
            traffic
        })
    }
}

/// Number of SYNs that the calling thread's namespace retransmitted.
fn sent_again() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut counters = names.split(' ').zip(values.split(' '));
    let counter = counters.find(|(name, _)| *name == "TCPSynRetrans");
    counter.unwrap().1.parse().unwrap()
}

/// A service proxy in one of its modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proxy {
    KubeProxy(&'static str),
    Weft(&'static str),
}

impl Proxy {
    fn start(self, arena: &Arena, node: &Namespace, peer: &Path) -> Running {
        let mode = |mode: &str| format!("--proxy-mode={mode}");
        match self {
            Self::KubeProxy(name) => {
                let program = [peer.to_str().unwrap(), &mode(name)];
                arena.start(node, "kube-proxy", &program)
            }
            Self::Weft(name) => arena.start_weft_with(node, &[&mode(name)]),
        }
    }
}

/// One proxy after the other on one node. A client on the other side of the node connects to the
/// Service all the while, and nothing else keeps the connection alive: each is new.
pub(super) fn take_over(lab: &Lab, peer: &Path, variant: &str, proxies: &[Proxy]) {
    let arena = Arena::new(variant);
    let node = lab.namespace("node");
    let client = lab.namespace("client");
    let server = lab.namespace("server");
    arena.serve(&node);
    wire(lab, &node, &client, &server);
    for port in [PORT].into_iter().chain(marker_ports(proxies)) {
        serve(&server, port);
    }
    let cluster = RandomCluster::new(1);
    arena.create_namespace("default");
    for (name, object) in cluster.objects() {
        arena.apply(&[Edit::Put(name.clone(), object.clone())]);
    }
    arena.apply(&service());

    let (first, others) = proxies.split_first().unwrap();
    let first = first.start(&arena, &node, peer);
    wait_for_an_answer(&client);
    let stop = AtomicBool::new(false);
    let step = Mutex::new(String::new());
    let traffic = thread::scope(|scope| {
        let traffic = scope.spawn(|| Traffic::flow(&client, &stop, &step));
        let mut running = first;
        for ((next, port), former) in others.iter().zip(marker_ports(proxies)).zip(proxies) {
            *step.lock().unwrap() = format!("{former:?} to {next:?}");
            drop(running);
            running = next.start(&arena, &node, peer);
            // Without this the table of weft would go on answering with what it had.
            if let Proxy::KubeProxy(_) = next {
                let program = env!("CARGO_BIN_EXE_weft");
                node.program(program, &["proxy", "cleanup", "--hand-over"]);
            }
            // It has taken over when it acts on a change.
            arena.apply(&[marker(port)]);
            wait_for_marker(&client, port, *next);
            assert_only_one_serves(&node, *next);
        }
        stop.store(true, Ordering::Relaxed);
        traffic.join().unwrap()
    });
    assert!(
        traffic.connections > 100,
        "too few to mean much: {}",
        traffic.connections
    );
    assert_eq!(
        traffic.failures,
        Vec::<String>::new(),
        "of {}",
        traffic.connections
    );
}

/// A port of the marker's endpoint for each change of proxies.
fn marker_ports(proxies: &[Proxy]) -> impl Iterator<Item = u16> + use<> {
    (9000..).take(proxies.len() - 1)
}

/// Sends each client the port that it has reached.
fn serve(server: &Namespace, port: u16) {
    let listener = server.run(|| TcpListener::bind((ENDPOINT, port)).unwrap());
    // A backlog for connections that arrive while the accepting thread waits for a processor: with a
    // full one the kernel drops SYNs, which would look like a failure of the proxy.
    rustix::net::listen(&listener, 4096).unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            // Clients that only connect are gone by now.
            let _ = connection.unwrap().write_all(&port.to_be_bytes());
        }
    });
}

/// Waits until the marker's Service leads to this port.
fn wait_for_marker(client: &Namespace, port: u16, proxy: Proxy) {
    let deadline = Instant::now() + PATIENCE;
    let reached = || {
        let service: SocketAddr = MARKER.parse().unwrap();
        let mut socket = TcpStream::connect_timeout(&service, Duration::from_millis(500)).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        let mut port = [0; 2];
        socket.read_exact(&mut port).ok()?;
        Some(u16::from_be_bytes(port))
    };
    while client.run(reached) != Some(port) {
        assert!(Instant::now() < deadline, "{proxy:?} does nothing");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until nothing of the former proxy is left in the kernel: a proxy removes it after its first
/// sync.
fn assert_only_one_serves(node: &Namespace, proxy: Proxy) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut status = node.command(env!("CARGO_BIN_EXE_weft"));
        let status = status.args(["proxy", "status"]).output().unwrap();
        if status.status.success() {
            return;
        }
        let words = String::from_utf8_lossy(&status.stdout).into_owned();
        // kube-proxy removes the rules of its own other modes when it starts, and not later.
        let is_late = Instant::now() > deadline;
        assert!(!is_late, "{proxy:?} is not alone:\n{words}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Client and server each on a link of their own with the node between them.
fn wire(lab: &Lab, node: &Namespace, client: &Namespace, server: &Namespace) {
    lab.connect((node, "outside"), (client, "eth0"));
    lab.connect((node, "inside"), (server, "eth0"));
    node.address("outside", "10.2.0.1/24".parse().unwrap());
    client.address("eth0", "10.2.0.2/24".parse().unwrap());
    node.address("inside", "10.1.0.1/24".parse().unwrap());
    server.address("eth0", format!("{ENDPOINT}/24").parse().unwrap());
    client.default_route("10.2.0.1".parse().unwrap());
    server.default_route("10.1.0.1".parse().unwrap());
    node.sysctl("net/ipv4/ip_forward", "1");
}

fn wait_for_an_answer(client: &Namespace) {
    let deadline = Instant::now() + PATIENCE;
    let service: SocketAddr = SERVICE.parse().unwrap();
    let connect = || TcpStream::connect_timeout(&service, Duration::from_millis(500)).is_ok();
    while !client.run(connect) {
        assert!(Instant::now() < deadline, "no answer through the Service");
    }
}

fn name(kind: &'static str, name: &str) -> ObjectName {
    ObjectName {
        kind,
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

fn service() -> Vec<Edit> {
    let service = |name: &str, address: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"clusterIP": address, "clusterIPs": [address],
                "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]},
        })
    };
    vec![
        Edit::Put(name("Service", "web"), service("web", "10.96.200.1")),
        Edit::Put(name("EndpointSlice", "web-1"), slice("web", PORT)),
        Edit::Put(name("Service", "marker"), service("marker", "10.96.200.2")),
    ]
}

/// A Service whose endpoint has this port.
fn marker(port: u16) -> Edit {
    Edit::Put(name("EndpointSlice", "marker-1"), slice("marker", port))
}

fn slice(service: &str, port: u16) -> serde_json::Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{service}-1"), "namespace": "default",
            "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ENDPOINT], "conditions": {"ready": true}}],
        "ports": [{"name": "web", "port": port, "protocol": "TCP"}],
    })
}
