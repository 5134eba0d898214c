//! Requests of a CNI plugin for addresses and their release.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::blank;

/// The pod an attachment belongs to: additional information, never the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodContext {
    /// Name of the pod.
    #[serde(default, deserialize_with = "blank::null")]
    pub pod_name: String,
    /// Namespace of the pod.
    #[serde(default, deserialize_with = "blank::null")]
    pub pod_namespace: String,
    /// Weft's own: the pod's UID, used to find leaked addresses.
    #[serde(rename = "podUID", default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
}

/// Body of requests for addresses of every family, and of their release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpConfigsRequest {
    /// Empty asks for any address of each family.
    #[serde(
        rename = "desiredIPAddresses",
        default,
        deserialize_with = "blank::null"
    )]
    pub desired_ip_addresses: Vec<IpAddr>,
    /// Upstream's key; Weft's plugin sends the full container id.
    #[serde(rename = "podInterfaceID", default, deserialize_with = "blank::null")]
    pub pod_interface_id: String,
    /// The CNI container id.
    #[serde(rename = "infraContainerID", default, deserialize_with = "blank::null")]
    pub infra_container_id: String,
    /// The pod that the addresses are for.
    #[serde(default)]
    pub orchestrator_context: Option<PodContext>,
    /// The interface inside the pod.
    #[serde(default, deserialize_with = "blank::null")]
    pub ifname: String,
    /// The pod has more than one interface; Weft's plugin never sets it.
    #[serde(default, deserialize_with = "blank::null")]
    pub secondary_interfaces_exist: bool,
    /// An accelerated interface exists; Weft's plugin never sets it.
    #[serde(
        rename = "BackendInterfaceExist",
        default,
        deserialize_with = "blank::null"
    )]
    pub backend_interface_exist: bool,
    /// MAC addresses of accelerated interfaces. The field name is misspelt upstream.
    #[serde(
        rename = "BacknendInterfaceMacAddress",
        default,
        deserialize_with = "blank::null"
    )]
    pub backend_interface_mac_addresses: Vec<String>,
    /// Weft's own: the CNI network. With container id and interface it is the key that the CNI
    /// specification requires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_name: Option<String>,
}

/// Body of the older requests for exactly one address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IpConfigRequest {
    /// None requests any address.
    #[serde(rename = "DesiredIPAddress", default, with = "blank::address")]
    pub desired_ip_address: Option<IpAddr>,
    /// Upstream's key.
    #[serde(rename = "PodInterfaceID", default, deserialize_with = "blank::null")]
    pub pod_interface_id: String,
    /// The CNI container id.
    #[serde(rename = "InfraContainerID", default, deserialize_with = "blank::null")]
    pub infra_container_id: String,
    /// The pod that the address is for.
    #[serde(default)]
    pub orchestrator_context: Option<PodContext>,
    /// The interface inside the pod.
    #[serde(default, deserialize_with = "blank::null")]
    pub ifname: String,
}

impl From<IpConfigRequest> for IpConfigsRequest {
    fn from(one: IpConfigRequest) -> Self {
        Self {
            desired_ip_addresses: one.desired_ip_address.into_iter().collect(),
            pod_interface_id: one.pod_interface_id,
            infra_container_id: one.infra_container_id,
            orchestrator_context: one.orchestrator_context,
            ifname: one.ifname,
            ..Self::default()
        }
    }
}
