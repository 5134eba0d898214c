//! What a CNI plugin asks.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::blank;

/// The pod an attachment belongs to: information beside the key, never the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodContext {
    /// Its name.
    #[serde(default, deserialize_with = "blank::null")]
    pub pod_name: String,
    /// Its namespace.
    #[serde(default, deserialize_with = "blank::null")]
    pub pod_namespace: String,
    /// Weft's own: the pod's UID, by which leaks are found.
    #[serde(rename = "podUID", default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
}

/// Body of the requests for addresses of every family, and of those that give them back.
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
    /// The key of the original; Weft's plugin sends the full container id.
    #[serde(rename = "podInterfaceID", default, deserialize_with = "blank::null")]
    pub pod_interface_id: String,
    /// The CNI container id.
    #[serde(rename = "infraContainerID", default, deserialize_with = "blank::null")]
    pub infra_container_id: String,
    /// Whose addresses they are.
    #[serde(default)]
    pub orchestrator_context: Option<PodContext>,
    /// The interface inside of the pod.
    #[serde(default, deserialize_with = "blank::null")]
    pub ifname: String,
    /// More than one interface; Weft's plugin has none of them.
    #[serde(default, deserialize_with = "blank::null")]
    pub secondary_interfaces_exist: bool,
    /// An accelerated interface exists; Weft's plugin knows none.
    #[serde(
        rename = "BackendInterfaceExist",
        default,
        deserialize_with = "blank::null"
    )]
    pub backend_interface_exist: bool,
    /// Spelled so by the original.
    #[serde(
        rename = "BacknendInterfaceMacAddress",
        default,
        deserialize_with = "blank::null"
    )]
    pub backend_interface_mac_addresses: Vec<String>,
    /// Weft's own: the CNI network, which with container id and interface makes the key that the
    /// CNI specification asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_name: Option<String>,
}

/// Body of the older requests for exactly one address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IpConfigRequest {
    /// None asks for any.
    #[serde(rename = "DesiredIPAddress", default, with = "blank::address")]
    pub desired_ip_address: Option<IpAddr>,
    /// The key of the original.
    #[serde(rename = "PodInterfaceID", default, deserialize_with = "blank::null")]
    pub pod_interface_id: String,
    /// The CNI container id.
    #[serde(rename = "InfraContainerID", default, deserialize_with = "blank::null")]
    pub infra_container_id: String,
    /// Whose address it is.
    #[serde(default)]
    pub orchestrator_context: Option<PodContext>,
    /// The interface inside of the pod.
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
