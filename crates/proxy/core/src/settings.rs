//! Settings of a backend: facts about this node and how to treat its traffic.

use std::net::IpAddr;

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr};

use crate::address::parse_network;

/// Facts about this node that decide which endpoints it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node's name.
    pub name: SharedStr,
    /// Its zone, from the label `topology.kubernetes.io/zone`.
    pub zone: Option<SharedStr>,
}

/// The way to recognise traffic from pods of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalDetector {
    /// By source network.
    Network(IpNet),
    /// By the bridge that packets arrive on.
    Bridge(SharedStr),
    /// By a prefix of the name of the interface that packets arrive on.
    InterfacePrefix(SharedStr),
}

/// The node's addresses on which NodePorts answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// On all of them.
    All,
    /// On those within these networks.
    Within(Vec<IpNet>),
}

impl NodePortAddresses {
    /// The networks of one family out of a list for both. A family that the list does not contain,
    /// or contains with prefix length 0, answers on all addresses.
    pub fn of_family(networks: &[IpNet], family: IpFamily) -> Self {
        let own: Vec<IpNet> = networks
            .iter()
            .map(IpNet::trunc)
            .filter(|network| IpFamily::of(network.addr()) == family)
            .collect();
        if own.is_empty() || own.iter().any(|network| network.prefix_len() == 0) {
            Self::All
        } else {
            Self::Within(own)
        }
    }

    /// True if a loopback network is among them: one that begins in a loopback network or contains
    /// 127.0.0.0.
    pub fn include_loopback(&self) -> bool {
        match self {
            Self::All => true,
            Self::Within(networks) => networks.iter().any(|network| {
                network.addr().is_loopback() || network.contains(&IpAddr::from([127, 0, 0, 0]))
            }),
        }
    }

    /// The given addresses that are selected; `None` means all.
    pub fn select(&self, addresses: &[IpAddr]) -> Option<Vec<IpAddr>> {
        match self {
            Self::All => None,
            Self::Within(networks) => Some(
                addresses
                    .iter()
                    .filter(|address| networks.iter().any(|network| network.contains(*address)))
                    .copied()
                    .collect(),
            ),
        }
    }
}

/// The way to recognise packets to NodePorts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortTail {
    /// Any address of this host.
    AnyLocal,
    /// These addresses.
    Addresses(Vec<IpAddr>),
}

/// The treatment of packets to NodePorts on loopback addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoopbackNodePorts {
    /// They are left alone.
    #[default]
    Untouched,
    /// They are rejected and counted.
    Rejected,
    /// TCP is left to a listener of this process; the rest is rejected and counted.
    TcpServed,
}

/// Everything but Services that a backend needs for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The family.
    pub family: IpFamily,
    /// Masquerade all traffic to ClusterIPs.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading, 0 to 31.
    pub masquerade_bit: u8,
    /// The way to recognise traffic from pods of this node; `None` if the configuration gives none
    /// for this family.
    pub local_detector: Option<LocalDetector>,
    /// The node's address. A source range that contains it also admits traffic from the node
    /// itself.
    pub node_ip: IpAddr,
    /// The way to recognise packets to NodePorts.
    pub node_port_tail: NodePortTail,
    /// Serve NodePorts on 127.0.0.0/8. Never set for IPv6.
    pub localhost_node_ports: bool,
    /// Write rules for `spec.externalIPs` of Services.
    pub external_ips: bool,
    /// The treatment of packets to NodePorts on loopback addresses, in the nftables mode.
    pub loopback: LoopbackNodePorts,
    /// Networks that ClusterIPs are taken from, without overlaps: packets to addresses in them that
    /// no Service has are dropped. Only the nftables mode does that, as upstream.
    pub service_networks: Vec<IpNet>,
}

/// The networks of one family out of the texts of all ServiceCIDRs, as few as possible. Texts that
/// are not networks are left out.
pub fn service_networks<'a>(
    texts: impl IntoIterator<Item = &'a str>,
    family: IpFamily,
) -> Vec<IpNet> {
    let networks = texts.into_iter().filter_map(parse_network);
    let of_family = networks.filter(|network| IpFamily::of(network.addr()) == family);
    let mut networks = IpNet::aggregate(&of_family.collect());
    networks.sort_unstable();
    networks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_family_that_is_not_mentioned_answers_everywhere() {
        let list = networks(&["192.168.0.0/24", "127.0.0.0/8"]);
        assert_eq!(
            NodePortAddresses::of_family(&list, IpFamily::V6),
            NodePortAddresses::All
        );
        let own = NodePortAddresses::of_family(&list, IpFamily::V4);
        assert!(own.include_loopback());
        let addresses: Vec<IpAddr> = ["192.168.0.2", "10.0.0.1", "127.0.0.1"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(
            own.select(&addresses),
            Some(vec![addresses[0], addresses[2]])
        );
    }

    #[test]
    fn service_networks_are_of_one_family_and_do_not_overlap() {
        let texts = [
            "10.97.0.0/16",
            "fd00:96::/108",
            "10.96.0.0/16",
            "10.96.7.0/24",
            "10.96",
        ];
        let of = |family| service_networks(texts, family);
        assert_eq!(of(IpFamily::V4), networks(&["10.96.0.0/15"]));
        assert_eq!(of(IpFamily::V6), networks(&["fd00:96::/108"]));
    }

    #[test]
    fn a_zero_prefix_means_everywhere() {
        let list = networks(&["192.168.0.0/24", "0.0.0.0/0"]);
        assert_eq!(
            NodePortAddresses::of_family(&list, IpFamily::V4),
            NodePortAddresses::All
        );
    }

    #[test]
    fn loopback_is_included_by_a_network_around_it_too() {
        for (network, expected) in [
            ("127.0.0.1/32", true),
            ("126.0.0.0/7", true),
            ("10.0.0.0/8", false),
        ] {
            let own = NodePortAddresses::of_family(&networks(&[network]), IpFamily::V4);
            assert_eq!(own.include_loopback(), expected, "{network}");
        }
    }
}
