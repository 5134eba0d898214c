//! Bodies of the debug requests, which list the daemon's state for operators and tests.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Deserializer, Serialize};

use crate::{Response, blank};

/// Lifecycle state of an address, by upstream's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AddressState {
    /// Free to be assigned.
    Available,
    /// Held by a pod.
    Assigned,
    /// Offered back to the cluster.
    PendingRelease,
    /// Not programmed in the network yet.
    PendingProgramming,
}

/// Body of [`DEBUG_ADDRESSES`](crate::path::DEBUG_ADDRESSES).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressFilter {
    /// States to list. An empty list lists nothing; unknown states are ignored, as upstream does.
    #[serde(
        rename = "IPConfigStateFilter",
        default,
        deserialize_with = "known_states"
    )]
    pub states: Vec<AddressState>,
}

fn known_states<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<AddressState>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Lenient {
        Known(AddressState),
        Unknown(serde::de::IgnoredAny),
    }
    let all: Option<Vec<Lenient>> = Option::deserialize(deserializer)?;
    Ok(all
        .unwrap_or_default()
        .into_iter()
        .filter_map(|state| match state {
            Lenient::Known(state) => Some(state),
            Lenient::Unknown(_) => None,
        })
        .collect())
}

/// The pod that holds an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    /// Name of the pod.
    #[serde(rename = "podName", default, deserialize_with = "blank::null")]
    pub pod_name: String,
    /// Namespace of the pod.
    #[serde(rename = "podNamespace", default, deserialize_with = "blank::null")]
    pub pod_namespace: String,
    /// The CNI container id.
    #[serde(
        rename = "PodInfraContainerID",
        default,
        deserialize_with = "blank::null"
    )]
    pub pod_infra_container_id: String,
    /// Upstream's key of the attachment.
    #[serde(rename = "PodInterfaceID", default, deserialize_with = "blank::null")]
    pub pod_interface_id: String,
    /// Key scheme in upstream's numbering; 1 is the interface id.
    #[serde(rename = "Version", default, deserialize_with = "blank::null")]
    pub version: u32,
    /// The pod has more than one interface.
    #[serde(
        rename = "SecondaryInterfaceSet",
        default,
        deserialize_with = "blank::null"
    )]
    pub secondary_interface_set: bool,
    /// Weft's own: the pod's UID.
    #[serde(rename = "podUID", default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
}

/// One address and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressStatus {
    /// Lifecycle state.
    pub state: AddressState,
    /// The assignment's name in the NodeNetworkConfig.
    #[serde(rename = "ID")]
    pub id: String,
    /// The address.
    #[serde(rename = "IPAddress")]
    pub ip_address: IpAddr,
    /// Time of the last change of state, RFC 3339.
    #[serde(
        rename = "LastStateTransition",
        default,
        deserialize_with = "blank::null"
    )]
    pub last_state_transition: String,
    /// The network container that the address belongs to.
    #[serde(rename = "NCID", default, deserialize_with = "blank::null")]
    pub nc_id: String,
    /// The pod that holds the address, or held it last.
    #[serde(rename = "PodInfo", default)]
    pub pod_info: Option<PodRecord>,
}

/// Response to [`DEBUG_ADDRESSES`](crate::path::DEBUG_ADDRESSES).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressesResponse {
    /// Addresses in the states of the filter.
    #[serde(
        rename = "IPConfigurationStatus",
        default,
        deserialize_with = "blank::null"
    )]
    pub addresses: Vec<AddressStatus>,
    /// Return code and message.
    #[serde(rename = "Response")]
    pub response: Response,
}

/// Response to [`DEBUG_POD_CONTEXT`](crate::path::DEBUG_POD_CONTEXT).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodContextResponse {
    /// Address ids by key.
    #[serde(rename = "PodContext", default, deserialize_with = "blank::null")]
    pub pod_context: BTreeMap<String, Vec<String>>,
    /// Return code and message.
    #[serde(rename = "Response")]
    pub response: Response,
}

/// The daemon's records of keys and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestData {
    /// Address ids by key.
    #[serde(
        rename = "PodIPIDByPodInterfaceKey",
        default,
        deserialize_with = "blank::null"
    )]
    pub by_key: BTreeMap<String, Vec<String>>,
    /// Addresses by id.
    #[serde(rename = "PodIPConfigState", default, deserialize_with = "blank::null")]
    pub addresses: BTreeMap<String, AddressStatus>,
}

/// Response to [`DEBUG_REST_DATA`](crate::path::DEBUG_REST_DATA).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestDataResponse {
    /// The daemon's records.
    #[serde(
        rename = "HTTPRestServiceData",
        default,
        deserialize_with = "blank::null"
    )]
    pub data: RestData,
    /// Return code and message.
    #[serde(rename = "Response")]
    pub response: Response,
}
