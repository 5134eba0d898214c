//! A node, the pods behind it and an outside, in namespaces.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    thread,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use rustix::{
    io::Errno,
    net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket},
};

use super::{
    observer::{Fate, Fates, observe},
    wire::{Request, Transport},
};
use crate::lab::{Lab, Namespace};

/// A time without arrivals after which nothing more is under way.
const QUIET: Duration = Duration::from_millis(80);

/// Time for the links of a new site to come up.
const LINK_PATIENCE: Duration = Duration::from_secs(20);

/// The first source port of a sender.
const FIRST_PORT: u16 = 1024;

/// A place from which requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Location {
    /// The node itself.
    Node,
    /// The pods, of this node and of all others: every address of `10.244.0.0/16` and
    /// `fd00:10:244::/48` answers there.
    Pods,
    /// Beyond the node's uplink.
    Outside,
}

/// A request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Place of the sender.
    pub from: Location,
    /// The sender's address; replies need not find their way back to it.
    pub source: IpAddr,
    /// TCP, UDP or SCTP.
    pub transport: Transport,
    /// Address and port that it is sent to.
    pub target: SocketAddr,
}

/// A node with pods and an outside, and observers in all three.
pub struct Site {
    node: Namespace,
    senders: HashMap<(Location, bool), OwnedFd>,
    fates: Fates,
    next_number: u32,
    /// Source ports that were used, so that no request belongs to an earlier connection.
    ports: HashMap<(IpAddr, SocketAddr, Transport), u16>,
}

impl Site {
    /// The node's own addresses: its primary ones first.
    pub const NODE_ADDRESSES: [&str; 4] =
        ["192.168.0.1", "fd00:192::1", "192.168.0.2", "fd00:192::2"];

    /// Makes a site whose namespaces have this ending.
    pub fn new(lab: &Lab, ending: &str) -> Self {
        let namespace = |name: &str| lab.namespace(&format!("{name}{ending}"));
        let [node, pods, outside] = ["node", "pods", "outside"].map(namespace);
        for namespace in [&node, &pods, &outside] {
            prepare(namespace);
        }
        lab.connect((&node, "uplink"), (&outside, "eth0"));
        lab.connect((&node, "pods"), (&pods, "eth0"));
        for address in Self::NODE_ADDRESSES {
            let length = if address.contains(':') { 64 } else { 24 };
            node.address("uplink", net(address, length));
        }
        for (address, length) in [("192.168.0.9", 24), ("fd00:192::9", 64)] {
            outside.address("eth0", net(address, length));
        }
        for (address, length) in [("10.244.255.1", 30), ("fd00:10:244:ffff::1", 64)] {
            node.address("pods", net(address, length));
        }
        for (address, length) in [("10.244.255.2", 30), ("fd00:10:244:ffff::2", 64)] {
            pods.address("eth0", net(address, length));
        }
        for words in [
            "route add default via 192.168.0.9",
            "route add default via fd00:192::9",
            "route add 10.244.0.0/16 via 10.244.255.2",
            "route add fd00:10:244::/48 via fd00:10:244:ffff::2",
        ] {
            ip(&node, words);
        }
        for words in [
            "route add default via 10.244.255.1",
            "route add default via fd00:10:244:ffff::1",
            "route add local 10.244.0.0/16 dev lo",
            "route add local fd00:10:244::/48 dev lo",
        ] {
            ip(&pods, words);
        }
        for words in [
            "route add default via 192.168.0.1",
            "route add default via fd00:192::1",
        ] {
            ip(&outside, words);
        }
        let fates = Fates::default();
        let mut senders = HashMap::new();
        for (at, namespace) in [
            (Location::Node, &node),
            (Location::Pods, &pods),
            (Location::Outside, &outside),
        ] {
            observe(namespace, at, &fates);
            for (is_ipv6, family) in [(false, AddressFamily::INET), (true, AddressFamily::INET6)] {
                let sender = namespace.run(|| socket(family, SocketType::RAW, Some(ipproto::RAW)));
                let sender = sender.expect("the lab's process may open raw sockets");
                senders.insert((at, is_ipv6), sender);
            }
        }
        let mut site = Self {
            node,
            senders,
            fates,
            next_number: 1,
            ports: HashMap::new(),
        };
        site.wait_for_links();
        site
    }

    /// The namespace of the node, in which a proxy runs.
    pub fn node(&self) -> &Namespace {
        &self.node
    }

    /// Sends requests, all at once and in this order, and returns the fate of each.
    pub fn send(&mut self, probes: &[Probe]) -> Vec<Fate> {
        let numbers: Vec<u32> = probes.iter().map(|probe| self.send_one(probe)).collect();
        self.fates.settle(QUIET);
        let fates = numbers.into_iter().map(|number| self.fates.take(number));
        fates.collect()
    }

    fn send_one(&mut self, probe: &Probe) -> u32 {
        let number = self.next_number;
        self.next_number += 1;
        let sender = (probe.source, probe.target, probe.transport);
        let port = self.ports.entry(sender).or_insert(FIRST_PORT);
        let request = Request {
            number,
            transport: probe.transport,
            source: SocketAddr::new(probe.source, *port),
            target: probe.target,
        };
        *port = port.checked_add(1).unwrap_or(FIRST_PORT);
        self.fates.expect(number, probe.from);
        let socket = &self.senders[&(probe.from, probe.target.is_ipv6())];
        // A raw socket has no port.
        let to = SocketAddr::new(probe.target.ip(), 0);
        loop {
            match sendto(socket, &request.bytes(), SendFlags::empty(), &to) {
                // A rule of the sender's own host stopped it: the fate shows whether with an answer.
                Ok(_) | Err(Errno::PERM) => return number,
                Err(Errno::NOBUFS | Errno::INTR) => thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("cannot send {probe:?}: {error}"),
            }
        }
    }

    /// Waits until packets pass in both directions: the first ones may be lost while neighbours are
    /// looked for.
    fn wait_for_links(&mut self) {
        let deadline = Instant::now() + LINK_PATIENCE;
        let probe = |from, source: &str, target: &str| Probe {
            from,
            source: source.parse().expect("an address"),
            transport: Transport::Udp,
            target: SocketAddr::new(target.parse().expect("an address"), 9),
        };
        let probes = [
            probe(Location::Outside, "192.168.0.9", "10.244.1.1"),
            probe(Location::Outside, "fd00:192::9", "fd00:10:244:1::1"),
            probe(Location::Pods, "10.244.1.1", "192.168.0.9"),
            probe(Location::Pods, "fd00:10:244:1::1", "fd00:192::9"),
        ];
        loop {
            let fates = self.send(&probes);
            if fates.iter().all(|fate| fate.answered.is_some()) {
                return;
            }
            assert!(Instant::now() < deadline, "links stay down: {fates:?}");
        }
    }
}

fn net(address: &str, length: u8) -> IpNet {
    let address: IpAddr = address.parse().expect("an address");
    IpNet::new(address, length).expect("a prefix length")
}

fn ip(namespace: &Namespace, words: &str) {
    let family = if words.contains(':') { "-6" } else { "-4" };
    let arguments: Vec<&str> = [family].into_iter().chain(words.split(' ')).collect();
    namespace.program("ip", &arguments);
}

/// Lets everything pass, refuse without limit, and forget soon.
fn prepare(namespace: &Namespace) {
    for scope in ["all", "default"] {
        for setting in ["rp_filter", "accept_redirects", "send_redirects"] {
            namespace.sysctl(&format!("net/ipv4/conf/{scope}/{setting}"), "0");
        }
        // Pods send to each other, and all their addresses are of one host.
        namespace.sysctl(&format!("net/ipv4/conf/{scope}/accept_local"), "1");
        namespace.sysctl(&format!("net/ipv6/conf/{scope}/accept_dad"), "0");
        namespace.sysctl(&format!("net/ipv6/conf/{scope}/accept_redirects"), "0");
    }
    for (setting, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv4/icmp_ratelimit", "0"),
        ("net/ipv6/icmp/ratelimit", "0"),
    ] {
        namespace.sysctl(setting, value);
    }
    namespace.run(|| {
        // Kernels before 6.12 have these for the whole machine only.
        for setting in ["icmp_msgs_per_sec", "icmp_msgs_burst"] {
            let _ = std::fs::write(format!("/proc/sys/net/ipv4/{setting}"), "1000000");
        }
    });
}

impl Location {
    /// The sender's address of this number: thousands of different ones of pods and of the outside,
    /// always the same of the node.
    pub fn source(self, number: u16, is_ipv6: bool) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        match (self, is_ipv6) {
            (Self::Node, false) => Ipv4Addr::new(192, 168, 0, 1).into(),
            (Self::Node, true) => Ipv6Addr::new(0xfd00, 0x192, 0, 0, 0, 0, 0, 1).into(),
            (Self::Pods, false) => Ipv4Addr::new(10, 244, 0xe0 | (high & 0xf), low).into(),
            (Self::Pods, true) => {
                Ipv6Addr::new(0xfd00, 0x10, 0x244, 0xe000, 0, 0, 0, number).into()
            }
            (Self::Outside, false) => Ipv4Addr::new(100, 64, high, low).into(),
            (Self::Outside, true) => Ipv6Addr::new(0x2001, 0xdb8, 0x64, 0, 0, 0, 0, number).into(),
        }
    }
}
