//! A pod's address with its subnet, gateway and routes.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::blank;

/// The kind of interface that a pod's first address belongs to.
pub const INFRA_NIC: &str = "InfraNIC";

/// An address with the length of its prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IpSubnet {
    /// None if the address is not set.
    #[serde(rename = "IPAddress", default, with = "blank::address")]
    pub ip_address: Option<IpAddr>,
    /// 0 if the address is not set.
    #[serde(default, deserialize_with = "blank::null")]
    pub prefix_length: u8,
}

impl IpSubnet {
    /// An address with its prefix length.
    pub const fn of(address: IpAddr, prefix_length: u8) -> Self {
        Self {
            ip_address: Some(address),
            prefix_length,
        }
    }
}

/// The subnet of an address as its network container describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IpConfiguration {
    /// The node's own address in the subnet, and the length of the subnet's prefix.
    #[serde(rename = "IPSubnet", default, deserialize_with = "blank::null")]
    pub ip_subnet: IpSubnet,
    /// The same for IPv6, where one network container has both.
    #[serde(rename = "IPSubnetV6", default, deserialize_with = "blank::null")]
    pub ip_subnet_v6: IpSubnet,
    /// Name servers for the pod.
    #[serde(rename = "DNSServers", default, deserialize_with = "blank::null")]
    pub dns_servers: Vec<String>,
    /// The IPv4 gateway.
    #[serde(rename = "GatewayIPAddress", default, with = "blank::address")]
    pub gateway_ip_address: Option<IpAddr>,
    /// The IPv6 gateway.
    #[serde(rename = "GatewayIPv6Address", default, with = "blank::address")]
    pub gateway_ipv6_address: Option<IpAddr>,
}

/// The host's own address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostIpInfo {
    /// The host's gateway.
    #[serde(default, deserialize_with = "blank::null")]
    pub gateway: String,
    /// The host's address.
    #[serde(rename = "PrimaryIP", default, deserialize_with = "blank::null")]
    pub primary_ip: String,
    /// The host's subnet.
    #[serde(default, deserialize_with = "blank::null")]
    pub subnet: String,
}

/// A route inside the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Route {
    /// The destination, a CIDR.
    #[serde(rename = "IPAddress", default, deserialize_with = "blank::null")]
    pub ip_address: String,
    /// The next hop; none is the gateway of the subnet.
    #[serde(rename = "GatewayIPAddress", default, with = "blank::address")]
    pub gateway_ip_address: Option<IpAddr>,
    /// The outgoing interface.
    #[serde(default, deserialize_with = "blank::null")]
    pub interface_to_use: String,
}

/// One address of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct PodIpInfo {
    /// The address; the prefix length is that of the subnet.
    #[serde(rename = "PodIPConfig", default, deserialize_with = "blank::null")]
    pub pod_ip_config: IpSubnet,
    /// The subnet of the address.
    #[serde(
        rename = "NetworkContainerPrimaryIPConfig",
        default,
        deserialize_with = "blank::null"
    )]
    pub network_container_primary_ip_config: IpConfiguration,
    /// The same for IPv6, where one network container has both.
    #[serde(
        rename = "NetworkContainerIPv6Config",
        default,
        deserialize_with = "blank::null"
    )]
    pub network_container_ipv6_config: IpConfiguration,
    /// The host's own address.
    #[serde(
        rename = "HostPrimaryIPInfo",
        default,
        deserialize_with = "blank::null"
    )]
    pub host_primary_ip_info: HostIpInfo,
    /// [`INFRA_NIC`], or a kind that Weft does not assign.
    #[serde(rename = "NICType", default, deserialize_with = "blank::null")]
    pub nic_type: String,
    /// The interface it is meant for; empty leaves that to the plugin.
    #[serde(default, deserialize_with = "blank::null")]
    pub interface_name: String,
    /// The hardware address it is meant for.
    #[serde(default, deserialize_with = "blank::null")]
    pub mac_address: String,
    /// The plugin must not install a default route.
    #[serde(default, deserialize_with = "blank::null")]
    pub skip_default_routes: bool,
    /// Routes in addition to the default route.
    #[serde(default, deserialize_with = "blank::null")]
    pub routes: Vec<Route>,
    /// Plug-and-play id of a device on Windows.
    #[serde(rename = "PnPID", default, deserialize_with = "blank::null")]
    pub pnp_id: String,
    /// The host may reach the network container.
    #[serde(
        rename = "AllowHostToNCCommunication",
        default,
        deserialize_with = "blank::null"
    )]
    pub allow_host_to_nc_communication: bool,
    /// The network container may reach the host.
    #[serde(
        rename = "AllowNCToHostCommunication",
        default,
        deserialize_with = "blank::null"
    )]
    pub allow_nc_to_host_communication: bool,
    /// The network container the address came from.
    #[serde(
        rename = "NetworkContainerID",
        default,
        deserialize_with = "blank::null"
    )]
    pub network_container_id: String,
}

impl PodIpInfo {
    /// A pod's address on its first interface. `subnet` is the node's own address in the subnet
    /// with the subnet's prefix length, which the pod's address carries as well.
    pub fn infra(address: IpAddr, subnet: IpSubnet, gateway: Option<IpAddr>) -> Self {
        // Upstream puts the subnet of either family into the first field and separates only the
        // gateways.
        let configuration = IpConfiguration {
            ip_subnet: subnet,
            gateway_ip_address: gateway.filter(|_| address.is_ipv4()),
            gateway_ipv6_address: gateway.filter(|_| address.is_ipv6()),
            ..IpConfiguration::default()
        };
        Self {
            pod_ip_config: IpSubnet::of(address, subnet.prefix_length),
            network_container_primary_ip_config: configuration,
            nic_type: INFRA_NIC.to_owned(),
            ..Self::default()
        }
    }

    /// The gateway for the family of the pod's address.
    pub fn gateway(&self) -> Option<IpAddr> {
        let primary = &self.network_container_primary_ip_config;
        match self.pod_ip_config.ip_address? {
            IpAddr::V4(_) => primary.gateway_ip_address.filter(IpAddr::is_ipv4),
            IpAddr::V6(_) => [
                primary.gateway_ipv6_address,
                self.network_container_ipv6_config.gateway_ipv6_address,
                self.network_container_ipv6_config.gateway_ip_address,
                primary.gateway_ip_address,
            ]
            .into_iter()
            .flatten()
            .find(IpAddr::is_ipv6),
        }
    }

    /// Prefix length of the subnet, which an interface needs to reach its gateway. Falls back to
    /// the address's own prefix length if the network container has none.
    pub fn prefix_length(&self) -> u8 {
        let same_family = |subnet: &&IpSubnet| {
            subnet.prefix_length > 0
                && match (subnet.ip_address, self.pod_ip_config.ip_address) {
                    (Some(one), Some(other)) => one.is_ipv4() == other.is_ipv4(),
                    _ => false,
                }
        };
        [
            &self.network_container_primary_ip_config.ip_subnet,
            &self.network_container_primary_ip_config.ip_subnet_v6,
            &self.network_container_ipv6_config.ip_subnet,
            &self.network_container_ipv6_config.ip_subnet_v6,
        ]
        .into_iter()
        .find(same_family)
        .map_or(self.pod_ip_config.prefix_length, |subnet| {
            subnet.prefix_length
        })
    }
}
