//! Three nodes on a bridge, a pod behind each, a provider in each.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use tokio::runtime::{Builder, Runtime};
use weft_host::sysctl::Settings;
use weft_model::IpFamily;
use weft_providers::{
    NetlinkProvider, Provider as _,
    netlink::{HostWarning, NetlinkSettings},
};
use weft_routes::{
    Action, Cidr, CreateReason, DeleteReason, NextHop, ProviderError, ReplaceReason, Route, Step,
    Wanted,
};
use weft_testkit::lab::{Lab, Namespace};

/// Far beyond what anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Node 2 has the addresses 10.0.0.2 and fd00::2, and its pod 10.244.2.2 and fd00:10:0:2::2.
pub(crate) struct Network {
    runtime: Arc<Runtime>,
    pub(crate) nodes: Vec<Node>,
    pods: Vec<Namespace>,
}

pub(crate) struct Node {
    runtime: Arc<Runtime>,
    pub(crate) number: u8,
    pub(crate) namespace: Namespace,
    pub(crate) provider: NetlinkProvider,
}

/// The ranges of a node.
#[derive(Clone, Copy)]
pub(crate) struct Cidrs {
    v4: IpNet,
    v6: IpNet,
}

impl Cidrs {
    pub(crate) fn of(self, family: IpFamily) -> IpNet {
        match family {
            IpFamily::V4 => self.v4,
            IpFamily::V6 => self.v6,
        }
    }
}

pub(crate) fn cidrs(number: u8) -> Cidrs {
    Cidrs {
        v4: net(&format!("10.244.{number}.0/24")),
        v6: net(&format!("fd00:10:0:{number:x}::/64")),
    }
}

pub(crate) fn pod_address(number: u8, family: IpFamily) -> IpAddr {
    let text = match family {
        IpFamily::V4 => format!("10.244.{number}.2"),
        IpFamily::V6 => format!("fd00:10:0:{number:x}::2"),
    };
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

impl Network {
    pub(crate) fn settings() -> NetlinkSettings {
        NetlinkSettings::new([net("10.244.0.0/16"), net("fd00:10::/48")])
    }

    pub(crate) fn new(lab: &Lab) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = Arc::new(runtime.unwrap());
        let bridge = lab.bridge("br0");
        let (mut nodes, mut pods) = (Vec::new(), Vec::new());
        for number in 1..=3 {
            let node = lab.namespace(&format!("node-{number}"));
            let pod = lab.namespace(&format!("pod-{number}"));
            for namespace in [&node, &pod] {
                // Addresses that are under test for a while would be news when they pass.
                write(namespace, "net/ipv6/conf/default/accept_dad", "0");
                write(namespace, "net/ipv6/conf/all/accept_dad", "0");
            }
            write(&node, "net/ipv4/ip_forward", "1");
            write(&node, "net/ipv6/conf/all/forwarding", "1");
            node.attach(&bridge, "eth0", net(&format!("10.0.0.{number}/24")));
            node.address("eth0", net(&format!("fd00::{number:x}/64")));
            lab.connect((&node, "pod0"), (&pod, "eth0"));
            for (gateway, address) in [
                (format!("10.244.{number}.1"), "24"),
                (format!("fd00:10:0:{number:x}::1"), "64"),
            ] {
                node.address("pod0", net(&format!("{gateway}/{address}")));
                let family = IpFamily::of(gateway.parse().unwrap());
                let own = pod_address(number, family);
                pod.address("eth0", net(&format!("{own}/{address}")));
                pod.default_route(gateway.parse().unwrap());
            }
            let provider = open(&runtime, &node, Self::settings());
            nodes.push(Node {
                runtime: runtime.clone(),
                number,
                namespace: node,
                provider,
            });
            pods.push(pod);
        }
        Self {
            runtime,
            nodes,
            pods,
        }
    }

    /// Begins anew on a node, as after a restart with other settings.
    pub(crate) fn open(&mut self, number: u8, settings: NetlinkSettings) {
        let node = &mut self.nodes[usize::from(number - 1)];
        node.provider = open(&self.runtime, &node.namespace, settings);
    }

    fn node(&self, number: u8) -> &Node {
        &self.nodes[usize::from(number - 1)]
    }

    pub(crate) fn prepare(&self, number: u8) {
        let prepared = self.node(number).provider.prepare();
        self.runtime.block_on(prepared).unwrap();
    }

    pub(crate) fn flush(&self, number: u8) -> usize {
        let flushed = self.node(number).provider.flush();
        self.runtime.block_on(flushed).unwrap()
    }

    pub(crate) fn warnings(&self, number: u8, sysctls: &Settings) -> Vec<HostWarning> {
        let node = self.node(number);
        let warnings = || self.runtime.block_on(node.provider.warnings(sysctls));
        node.namespace.run(warnings).unwrap()
    }

    pub(crate) fn sysctl(&self, number: u8, name: &str, value: &str) {
        write(&self.node(number).namespace, name, value);
    }

    /// Whether pods can talk, the sender being seen as itself. Without a route to the receiver
    /// that is refused at once.
    pub(crate) fn passes(&self, from: u8, to: u8, family: IpFamily) -> bool {
        let pod = |number: u8| &self.pods[usize::from(number - 1)];
        let target = pod_address(to, family);
        let listener = pod(to).run(|| TcpListener::bind((target, 0)).unwrap());
        let target = listener.local_addr().unwrap();
        let connected = pod(from).run(|| TcpStream::connect_timeout(&target, PATIENCE));
        let Ok(mut sent) = connected else {
            return false;
        };
        let (mut received, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), pod_address(from, family));
        sent.write_all(b"weft").unwrap();
        received.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut word = [0; 4];
        received.read_exact(&mut word).is_ok() && &word == b"weft"
    }
}

fn open(runtime: &Arc<Runtime>, node: &Namespace, settings: NetlinkSettings) -> NetlinkProvider {
    node.run(|| {
        let _context = runtime.enter();
        NetlinkProvider::open(settings).unwrap()
    })
}

fn write(namespace: &Namespace, name: &str, value: &str) {
    let path = format!("/proc/sys/{name}");
    namespace.run(|| std::fs::write(path, value).unwrap());
}

impl Node {
    pub(crate) fn address(&self, family: IpFamily) -> IpAddr {
        let text = match family {
            IpFamily::V4 => format!("10.0.0.{}", self.number),
            IpFamily::V6 => format!("fd00::{:x}", self.number),
        };
        text.parse().unwrap()
    }

    pub(crate) fn ip(&self, command: &str) -> String {
        let words: Vec<&str> = command.split(' ').collect();
        self.namespace.program("ip", &words)
    }

    pub(crate) fn list(&self) -> Vec<Route> {
        self.runtime.block_on(self.provider.list()).result.unwrap()
    }

    pub(crate) fn apply(&self, step: &Step) -> Result<(), ProviderError> {
        self.runtime.block_on(self.provider.apply(step)).result
    }

    /// Waits until the provider tells of a change.
    pub(crate) fn changes(&self) {
        assert!(self.changes_within(PATIENCE), "no change was told");
    }

    pub(crate) fn changes_within(&self, limit: Duration) -> bool {
        let changed = async { tokio::time::timeout(limit, self.provider.changed()).await };
        self.runtime.block_on(changed).is_ok()
    }

    /// Waits until nothing more is told.
    pub(crate) fn settles(&self) {
        while self.changes_within(Duration::from_millis(600)) {}
    }
}

/// What `ip` needs to show a family.
pub(crate) fn option(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "-4",
        IpFamily::V6 => "-6",
    }
}

fn wanted(cidrs: Cidrs, family: IpFamily, gateway: IpAddr) -> Wanted {
    Wanted {
        destination: Cidr::from(cidrs.of(family)),
        node: "node".into(),
        uid: "uid".into(),
        next_hop: Some(NextHop::Address(gateway)),
        addresses: Vec::new(),
        provider_id: None,
    }
}

pub(crate) fn create(cidrs: Cidrs, family: IpFamily, gateway: IpAddr) -> Step {
    let new = wanted(cidrs, family, gateway);
    let reason = CreateReason::Missing;
    Step {
        action: Action::Create { new, reason },
    }
}

pub(crate) fn replace(old: &Route, cidrs: Cidrs, family: IpFamily, gateway: IpAddr) -> Step {
    let (old, new) = (old.clone(), wanted(cidrs, family, gateway));
    let reason = ReplaceReason::Handover;
    Step {
        action: Action::Replace { old, new, reason },
    }
}

pub(crate) fn delete(old: &Route) -> Step {
    let (old, reason) = (old.clone(), DeleteReason::NodeGone);
    Step {
        action: Action::Delete { old, reason },
    }
}
