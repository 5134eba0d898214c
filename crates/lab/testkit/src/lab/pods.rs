//! Nodes and pods as namespaces, without routes between the nodes.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, TcpListener, TcpStream},
    time::Duration,
};

use ipnet::IpNet;

use crate::lab::{Bridge, Lab, Namespace};

/// Far longer than a packet on this machine takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Nodes on one link, and a pod behind each, without any route from one to the other.
///
/// Everything has an address of both families, always in this order: node 2 has 10.0.0.2 and
/// fd00::2 on `eth0`, the ranges 10.244.2.0/24 and fd00:10:0:2::/64, and a pod with 10.244.2.2 and
/// fd00:10:0:2::2.
#[derive(Debug)]
pub struct PodNetwork {
    nodes: Vec<Namespace>,
    pods: Vec<Namespace>,
    _link: Bridge,
}

impl Lab {
    /// Creates nodes with numbers from 1 on, each with a pod. Nodes forward packets.
    pub fn pod_network(&self, nodes: u8) -> PodNetwork {
        let link = self.bridge("br0");
        let (nodes, pods) = (1..=nodes)
            .map(|number| self.node_with_pod(&link, number))
            .unzip();
        PodNetwork {
            nodes,
            pods,
            _link: link,
        }
    }

    fn node_with_pod(&self, link: &Bridge, number: u8) -> (Namespace, Namespace) {
        let node = self.namespace(&format!("node-{number}"));
        let pod = self.namespace(&format!("pod-{number}"));
        for namespace in [&node, &pod] {
            // Otherwise addresses that the kernel generates change once more after a while.
            namespace.sysctl("net/ipv6/conf/default/accept_dad", "0");
            namespace.sysctl("net/ipv6/conf/all/accept_dad", "0");
        }
        node.sysctl("net/ipv4/ip_forward", "1");
        node.sysctl("net/ipv6/conf/all/forwarding", "1");
        let [v4, v6] = node_addresses(number);
        node.attach(link, "eth0", inside(v4, 24));
        node.address("eth0", inside(v6, 64));
        self.connect((&node, "pod0"), (&pod, "eth0"));
        for (range, address) in pod_ranges(number).into_iter().zip(pod_addresses(number)) {
            let gateway = range.hosts().find(|host| *host != range.network());
            let gateway = gateway.expect("a range of a node has room");
            node.address("pod0", inside(gateway, range.prefix_len()));
            pod.address("eth0", inside(address, range.prefix_len()));
            pod.default_route(gateway);
        }
        (node, pod)
    }
}

/// The addresses of a node in a [`PodNetwork`].
pub fn node_addresses(number: u8) -> [IpAddr; 2] {
    [
        IpAddr::from([10, 0, 0, number]),
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)]),
    ]
}

/// The ranges of a node's pods in a [`PodNetwork`].
pub fn pod_ranges(number: u8) -> [IpNet; 2] {
    let [v4, v6] = pod_addresses(number);
    [inside(v4, 24).trunc(), inside(v6, 64).trunc()]
}

/// The addresses of a node's pod in a [`PodNetwork`].
pub fn pod_addresses(number: u8) -> [IpAddr; 2] {
    [
        IpAddr::from([10, 244, number, 2]),
        IpAddr::from([0xfd00, 0x10, 0, u16::from(number), 0, 0, 0, 2]),
    ]
}

fn inside(address: IpAddr, length: u8) -> IpNet {
    IpNet::new(address, length).expect("the length fits the family")
}

impl PodNetwork {
    /// A node, by its number.
    pub fn node(&self, number: u8) -> &Namespace {
        &self.nodes[usize::from(number - 1)]
    }

    /// The pod of a node.
    pub fn pod(&self, number: u8) -> &Namespace {
        &self.pods[usize::from(number - 1)]
    }

    /// Connects from the pod of `from` to the pod of `to`, over IPv4 and over IPv6. True where the
    /// connection works and the receiver sees the pod's own address. Without a route on the node the connection is refused at once.
    pub fn talk(&self, from: u8, to: u8) -> [bool; 2] {
        let addresses = pod_addresses(from).into_iter().zip(pod_addresses(to));
        let talks = addresses.map(|(source, target)| {
            let peer = speak(self.pod(from), self.pod(to), target);
            peer.is_some_and(|peer| peer == source)
        });
        let talks: Vec<bool> = talks.collect();
        [talks[0], talks[1]]
    }
}

/// Sends a word over TCP to an address of the receiver. Returns the source address that the
/// receiver saw, or None if the word did not arrive.
///
/// # Panics
/// If the receiver does not have the address.
pub fn speak(sender: &Namespace, receiver: &Namespace, target: IpAddr) -> Option<IpAddr> {
    let listener = receiver.run(|| TcpListener::bind((target, 0)));
    let listener = listener.expect("the pod has the address");
    let target = listener.local_addr().expect("it is bound");
    let mut sent = sender
        .run(|| TcpStream::connect_timeout(&target, PATIENCE))
        .ok()?;
    let (mut received, peer) = listener.accept().ok()?;
    received.set_read_timeout(Some(PATIENCE)).ok()?;
    sent.write_all(b"weft").ok()?;
    let mut word = [0; 4];
    received.read_exact(&mut word).ok()?;
    (&word == b"weft").then_some(peer.ip())
}

impl Namespace {
    /// Sets a sysctl of the namespace, such as `net/ipv4/ip_forward`.
    ///
    /// # Panics
    /// If the kernel refuses the value.
    pub fn sysctl(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/{name}");
        self.run(|| fs::write(&path, value))
            .unwrap_or_else(|error| panic!("cannot set {path} to {value}: {error}"));
    }
}
