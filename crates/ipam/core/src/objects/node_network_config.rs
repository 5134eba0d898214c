//! The kind NodeNetworkConfig: fields, and conversion from and to the values of the core.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_model::{IpFamily, SharedStr, null_is_default};

use super::{Meta, meta::is_zero};
use crate::{
    ContainerId, ContainerResult, Entry, GrantName, NetworkContainer, NodeConfig, NodeSpec,
    NodeStatus, ResourceVersion, UpdatePhase, scaling::ScalerParameters,
};

/// A NodeNetworkConfig: a node's request for addresses, and its assignments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeNetworkConfig {
    /// `metadata`; the name is the node's.
    pub metadata: Meta,
    /// `spec`: written by the node.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: NodeNetworkConfigSpec,
    /// `status`: written by the allocator.
    #[serde(deserialize_with = "null_is_default")]
    pub status: NodeNetworkConfigStatus,
}

/// `spec` of a NodeNetworkConfig.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeNetworkConfigSpec {
    /// Number of addresses the node requests in total.
    #[serde(rename = "requestedIPCount")]
    pub requested_ip_count: i64,
    /// Names of assignments that the node releases.
    #[serde(
        rename = "ipsNotInUse",
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub ips_not_in_use: Vec<GrantName>,
    /// Part of the request that pods need; the rest is buffer. Weft's own.
    #[serde(rename = "demandIPCount", skip_serializing_if = "Option::is_none")]
    pub demand_ip_count: Option<i64>,
    /// Azure's field; not used here.
    #[serde(skip_serializing_if = "is_zero")]
    pub availability_zone: u64,
}

/// `status` of a NodeNetworkConfig.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeNetworkConfigStatus {
    /// Number of addresses assigned to the node.
    #[serde(rename = "assignedIPCount")]
    pub assigned_ip_count: i64,
    /// `Updating`, `Updated` or `Error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<SharedStr>,
    /// Scaling parameters for the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaler: Option<ScalerParameters>,
    /// The node's addresses, grouped by subnet.
    #[serde(
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub network_containers: Vec<ContainerRecord>,
}

/// An entry of `networkContainers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerRecord {
    /// Id of the container.
    pub id: ContainerId,
    /// `dynamic` or `static`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub assignment_mode: SharedStr,
    /// `vnet`, `vnetblock` or `overlay`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub r#type: SharedStr,
    /// Address of the container; of a static one its range.
    #[serde(rename = "primaryIP", skip_serializing_if = "str::is_empty")]
    pub primary_ip: SharedStr,
    /// IPv6 address of the container.
    #[serde(rename = "primaryIPV6", skip_serializing_if = "str::is_empty")]
    pub primary_ip_v6: SharedStr,
    /// Name of the subnet; in Weft the pool's name.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub subnet_name: SharedStr,
    /// CIDR whose prefix length pods get.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub subnet_address_space: SharedStr,
    /// The IPv6 CIDR.
    #[serde(rename = "subnetAddressSpaceV6", skip_serializing_if = "str::is_empty")]
    pub subnet_address_space_v6: SharedStr,
    /// Assigned addresses and blocks.
    #[serde(
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub ip_assignments: Vec<EntryRecord>,
    /// IPv4 gateway that pods get.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub default_gateway: SharedStr,
    /// IPv6 gateway that pods get.
    #[serde(rename = "defaultGatewayV6", skip_serializing_if = "str::is_empty")]
    pub default_gateway_v6: SharedStr,
    /// Azure's field; not used here.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub mac_address: SharedStr,
    /// Incremented with every change.
    pub version: i64,
    /// Azure's field; not used here.
    #[serde(rename = "nodeIP", skip_serializing_if = "str::is_empty")]
    pub node_ip: SharedStr,
    /// Azure's field; the name is misspelt upstream.
    #[serde(rename = "subcriptionID", skip_serializing_if = "str::is_empty")]
    pub subscription_id: SharedStr,
    /// Azure's field; not used here.
    #[serde(rename = "resourceGroupID", skip_serializing_if = "str::is_empty")]
    pub resource_group_id: SharedStr,
    /// Azure's field; not used here.
    #[serde(rename = "vnetID", skip_serializing_if = "str::is_empty")]
    pub vnet_id: SharedStr,
    /// Azure's field; not used here.
    #[serde(rename = "subnetID", skip_serializing_if = "str::is_empty")]
    pub subnet_id: SharedStr,
    /// Result of the last request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<SharedStr>,
}

/// An entry of `ipAssignments`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EntryRecord {
    /// Name of the assignment.
    pub name: GrantName,
    /// An address or a CIDR.
    pub ip: SharedStr,
}

const DYNAMIC: &str = "dynamic";
const SUCCESS: &str = "NCUpdateSuccess";
const SUBNET_FULL: &str = "NCUpdateSubnetFullError";

impl NodeNetworkConfig {
    /// Converts it to the type that decisions are made with.
    pub fn to_config(&self) -> NodeConfig {
        let meta = &self.metadata;
        NodeConfig {
            name: meta.name.as_str().into(),
            uid: meta.uid.as_str().into(),
            owner: meta.controlling_node().map(|uid| uid.as_str().into()),
            version: ResourceVersion::from(meta.resource_version.as_str()),
            deleting: meta.deletion_timestamp.is_some(),
            finalized: meta.has_finalizer(),
            spec: self.spec.to_spec(),
            status: self.status.to_status(),
        }
    }
}

impl NodeNetworkConfigSpec {
    /// Converts it to the type that decisions are made with.
    pub fn to_spec(&self) -> NodeSpec {
        NodeSpec {
            requested: self.requested_ip_count,
            not_in_use: self.ips_not_in_use.iter().cloned().collect(),
            demand: self.demand_ip_count,
        }
    }
}

impl From<&NodeSpec> for NodeNetworkConfigSpec {
    fn from(spec: &NodeSpec) -> Self {
        Self {
            requested_ip_count: spec.requested,
            ips_not_in_use: spec.not_in_use.iter().cloned().collect(),
            demand_ip_count: spec.demand,
            availability_zone: 0,
        }
    }
}

impl NodeNetworkConfigStatus {
    /// Converts it to the type that decisions are made with.
    pub fn to_status(&self) -> NodeStatus {
        let containers = self.network_containers.iter();
        NodeStatus {
            scaler: self.scaler,
            containers: containers.map(ContainerRecord::to_container).collect(),
            phase: match self.status.as_deref() {
                Some("Updating") => Some(UpdatePhase::Updating),
                Some("Updated") => Some(UpdatePhase::Updated),
                Some("Error") => Some(UpdatePhase::Error),
                _ => None,
            },
        }
    }
}

impl From<&NodeStatus> for NodeNetworkConfigStatus {
    fn from(status: &NodeStatus) -> Self {
        let phase = status.phase.map(|phase| match phase {
            UpdatePhase::Updating => "Updating",
            UpdatePhase::Updated => "Updated",
            UpdatePhase::Error => "Error",
        });
        Self {
            assigned_ip_count: i64::try_from(status.address_count()).unwrap_or(i64::MAX),
            status: phase.map(SharedStr::interned),
            scaler: status.scaler,
            network_containers: status.containers.iter().map(Into::into).collect(),
        }
    }
}

impl ContainerRecord {
    fn to_container(&self) -> NetworkContainer {
        let nets = [&self.subnet_address_space, &self.subnet_address_space_v6];
        let gateways = [&self.default_gateway, &self.default_gateway_v6];
        let entries = self.ip_assignments.iter();
        NetworkContainer {
            id: self.id.clone(),
            version: self.version,
            // Upstream's default.
            dynamic: self.assignment_mode.is_empty() || &*self.assignment_mode == DYNAMIC,
            subnet: self.subnet_name.clone(),
            subnets: nets.iter().filter_map(|text| text.parse().ok()).collect(),
            gateways: gateways
                .iter()
                .filter_map(|text| text.parse().ok())
                .collect(),
            entries: entries
                .map(|entry| Entry {
                    name: entry.name.clone(),
                    ip: entry.ip.clone(),
                })
                .collect(),
            result: match self.status.as_deref() {
                Some(SUCCESS) => Some(ContainerResult::Success),
                Some(SUBNET_FULL) => Some(ContainerResult::SubnetFull),
                _ => None,
            },
        }
    }
}

impl From<&NetworkContainer> for ContainerRecord {
    fn from(container: &NetworkContainer) -> Self {
        let subnet = |family| {
            let mut nets = container.subnets.iter();
            nets.find(|net| IpFamily::of(net.addr()) == family)
                .map(|net: &IpNet| SharedStr::new(&net.to_string()))
                .unwrap_or_default()
        };
        let gateway = |family| {
            container
                .gateway(family)
                .map(|address: IpAddr| SharedStr::new(&address.to_string()))
                .unwrap_or_default()
        };
        let mode = if container.dynamic { DYNAMIC } else { "static" };
        let result = container.result.map(|result| match result {
            ContainerResult::Success => SUCCESS,
            ContainerResult::SubnetFull => SUBNET_FULL,
        });
        let entries = container.entries.iter();
        Self {
            id: container.id.clone(),
            assignment_mode: SharedStr::interned(mode),
            r#type: SharedStr::interned("vnet"),
            subnet_name: container.subnet.clone(),
            subnet_address_space: subnet(IpFamily::V4),
            subnet_address_space_v6: subnet(IpFamily::V6),
            ip_assignments: entries
                .map(|entry| EntryRecord {
                    name: entry.name.clone(),
                    ip: entry.ip.clone(),
                })
                .collect(),
            default_gateway: gateway(IpFamily::V4),
            default_gateway_v6: gateway(IpFamily::V6),
            version: container.version,
            status: result.map(SharedStr::interned),
            ..Self::default()
        }
    }
}
