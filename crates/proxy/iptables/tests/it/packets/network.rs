//! A small cluster of namespaces: this node with two pods, another node with one, and a client
//! outside of both.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use serde_json::{Value, json};
use weft_host::iptables::Variant;
use weft_iptables::HostKernel;
use weft_model::{IpFamily, Protocol};
use weft_ruleset::{Entry, Packet, Verdict};
use weft_testkit::{
    cluster::NODE,
    lab::{Lab, Namespace},
};

use super::exchange::{PATIENCE, Reply, SILENCE, ask, serve, source_for};
use crate::{
    host::{kernel, world},
    world::{OPTIONS, World},
};

/// On which all servers listen.
pub(crate) const SERVER_PORT: u16 = 8080;

/// The origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    PodA,
    PodB,
    Node,
    Client,
    /// The client, under another of its addresses.
    ClientAs(u8),
}

use Sender::{Client, ClientAs, Node, PodA, PodB};

/// An address of the network by place name, in either family.
pub(crate) fn at(family: IpFamily, place: &str) -> IpAddr {
    let text = match (family, place) {
        (IpFamily::V4, "pod-a") => "10.244.0.11",
        (IpFamily::V4, "pod-b") => "10.244.0.12",
        (IpFamily::V4, "remote") => "10.244.1.13",
        (IpFamily::V4, "gateway") => "10.244.0.1",
        (IpFamily::V4, "node") => "192.168.0.1",
        (IpFamily::V4, "other") => "192.168.0.2",
        (IpFamily::V4, "client") => "192.168.0.9",
        (IpFamily::V4, "external") => "198.51.100.7",
        (IpFamily::V4, "balancer") => "192.0.2.1",
        (IpFamily::V6, "pod-a") => "fd00:10:244::11",
        (IpFamily::V6, "pod-b") => "fd00:10:244::12",
        (IpFamily::V6, "remote") => "fd00:10:244:1::13",
        (IpFamily::V6, "gateway") => "fd00:10:244::1",
        (IpFamily::V6, "node") => "fd00:192::1",
        (IpFamily::V6, "other") => "fd00:192::2",
        (IpFamily::V6, "client") => "fd00:192::9",
        (IpFamily::V6, "external") => "2001:db8::7",
        (IpFamily::V6, "balancer") => "2001:db8:2::1",
        _ => panic!("no place {place}"),
    };
    text.parse().unwrap()
}

/// The ClusterIP of that number.
pub(crate) fn cluster_ip(family: IpFamily, number: u8) -> IpAddr {
    let text = match family {
        IpFamily::V4 => format!("10.96.0.{number}"),
        IpFamily::V6 => format!("fd00:10:96::{number:x}"),
    };
    text.parse().unwrap()
}

/// One of the client's further addresses.
pub(crate) fn further(family: IpFamily, number: u8) -> IpAddr {
    let text = match family {
        IpFamily::V4 => format!("192.168.0.{number}"),
        IpFamily::V6 => format!("fd00:192::{number:x}"),
    };
    text.parse().unwrap()
}

pub(crate) const FURTHER: std::ops::Range<u8> = 20..36;

/// The namespaces, with a proxy of one family and variant on the node.
pub(crate) struct Network {
    pub(crate) family: IpFamily,
    pub(crate) variant: Variant,
    pub(crate) node: Namespace,
    pub(crate) world: World<HostKernel>,
    pods: [Namespace; 2],
    client: Namespace,
    _other: Namespace,
}

impl Network {
    pub(crate) fn new(lab: &Lab, family: IpFamily, variant: Variant) -> Self {
        let number = match family {
            IpFamily::V4 => 4,
            IpFamily::V6 => 6,
        };
        let namespace = |name: &str| quiet(lab.namespace(&format!("{name}-{variant}-{number}")));
        let [node, other, client] = ["node", "other", "client"].map(namespace);
        let pods = ["pod-a", "pod-b"].map(namespace);
        node.run(|| forward(family));
        let plan = Plan { family };
        let switch = lab.bridge(&format!("br{variant}{number}"));
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
        let mut world = node.run(|| world(family, variant, OPTIONS));
        world.settings.node_ip = at(family, "node");
        Self {
            family,
            variant,
            node,
            world,
            pods,
            client,
            _other: other,
        }
    }

    /// The namespace of a sender.
    pub(crate) fn namespace(&self, sender: Sender) -> &Namespace {
        match sender {
            PodA => &self.pods[0],
            PodB => &self.pods[1],
            Node => &self.node,
            Client | ClientAs(_) => &self.client,
        }
    }

    pub(crate) fn source(&self, sender: Sender, target: SocketAddr) -> IpAddr {
        match sender {
            Client => at(self.family, "client"),
            ClientAs(number) => further(self.family, number),
            _ => self.namespace(sender).run(|| source_for(target)),
        }
    }

    /// Takes in objects and programs them.
    pub(crate) fn program(&mut self, objects: &[Value]) {
        for object in objects {
            self.world.put(object);
        }
        let world = &mut self.world;
        self.node.run(|| world.sync());
    }

    /// The proxy ends and starts again.
    pub(crate) fn restart(&mut self, options: weft_iptables::Options) -> usize {
        let (family, variant, world) = (self.family, self.variant, &mut self.world);
        self.node.run(|| {
            world.restart(kernel(family, variant), options);
            world.full_sync().bytes
        })
    }

    /// Sends a request and compares the outcome with a trace through the rules.
    pub(crate) fn ask(&mut self, sender: Sender, target: SocketAddr, protocol: Protocol) -> Reply {
        let source = self.source(sender, target);
        let promised = self.promised(sender, source, target, protocol);
        let silent = promised
            .iter()
            .all(|(verdict, _)| *verdict == Verdict::Dropped);
        let patience = if silent { SILENCE } else { PATIENCE };
        let reply = self.ask_for(sender, target, protocol, patience);
        let kept = promised
            .iter()
            .any(|promise| self.keeps(source, promise, &reply));
        let about = (self.family, self.variant, sender, target, protocol);
        assert!(kept, "{about:?}: {reply:?}, but the rules say {promised:?}");
        reply
    }

    /// Sends a request without comparing the outcome with the rules.
    pub(crate) fn ask_for(
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

    fn promised(
        &mut self,
        sender: Sender,
        source: IpAddr,
        target: SocketAddr,
        protocol: Protocol,
    ) -> Vec<(Verdict, bool)> {
        let device = match sender {
            PodA => Some("pod-a"),
            PodB => Some("pod-b"),
            Client | ClientAs(_) => Some("eth0"),
            Node => None,
        };
        let packet = Packet {
            source,
            destination: target.ip(),
            protocol,
            destination_port: target.port(),
            entry: device.map_or(Entry::Sent, |device| Entry::Arriving {
                device: Some(device.to_owned()),
            }),
            mark: 0,
            local_addresses: self.own_addresses(),
            affinity: None,
        };
        let world = &mut self.world;
        let rules = self.node.run(|| world.rules());
        let outcomes = rules.trace(&packet).into_iter();
        outcomes
            .map(|outcome| (outcome.verdict, outcome.masqueraded))
            .collect()
    }

    fn own_addresses(&self) -> BTreeSet<IpAddr> {
        BTreeSet::from(["node", "gateway"].map(|place| at(self.family, place)))
    }

    fn keeps(
        &self,
        source: IpAddr,
        (verdict, masqueraded): &(Verdict, bool),
        reply: &Reply,
    ) -> bool {
        match (verdict, reply) {
            (Verdict::Dnat(endpoint), Reply::From { server, seen }) => {
                let right_source = if *masqueraded {
                    self.own_addresses().contains(seen)
                } else {
                    *seen == source
                };
                endpoint.ip() == at(self.family, server) && right_source
            }
            // Traffic that is accepted for the node itself finds no listener.
            (Verdict::Rejected | Verdict::Accepted, Reply::Refused)
            | (Verdict::Dropped, Reply::Silence) => true,
            _ => false,
        }
    }
}

/// Turns off duplicate address detection, redirects and the reverse path filter of a namespace.
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
    match family {
        IpFamily::V4 => {
            set("ipv4/ip_forward", "1");
            set("ipv4/conf/all/route_localnet", "1");
            // The rate limit would suppress some of the refusals that tests wait for.
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
    if let Err(error) = fs::write(&path, value) {
        panic!("{path}: {error}");
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
        IpNet::new(at(self.family, place), length).unwrap()
    }

    /// A pod hangs on a wire of its own, so that everything it sends passes the node.
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
pub(crate) fn service(family: IpFamily, name: &str, number: u8, more: &Value) -> Value {
    let mut spec = json!({
        "clusterIP": cluster_ip(family, number),
        "ports": [
            {"name": "tcp", "protocol": "TCP", "port": 80, "nodePort": node_port(more, number)},
            {"name": "udp", "protocol": "UDP", "port": 80, "nodePort": node_port(more, number)},
        ],
    });
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

fn node_port(more: &Value, number: u8) -> u16 {
    let internal = more.get("type").is_none();
    if internal {
        0
    } else {
        30000 + u16::from(number)
    }
}

/// Endpoints of a Service, by the names of their places.
pub(crate) fn slice(family: IpFamily, name: &str, places: &[&str]) -> Value {
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
