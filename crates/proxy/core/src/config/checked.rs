//! A configuration that passed its check, and the settings of each family that follow from it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr, parse_sloppy};

use crate::{LocalDetector, LoopbackNodePorts, NodePortAddresses, NodePortTail, Settings};

/// A validated configuration.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct ProxyConfig {
    /// The kernel interface that Services are programmed through.
    pub mode: Mode,
    /// The configuration does not name a mode.
    pub is_mode_default: bool,
    /// The node's name; `None` takes the host's.
    pub hostname_override: Option<String>,
    /// The node's primary address; `None` takes it from the Node.
    pub node_ip: Option<IpAddr>,
    /// Address of `/healthz` and `/livez`; `None` disables them.
    pub healthz: Option<SocketAddr>,
    /// Address of metrics and diagnostics; `None` disables them.
    pub metrics: Option<SocketAddr>,
    /// Exit if an address cannot be bound.
    pub bind_hard_fail: bool,
    /// kube-proxy's profiling endpoints were requested; there are none here.
    pub profiling: bool,
    /// The way to recognise traffic from pods of this node.
    pub detect_local: DetectLocal,
    /// The node's addresses on which NodePorts answer.
    pub node_ports: Vec<NodePortRange>,
    /// Allow NodePorts on 127.0.0.1; see [`serves_localhost`](Self::serves_localhost).
    pub localhost_node_ports: bool,
    /// In the nftables mode, serve TCP NodePorts on loopback addresses if those are named, and reject
    /// the others (gate `KubeProxyNFTablesLocalhostNodePorts`).
    pub loopback_listeners: bool,
    /// Write rules for external IPs of Services (gate `AllowServiceExternalIPs`).
    pub external_ips: bool,
    /// Masquerade all traffic to ClusterIPs.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading.
    pub masquerade_bit: u8,
    /// Time after which a failed sync is retried.
    pub sync_period: Duration,
    /// Minimum time between two syncs.
    pub min_sync_period: Duration,
    /// Period of a full resync of watched objects. Accepted for compatibility and not used.
    pub config_sync_period: Duration,
    /// oom_score_adj of this process, -1000 to 1000.
    pub oom_score_adj: i32,
    /// Limits of connection tracking.
    pub conntrack: ConntrackLimits,
    /// Connection to the API server.
    pub client: ClientConfig,
}

/// The kernel interface that Services are programmed through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Chains of iptables.
    #[default]
    Iptables,
    /// Maps of nftables.
    Nftables,
}

impl Mode {
    /// As flags, files and `/proxyMode` spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

/// The way to recognise traffic from pods of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// By the cluster's networks: at most one per family.
    ClusterNetworks(Vec<IpNet>),
    /// By the Node's `spec.podCIDRs`.
    NodeNetworks,
    /// By the bridge that packets arrive on.
    Bridge(SharedStr),
    /// By a prefix of the name of the interface that packets arrive on.
    InterfacePrefix(SharedStr),
}

/// One of the ranges of node addresses on which NodePorts answer. A family for which there is none
/// answers on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePortRange {
    /// Addresses within this network.
    Network(IpNet),
    /// The addresses in the Node's status.
    Primary,
    /// Loopback addresses.
    Localhost,
    /// All addresses.
    All,
}

impl NodePortRange {
    /// The network of a family, on a node with this address of that family. A node whose address is
    /// unknown has no primary one.
    fn network(self, family: IpFamily, node_ip: Option<IpAddr>) -> Option<IpNet> {
        let [localhost, all] = match family {
            IpFamily::V4 => [
                IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
                IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
            ],
            IpFamily::V6 => [
                IpNet::new_assert(Ipv6Addr::LOCALHOST.into(), 128),
                IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0),
            ],
        };
        match self {
            Self::Network(network) => {
                Some(network).filter(|network| IpFamily::of(network.addr()) == family)
            }
            Self::Primary => node_ip
                .filter(|address| !address.is_loopback())
                .map(IpNet::from),
            Self::Localhost => Some(localhost),
            Self::All => Some(all),
        }
    }
}

/// Limits of connection tracking; `None` leaves the kernel's value unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackLimits {
    /// Maximum number of entries per CPU core.
    pub max_per_core: Option<u32>,
    /// Minimum number of entries, where `max_per_core` is set.
    pub min: u32,
    /// Accept TCP segments outside the window.
    pub tcp_be_liberal: bool,
    /// Timeout of entries in state CLOSE_WAIT.
    pub tcp_close_wait: Option<Duration>,
    /// Timeout of idle established TCP connections.
    pub tcp_established: Option<Duration>,
    /// Timeout of UDP flows with replies.
    pub udp_stream: Option<Duration>,
    /// Timeout of UDP flows without replies.
    pub udp: Option<Duration>,
}

/// Connection to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientConfig {
    /// Path of the kubeconfig; `None` inside a cluster.
    pub kubeconfig: Option<String>,
    /// Limit of requests per second; `None` is unlimited.
    pub qps: Option<f32>,
    /// Requests that may exceed `qps` for a moment.
    pub burst: u32,
}

/// The node's own addresses and pod networks, from the Node and the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNetwork {
    /// The node's address of the family; loopback if unknown.
    pub node_ip: IpAddr,
    /// The networks of the node's pods, of both families.
    pub pod_networks: Vec<IpNet>,
    /// All addresses of the host's interfaces, of both families.
    pub addresses: Vec<IpAddr>,
}

impl ProxyConfig {
    /// The way to recognise traffic from pods of this node; `None` if there is none for this
    /// family.
    pub fn local_detector(
        &self,
        family: IpFamily,
        pod_networks: &[IpNet],
    ) -> Option<LocalDetector> {
        let network = |networks: &[IpNet]| {
            let mut own = networks
                .iter()
                .filter(|network| IpFamily::of(network.addr()) == family);
            own.next()
                .map(|network| LocalDetector::Network(network.trunc()))
        };
        match &self.detect_local {
            DetectLocal::ClusterNetworks(networks) => network(networks),
            DetectLocal::NodeNetworks => network(pod_networks),
            DetectLocal::Bridge(name) => Some(LocalDetector::Bridge(name.clone())),
            DetectLocal::InterfacePrefix(prefix) => {
                Some(LocalDetector::InterfacePrefix(prefix.clone()))
            }
        }
    }

    /// The node's addresses on which NodePorts of a family answer.
    pub fn node_port_addresses(&self, family: IpFamily, node_ip: IpAddr) -> NodePortAddresses {
        NodePortAddresses::of_family(&self.node_port_networks(family, Some(node_ip)), family)
    }

    fn node_port_networks(&self, family: IpFamily, node_ip: Option<IpAddr>) -> Vec<IpNet> {
        let ranges = self.node_ports.iter();
        ranges
            .filter_map(|range| range.network(family, node_ip))
            .collect()
    }

    /// True if NodePorts answer on 127.0.0.1, which requires a sysctl and a rule that blocks other
    /// hosts. `primary` never does it, even if the node's address is loopback.
    pub fn serves_localhost(&self) -> bool {
        let networks = self.node_port_networks(IpFamily::V4, None);
        if networks.is_empty() && self.node_ports.contains(&NodePortRange::Primary) {
            return false;
        }
        self.localhost_node_ports
            && NodePortAddresses::of_family(&networks, IpFamily::V4).include_loopback()
    }

    /// The treatment of packets to NodePorts on loopback addresses: they are served if a range names
    /// loopback itself, and not only contains it.
    fn loopback_node_ports(&self, family: IpFamily) -> LoopbackNodePorts {
        if !self.loopback_listeners {
            return LoopbackNodePorts::Untouched;
        }
        let networks = self.node_port_networks(family, None);
        if networks.iter().any(|network| network.addr().is_loopback()) {
            LoopbackNodePorts::TcpServed
        } else {
            LoopbackNodePorts::Rejected
        }
    }

    /// Everything but Services that a backend needs for one family. The networks of ServiceCIDRs are
    /// empty: the watcher adds them.
    pub fn settings(&self, family: IpFamily, node: &NodeNetwork) -> Settings {
        let node_ports = self.node_port_addresses(family, node.node_ip);
        let localhost_node_ports = family == IpFamily::V4 && self.serves_localhost();
        let node_port_tail = match node_ports.select(&node.addresses) {
            None => NodePortTail::AnyLocal,
            Some(mut addresses) => {
                addresses.retain(|address| localhost_node_ports || !address.is_loopback());
                addresses.sort_unstable();
                addresses.dedup();
                NodePortTail::Addresses(addresses)
            }
        };
        Settings {
            family,
            masquerade_all: self.masquerade_all,
            masquerade_bit: self.masquerade_bit,
            local_detector: self.local_detector(family, &node.pod_networks),
            node_ip: node.node_ip,
            node_port_tail,
            localhost_node_ports,
            external_ips: self.external_ips,
            loopback: self.loopback_node_ports(family),
            service_networks: Vec::new(),
        }
    }

    /// Age at which a pending sync makes the node unhealthy.
    pub fn health_timeout(&self) -> Duration {
        self.sync_period * 2
    }
}

/// The family of the bind address. As in kube-proxy, everything that is not IPv4 counts as IPv6
/// here; the check refuses it later.
pub(super) fn bind_family(address: &str) -> IpFamily {
    match parse_sloppy(address) {
        Some(IpAddr::V4(_)) => IpFamily::V4,
        _ => IpFamily::V6,
    }
}

/// Adds the port to an address that has none. Text that is not an address stays as it is, for the
/// check to refuse.
pub fn address_with_port(address: &str, port: u16) -> String {
    match parse_sloppy(address) {
        // Kept as it was written, apart from added brackets.
        Some(_) if address.contains(':') => format!("[{address}]:{port}"),
        Some(_) => format!("{address}:{port}"),
        None => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{KubeProxyConfiguration, LOCALHOST_GATE};

    fn config(change: impl FnOnce(&mut KubeProxyConfiguration)) -> ProxyConfig {
        let mut configuration = KubeProxyConfiguration::default();
        change(&mut configuration);
        configuration.check().unwrap()
    }

    fn node(node_ip: &str, pod_networks: &[&str], addresses: &[&str]) -> NodeNetwork {
        NodeNetwork {
            node_ip: node_ip.parse().unwrap(),
            pod_networks: pod_networks
                .iter()
                .map(|text| text.parse().unwrap())
                .collect(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn network(text: &str) -> LocalDetector {
        LocalDetector::Network(text.parse().unwrap())
    }

    #[test]
    fn each_mode_has_its_detector_for_each_family() {
        let pods: Vec<IpNet> = vec!["10.244.3.0/24".parse().unwrap()];
        let bridge = LocalDetector::Bridge("cbr0".into());
        let prefix = LocalDetector::InterfacePrefix("veth".into());
        let cases = [
            ("ClusterCIDR", "", None, None),
            (
                "ClusterCIDR",
                "10.1.2.3/16",
                Some(network("10.1.0.0/16")),
                None,
            ),
            (
                "ClusterCIDR",
                "fd00:10::1/48,10.0.0.0/8",
                Some(network("10.0.0.0/8")),
                Some(network("fd00:10::/48")),
            ),
            (
                "NodeCIDR",
                "10.0.0.0/8",
                Some(network("10.244.3.0/24")),
                None,
            ),
            ("BridgeInterface", "", Some(bridge.clone()), Some(bridge)),
            (
                "InterfaceNamePrefix",
                "",
                Some(prefix.clone()),
                Some(prefix),
            ),
        ];
        for (mode, cidr, v4, v6) in cases {
            let config = config(|c| {
                c.detect_local_mode = mode.to_owned();
                c.cluster_cidr = cidr.to_owned();
                c.detect_local.bridge_interface = "cbr0".to_owned();
                c.detect_local.interface_name_prefix = "veth".to_owned();
            });
            let detectors = IpFamily::ALL.map(|family| config.local_detector(family, &pods));
            assert_eq!(detectors, [v4, v6], "{mode} {cidr}");
        }
    }

    #[test]
    fn node_ports_answer_where_the_configuration_says() {
        let here = ["127.0.0.1", "192.168.0.7", "10.0.0.7", "::1", "fd00::7"];
        let addresses = |texts: &[&str]| {
            NodePortTail::Addresses(texts.iter().map(|text| text.parse().unwrap()).collect())
        };
        let any = NodePortTail::AnyLocal;
        // Configured networks, the node's address, whether localhost may answer; expected: the
        // tail, and whether localhost does answer.
        let cases: [(&[&str], &str, bool, NodePortTail, bool); 18] = [
            (&[], "10.0.0.7", true, any.clone(), true),
            (&[], "10.0.0.7", false, any.clone(), false),
            (&[], "fd00::7", true, any.clone(), false),
            (
                &["primary"],
                "10.0.0.7",
                true,
                addresses(&["10.0.0.7"]),
                false,
            ),
            (
                &["primary"],
                "fd00::7",
                true,
                addresses(&["fd00::7"]),
                false,
            ),
            // Never on 127.0.0.1, even if that is the only known address of the node.
            (&["primary"], "127.0.0.1", true, any.clone(), false),
            (
                &["10.0.0.0/8"],
                "10.0.0.7",
                true,
                addresses(&["10.0.0.7"]),
                false,
            ),
            (&["10.0.0.0/8"], "fd00::7", true, any.clone(), false),
            (
                &["127.0.0.0/8", "192.168.0.0/16"],
                "10.0.0.7",
                true,
                addresses(&["127.0.0.1", "192.168.0.7"]),
                true,
            ),
            (
                &["127.0.0.0/8", "192.168.0.0/16"],
                "10.0.0.7",
                false,
                addresses(&["192.168.0.7"]),
                false,
            ),
            (&["::1/128"], "fd00::7", true, addresses(&[]), false),
            (&["all"], "10.0.0.7", true, any.clone(), true),
            (&["all"], "fd00::7", true, any.clone(), false),
            (&["localhost"], "fd00::7", true, addresses(&[]), false),
            (
                &["localhost"],
                "10.0.0.7",
                true,
                addresses(&["127.0.0.1"]),
                true,
            ),
            (
                &["primary", "localhost"],
                "10.0.0.7",
                true,
                addresses(&["10.0.0.7", "127.0.0.1"]),
                true,
            ),
            (
                &["primary", "192.168.0.0/16"],
                "10.0.0.7",
                true,
                addresses(&["10.0.0.7", "192.168.0.7"]),
                false,
            ),
            // The network is of the other family.
            (
                &["primary", "fd00::/16"],
                "10.0.0.7",
                true,
                addresses(&["10.0.0.7"]),
                false,
            ),
        ];
        for (given, node_ip, localhost, tail, answers) in cases {
            let config = config(|c| {
                let given = given.iter().map(|&text| text.to_owned());
                c.node_port_addresses = Some(given.collect());
                c.iptables.localhost_node_ports = localhost;
            });
            let node = node(node_ip, &[], &here);
            let settings = config.settings(IpFamily::of(node.node_ip), &node);
            let result = (settings.node_port_tail, settings.localhost_node_ports);
            assert_eq!(result, (tail, answers), "{given:?} {node_ip} {localhost}");
        }
    }

    #[test]
    fn loopback_node_ports_are_served_where_loopback_is_named_and_the_gate_is_on() {
        use LoopbackNodePorts::{Rejected, TcpServed, Untouched};
        let of = |mode: &str, gate: bool, given: &[&str]| {
            let config = config(|c| {
                c.mode = mode.to_owned();
                c.feature_gates.insert(LOCALHOST_GATE.to_owned(), gate);
                let given = given.iter().map(|&text| text.to_owned());
                c.node_port_addresses = Some(given.collect());
            });
            let node = node("10.0.0.7", &[], &["127.0.0.1", "10.0.0.7"]);
            IpFamily::ALL.map(|family| config.settings(family, &node).loopback)
        };
        assert_eq!(of("nftables", false, &["localhost"]), [Untouched; 2]);
        assert_eq!(of("iptables", true, &["localhost"]), [Untouched; 2]);
        assert_eq!(of("nftables", true, &["localhost"]), [TcpServed; 2]);
        assert_eq!(
            of("nftables", true, &["127.0.0.1/32"]),
            [TcpServed, Rejected]
        );
        for given in [&["all"][..], &["primary"], &[], &["126.0.0.0/7"]] {
            assert_eq!(of("nftables", true, given), [Rejected; 2], "{given:?}");
        }
        assert_eq!(of("nftables", true, &["all", "localhost"]), [TcpServed; 2]);
    }

    #[test]
    fn addresses_get_a_port_where_they_have_none() {
        for (address, expected) in [
            ("10.0.0.1", "10.0.0.1:7"),
            ("10.0.0.1:8", "10.0.0.1:8"),
            ("::", "[::]:7"),
            ("[::]:8", "[::]:8"),
            ("nowhere", "nowhere"),
            ("", ""),
        ] {
            assert_eq!(address_with_port(address, 7), expected);
        }
    }
}
