//! What a pod is given: an address, and the subnet it lives in.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::blank;

/// The kind of interface that a pod's first address belongs to.
pub const INFRA_NIC: &str = "InfraNIC";

/// An address with the length of its prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IpSubnet {
    /// None when there is no such address.
    #[serde(rename = "IPAddress", default, with = "blank::address")]
    pub ip_address: Option<IpAddr>,
    /// 0 when there is no such address.
    #[serde(default, deserialize_with = "blank::null")]
    pub prefix_length: u8,
}

impl IpSubnet {
    /// An address that is there.
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
    /// The way out.
    #[serde(rename = "GatewayIPAddress", default, with = "blank::address")]
    pub gateway_ip_address: Option<IpAddr>,
    /// The way out for IPv6.
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

/// A route inside of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Route {
    /// The destination, a CIDR.
    #[serde(rename = "IPAddress", default, deserialize_with = "blank::null")]
    pub ip_address: String,
    /// The next hop; none is the gateway of the subnet.
    #[serde(rename = "GatewayIPAddress", default, with = "blank::address")]
    pub gateway_ip_address: Option<IpAddr>,
    /// The interface it leaves by.
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
    /// Where it lives.
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
    /// The host it runs on.
    #[serde(
        rename = "HostPrimaryIPInfo",
        default,
        deserialize_with = "blank::null"
    )]
    pub host_primary_ip_info: HostIpInfo,
    /// [`INFRA_NIC`], or a kind that Weft does not hand out.
    #[serde(rename = "NICType", default, deserialize_with = "blank::null")]
    pub nic_type: String,
    /// The interface it is meant for; empty leaves that to the plugin.
    #[serde(default, deserialize_with = "blank::null")]
    pub interface_name: String,
    /// The hardware address it is meant for.
    #[serde(default, deserialize_with = "blank::null")]
    pub mac_address: String,
    /// Asks the plugin for no default route.
    #[serde(default, deserialize_with = "blank::null")]
    pub skip_default_routes: bool,
    /// Routes beside the default one.
    #[serde(default, deserialize_with = "blank::null")]
    pub routes: Vec<Route>,
    /// Windows' identity of a device.
    #[serde(rename = "PnPID", default, deserialize_with = "blank::null")]
    pub pnp_id: String,
    /// Whether the host may talk to the network container.
    #[serde(
        rename = "AllowHostToNCCommunication",
        default,
        deserialize_with = "blank::null"
    )]
    pub allow_host_to_nc_communication: bool,
    /// Whether the network container may talk to the host.
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
        // The original puts the subnet into the first field whatever its family is, and only the
        // gateways apart.
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

    /// The length of the subnet's prefix, which is what an interface needs to see its gateway;
    /// the address's own when the network container does not tell.
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
