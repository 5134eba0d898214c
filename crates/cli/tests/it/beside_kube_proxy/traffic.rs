//! New connections through a Service, all the time, while one proxy takes over from the other.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use weft_testkit::{
    cluster::{Edit, ObjectName, RandomCluster},
    lab::{Lab, Namespace},
};

use crate::arena::{Arena, PATIENCE};

/// A SYN without an answer is sent again after a second: a connection that was quicker was answered
/// at first.
const UNANSWERED: Duration = Duration::from_millis(900);

const SERVICE: &str = "10.96.200.1:80";

/// The endpoint, in a namespace of its own behind the node.
const ENDPOINT: &str = "10.1.0.2";

/// Outcomes of the connections.
struct Traffic {
    connections: usize,
    failures: Vec<String>,
}

impl Traffic {
    /// Connects again and again until told to stop.
    fn flow(client: &Namespace, stop: &AtomicBool) -> Self {
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
                    // As long as that may also be the client's own wait for a processor.
                    Ok(_) => {
                        let now = sent_again();
                        if now > known {
                            known = now;
                            let line = format!("answered the second SYN, after {took:?}");
                            traffic.failures.push(line);
                        }
                    }
                    Err(error) => traffic.failures.push(format!("{error} after {took:?}")),
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

/// kube-proxy, weft, kube-proxy and weft again, one after the other on one node. A client on the
/// other side of the node connects to the Service all the while, and nothing else keeps the
/// connection alive: each is new.
pub(super) fn take_over(lab: &Lab, peer: &Path, variant: &str) {
    let arena = Arena::new(variant);
    let node = lab.namespace("node");
    let client = lab.namespace("client");
    let server = lab.namespace("server");
    arena.serve(&node);
    wire(lab, &node, &client, &server);
    let listener = server.run(|| TcpListener::bind((ENDPOINT, 8080)).unwrap());
    // Room for whoever connects while the thread that accepts waits for a processor: where there is
    // none the kernel drops SYNs, and nobody would know which proxy it was.
    rustix::net::listen(&listener, 4096).unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            drop(connection);
        }
    });
    let cluster = RandomCluster::new(1);
    arena.create_namespace("default");
    for (name, object) in cluster.objects() {
        arena.apply(&[Edit::Put(name.clone(), object.clone())]);
    }
    arena.apply(&service());

    let first = arena.start_kube_proxy(&node, peer);
    wait_for_an_answer(&client);
    let stop = AtomicBool::new(false);
    let traffic = thread::scope(|scope| {
        let traffic = scope.spawn(|| Traffic::flow(&client, &stop));
        let mut running = first;
        for round in 0..3 {
            drop(running);
            running = if round % 2 == 0 {
                arena.start_weft(&node)
            } else {
                arena.start_kube_proxy(&node, peer)
            };
            // It has taken over when it acts on a change.
            let port = 9000 + round;
            arena.apply(&[marker(port)]);
            let deadline = Instant::now() + PATIENCE;
            while !arena
                .rules(&node, weft_model::IpFamily::V4)
                .to_string()
                .contains(&format!("10.1.0.2:{port}"))
            {
                assert!(Instant::now() < deadline, "round {round}: nothing happens");
                thread::sleep(Duration::from_millis(50));
            }
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
        Edit::Put(name("EndpointSlice", "web-1"), slice("web", 8080)),
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
