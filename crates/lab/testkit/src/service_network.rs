//! A small cluster of namespaces for packets through Services: this node with two pods, another node
//! with one, and a client outside of both.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use serde_json::{Value, json};
use weft_model::{IpFamily, Protocol};

use crate::{
    cluster::NODE,
    exchange::{Reply, ask, serve, source_for},
    lab::{Lab, Namespace},
};

/// The port on which all servers listen.
pub const SERVER_PORT: u16 = 8080;

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The first pod of the node.
    PodA,
    /// The second pod of the node.
    PodB,
    /// The node itself.
    Node,
    /// The client outside, under its first address.
    Client,
    /// The client, under another of its addresses.
    ClientAs(u8),
}

use Sender::{Client, ClientAs, Node, PodA, PodB};

/// An address of the network, by what is in its place in each family.
pub fn at(family: IpFamily, place: &str) -> IpAddr {
    let [v4, v6] = match place {
        "pod-a" => ["10.244.0.11", "fd00:10:244::11"],
        "pod-b" => ["10.244.0.12", "fd00:10:244::12"],
        "remote" => ["10.244.1.13", "fd00:10:244:1::13"],
        "gateway" => ["10.244.0.1", "fd00:10:244::1"],
        "node" => ["192.168.0.1", "fd00:192::1"],
        "other" => ["192.168.0.2", "fd00:192::2"],
        "client" => ["192.168.0.9", "fd00:192::9"],
        "external" => ["198.51.100.7", "2001:db8::7"],
        "balancer" => ["192.0.2.1", "2001:db8:2::1"],
        _ => panic!("no place {place}"),
    };
    match family {
        IpFamily::V4 => v4.parse().expect("an address"),
        IpFamily::V6 => v6.parse().expect("an address"),
    }
}

/// The ClusterIP of that number.
pub fn cluster_ip(family: IpFamily, number: u8) -> IpAddr {
    let text = match family {
        IpFamily::V4 => format!("10.96.0.{number}"),
        IpFamily::V6 => format!("fd00:10:96::{number:x}"),
    };
    text.parse().expect("an address")
}

/// One of the client's further addresses.
pub fn further(family: IpFamily, number: u8) -> IpAddr {
    let text = match family {
        IpFamily::V4 => format!("192.168.0.{number}"),
        IpFamily::V6 => format!("fd00:192::{number:x}"),
    };
    text.parse().expect("an address")
}

/// Numbers of the client's further addresses.
pub const FURTHER: std::ops::Range<u8> = 20..36;

/// The namespaces of one family. Servers in the pods and on the other node answer by TCP and UDP.
pub struct ServiceNetwork {
    /// Family of all addresses.
    pub family: IpFamily,
    /// The node on which a proxy is tested.
    pub node: Namespace,
    /// Pods of this node, each on a wire of its own.
    pub pods: [Namespace; 2],
    /// A machine outside of the cluster.
    pub client: Namespace,
    /// Another node, which has the address of its pod.
    pub other: Namespace,
}

impl ServiceNetwork {
    /// Creates it; the names of its namespaces end with `ending`.
    pub fn new(lab: &Lab, family: IpFamily, ending: &str) -> Self {
        let number = match family {
            IpFamily::V4 => 4,
            IpFamily::V6 => 6,
        };
        let namespace = |name: &str| quiet(lab.namespace(&format!("{name}-{ending}{number}")));
        let [node, other, client] = ["node", "other", "client"].map(namespace);
        let pods = ["pod-a", "pod-b"].map(namespace);
        node.run(|| forward(family));
        let plan = Plan { family };
        let switch = lab.bridge(&format!("br{ending}{number}"));
        for (namespace, place) in [(&node, "node"), (&other, "other"), (&client, "client")] {
            namespace.attach(&switch, "eth0", plan.link(place));
        }
        for (pod, place) in pods.iter().zip(["pod-a", "pod-b"]) {
            plan.plug(lab, &node, pod, place);
        }
        other.address("lo", IpNet::from(at(family, "remote")));
        for number in FURTHER {
            client.address("eth0", IpNet::from(further(family, number)));
        }
        plan.routes(&node, &other, &client);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for (namespace, name) in [(&pods[0], "pod-a"), (&pods[1], "pod-b"), (&other, "remote")]
            {
                let address = SocketAddr::new(at(family, name), SERVER_PORT);
                namespace.run(|| serve(name, address, protocol));
            }
        }
        Self {
            family,
            node,
            pods,
            client,
            other,
        }
    }

    /// The namespace of a sender.
    pub fn namespace(&self, sender: Sender) -> &Namespace {
        match sender {
            PodA => &self.pods[0],
            PodB => &self.pods[1],
            Node => &self.node,
            Client | ClientAs(_) => &self.client,
        }
    }

    /// The source address of a sender's packets.
    pub fn source(&self, sender: Sender, target: SocketAddr) -> IpAddr {
        match sender {
            Client => at(self.family, "client"),
            ClientAs(number) => further(self.family, number),
            _ => self.namespace(sender).run(|| source_for(target)),
        }
    }

    /// The addresses of the node.
    pub fn own_addresses(&self) -> BTreeSet<IpAddr> {
        ["node", "gateway"]
            .map(|place| at(self.family, place))
            .into()
    }

    /// Sends a request and waits for the reply.
    pub fn request(
        &self,
        sender: Sender,
        target: SocketAddr,
        protocol: Protocol,
        patience: Duration,
    ) -> Reply {
        let source = self.source(sender, target);
        self.namespace(sender)
            .run(|| ask(source, target, protocol, patience))
    }
}

impl Sender {
    /// The node's device on which its packets arrive; None for the node itself.
    pub fn device(self) -> Option<&'static str> {
        match self {
            PodA => Some("pod-a"),
            PodB => Some("pod-b"),
            Client | ClientAs(_) => Some("eth0"),
            Node => None,
        }
    }
}

/// A namespace whose addresses can be used at once, and in which it does not matter where packets
/// come from.
fn quiet(namespace: Namespace) -> Namespace {
    namespace.run(|| {
        for scope in ["all", "default"] {
            set(&format!("ipv4/conf/{scope}/rp_filter"), "0");
            set(&format!("ipv4/conf/{scope}/accept_redirects"), "0");
            set(&format!("ipv4/conf/{scope}/send_redirects"), "0");
            set(&format!("ipv6/conf/{scope}/accept_dad"), "0");
            set(&format!("ipv6/conf/{scope}/accept_redirects"), "0");
        }
    });
    namespace
}

fn forward(family: IpFamily) {
    // So many refusals in so short a time would not all be sent. These two limit ICMPv6 as well.
    set("ipv4/icmp_msgs_per_sec", "1000000");
    set("ipv4/icmp_msgs_burst", "1000000");
    match family {
        IpFamily::V4 => {
            set("ipv4/ip_forward", "1");
            set("ipv4/icmp_ratelimit", "0");
        }
        IpFamily::V6 => {
            set("ipv6/conf/all/forwarding", "1");
            set("ipv6/icmp/ratelimit", "0");
        }
    }
}

fn set(setting: &str, value: &str) {
    let path = format!("/proc/sys/net/{setting}");
    let is_required = !setting.contains("icmp_msgs");
    match fs::write(&path, value) {
        Err(error) if is_required => panic!("{path}: {error}"),
        _ => {}
    }
}

/// The layout of addresses and routes.
struct Plan {
    family: IpFamily,
}

impl Plan {
    fn link(&self, place: &str) -> IpNet {
        let length = match self.family {
            IpFamily::V4 => 24,
            IpFamily::V6 => 64,
        };
        IpNet::new(at(self.family, place), length).expect("a prefix length")
    }

    /// A pod is on a wire of its own, so that everything it sends passes the node.
    fn plug(&self, lab: &Lab, node: &Namespace, pod: &Namespace, place: &str) {
        let (gateway, address) = (at(self.family, "gateway"), at(self.family, place));
        lab.connect((node, place), (pod, "eth0"));
        node.address(place, IpNet::from(gateway));
        pod.address("eth0", IpNet::from(address));
        route(node, &format!("{address} dev {place}"));
        route(pod, &format!("{gateway} dev eth0"));
        pod.default_route(gateway);
    }

    fn routes(&self, node: &Namespace, other: &Namespace, client: &Namespace) {
        let [this, that, outside] = ["node", "other", "client"].map(|place| at(self.family, place));
        route(node, &format!("{} via {that}", at(self.family, "remote")));
        node.default_route(outside);
        other.default_route(this);
        client.default_route(this);
    }
}

fn route(namespace: &Namespace, words: &str) {
    let arguments: Vec<&str> = ["route", "add"]
        .into_iter()
        .chain(words.split(' '))
        .collect();
    namespace.program("ip", &arguments);
}

/// A Service whose only port of each protocol is the same number.
pub fn service(family: IpFamily, name: &str, number: u8, more: &Value) -> Value {
    let port = |name: &str, protocol: &str| {
        json!({"name": name, "protocol": protocol, "port": 80,
               "nodePort": node_port(more, number)})
    };
    let mut spec = json!({
        "clusterIP": cluster_ip(family, number),
        "ports": [port("tcp", "TCP"), port("udp", "UDP"), port("sctp", "SCTP")],
    });
    let mut ingress = json!([]);
    for (key, value) in more.as_object().expect("fields of a spec") {
        match key.as_str() {
            "balancer" => ingress = json!([{"ip": value}]),
            _ => spec[key] = value.clone(),
        }
    }
    json!({"kind": "Service", "metadata": {"namespace": "shop", "name": name}, "spec": spec,
           "status": {"loadBalancer": {"ingress": ingress}}})
}

fn node_port(more: &Value, number: u8) -> u16 {
    if more.get("type").is_none() {
        0
    } else {
        30000 + u16::from(number)
    }
}

/// Endpoints of a Service, by the names of their places.
pub fn slice(family: IpFamily, name: &str, places: &[&str]) -> Value {
    let endpoint = |place: &&str| {
        let node = if *place == "remote" { "node-1" } else { NODE };
        json!({"addresses": [at(family, place)], "nodeName": node})
    };
    let endpoints: Vec<Value> = places.iter().map(endpoint).collect();
    json!({"kind": "EndpointSlice",
           "metadata": {"namespace": "shop", "name": format!("{name}-x"),
                        "labels": {"kubernetes.io/service-name": name}},
           "addressType": family.as_str(), "endpoints": endpoints,
           "ports": [{"name": "tcp", "protocol": "TCP", "port": SERVER_PORT},
                     {"name": "udp", "protocol": "UDP", "port": SERVER_PORT},
                     {"name": "sctp", "protocol": "SCTP", "port": SERVER_PORT}]})
}
