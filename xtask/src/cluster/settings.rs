//! Settings of a cluster: its size, address families and parts. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// Flags of `make cluster ARGS="…"`; comparisons choose them in code.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Number of nodes, 1 to 9
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub(crate) nodes: u8,
    /// Program that serves Services and gives pods addresses
    #[arg(long, value_enum, default_value_t = Network::Weft)]
    pub(crate) network: Network,
    /// Mode of the service proxy
    #[arg(long, value_enum, default_value_t = ProxyMode::Nftables)]
    pub(crate) proxy_mode: ProxyMode,
    /// Address families of nodes, pods and Services
    #[arg(long, value_enum, default_value_t = Families::Dual)]
    pub(crate) families: Families,
    /// Containers of Weft on a node: one for each agent, or one for `weft node`
    #[arg(long, value_enum, default_value_t = Agents::Separate)]
    pub(crate) agents: Agents,
    /// CNI plugin that connects pods
    #[arg(long, value_enum, default_value_t = MainPlugin::Bridge)]
    pub(crate) cni: MainPlugin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Network {
    Weft,
    /// kube-proxy, the CNI plugin host-local and routes that are set once, for comparison
    KubeProxy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum ProxyMode {
    Nftables,
    /// iptables through nf_tables (iptables-nft)
    Iptables,
    IptablesLegacy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Families {
    Dual,
    Ipv4,
    Ipv6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Agents {
    Separate,
    Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum MainPlugin {
    Bridge,
    Ptp,
}

/// Port of the API server.
pub(crate) const API_PORT: u16 = 6443;

impl ProxyMode {
    /// The value of `--proxy-mode`.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables | Self::IptablesLegacy => "iptables",
        }
    }
}

impl MainPlugin {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Ptp => "ptp",
        }
    }
}

impl Settings {
    /// Numbers of the nodes, from 1 on.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u8> + use<> {
        1..=self.nodes
    }
}

impl Families {
    fn choose<T>(self, v4: T, v6: T) -> Vec<T> {
        match self {
            Self::Dual => vec![v4, v6],
            Self::Ipv4 => vec![v4],
            Self::Ipv6 => vec![v6],
        }
    }

    /// Ranges of pod addresses.
    pub(crate) fn cluster_cidrs(self) -> Vec<&'static str> {
        self.choose("10.244.0.0/16", "fd00:10:244::/56")
    }

    /// Ranges of ClusterIPs.
    pub(crate) fn service_cidrs(self) -> Vec<&'static str> {
        self.choose("10.96.0.0/16", "fd00:10:96::/112")
    }

    /// ClusterIPs of the Service `kubernetes`.
    pub(crate) fn service_addresses(self) -> Vec<IpAddr> {
        self.choose(
            Ipv4Addr::new(10, 96, 0, 1).into(),
            Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 1).into(),
        )
    }

    /// ClusterIP of the DNS Service.
    pub(crate) fn dns_address(self) -> IpAddr {
        let addresses = self.choose(
            Ipv4Addr::new(10, 96, 0, 10).into(),
            Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 10).into(),
        );
        addresses[0]
    }

    /// Addresses on the segment that connects the nodes; number 0 is the segment's own.
    pub(crate) fn addresses(self, node: u8) -> Vec<IpAddr> {
        let host = if node == 0 { 1 } else { 10 + node };
        self.choose(
            Ipv4Addr::new(172, 30, 0, host).into(),
            Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, host.into()).into(),
        )
    }

    /// Address of the API server: the first one of node 1, in whose network it runs.
    pub(crate) fn api_address(self) -> IpAddr {
        self.addresses(1)[0]
    }

    /// URL of the API server.
    pub(crate) fn api_url(self) -> String {
        match self.api_address() {
            IpAddr::V4(address) => format!("https://{address}:{API_PORT}"),
            IpAddr::V6(address) => format!("https://[{address}]:{API_PORT}"),
        }
    }
}

/// Length of the prefix of the segment.
pub(crate) fn prefix_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 24 } else { 64 }
}

/// Name of a node.
pub(crate) fn node_name(number: u8) -> String {
    format!("n{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_its_own_ranges_and_both_share_the_order() {
        let dual = Families::Dual;
        assert_eq!(dual.cluster_cidrs().len(), 2);
        assert!(dual.api_address().is_ipv4());
        assert_eq!(Families::Ipv6.api_url(), "https://[fd00:172:30::b]:6443");
        assert_eq!(Families::Ipv4.addresses(2), [Ipv4Addr::new(172, 30, 0, 12)]);
    }
}
