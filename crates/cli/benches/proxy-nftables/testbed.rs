//! The node of a proxy: a namespace that has all addresses of clients and endpoints.

use std::{
    io::Write as _,
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
    thread,
};

use weft_testkit::lab::Namespace;

use crate::{
    kernel::{self, Reports},
    objects::{NODE_ADDRESS, TARGET},
    ping, relay,
    timeline::Timeline,
};

/// Range of endpoints and clients.
pub(crate) const CLUSTER_CIDR: &str = "10.128.0.0/9";
/// Range of Services: without a rule a connection to one of them is refused at once.
const SERVICE_CIDR: &str = "10.96.0.0/12";
/// In the cluster CIDR: nothing is masqueraded.
const CLIENT: &str = "10.191.0.1";

pub(crate) struct Testbed {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) reports: Arc<Reports>,
    /// Port of the API server on its loopback.
    pub(crate) port: u16,
}

impl Testbed {
    pub(crate) fn new(name: &str, server: std::net::SocketAddr) -> Self {
        let namespace = Arc::new(Namespace::create(name));
        let ip = |arguments: &str| {
            let arguments: Vec<&str> = arguments.split_whitespace().collect();
            namespace.program("ip", &arguments)
        };
        ip(&format!("address add {NODE_ADDRESS}/32 dev lo"));
        ip(&format!("address add {CLIENT}/32 dev lo"));
        for network in [CLUSTER_CIDR, SERVICE_CIDR] {
            ip(&format!("route add local {network} dev lo src {CLIENT}"));
        }
        let listener = namespace.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, TARGET)));
        let listener = listener.unwrap();
        thread::spawn(move || answer(&listener));
        let timeline = Arc::new(Timeline::default());
        Self {
            port: relay::start(&namespace, server, &timeline),
            reports: kernel::listen(&namespace, &timeline),
            namespace,
            timeline,
        }
    }
}

/// Sends every client a byte.
fn answer(listener: &TcpListener) {
    ping::prefer_this_thread();
    for stream in listener.incoming().flatten() {
        // The client may have closed the connection.
        let _ = (&stream).write_all(b"x");
    }
}
