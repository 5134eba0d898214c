//! Looks into the daemon, for people and for tests.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Deserializer, Serialize};

use crate::{Response, blank};

/// Where an address is in its life, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AddressState {
    /// Free to be assigned.
    Available,
    /// A pod has it.
    Assigned,
    /// Offered back to the cluster.
    PendingRelease,
    /// Not yet usable in the network.
    PendingProgramming,
}

/// Body of [`DEBUG_ADDRESSES`](crate::path::DEBUG_ADDRESSES).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressFilter {
    /// Which states to list: none lists nothing. Unknown ones are ignored, as upstream does.
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

/// Who holds an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    /// Its name.
    #[serde(rename = "podName", default, deserialize_with = "blank::null")]
    pub pod_name: String,
    /// Its namespace.
    #[serde(rename = "podNamespace", default, deserialize_with = "blank::null")]
    pub pod_namespace: String,
    /// The CNI container id.
    #[serde(
        rename = "PodInfraContainerID",
        default,
        deserialize_with = "blank::null"
    )]
    pub pod_infra_container_id: String,
    /// The key of the original.
    #[serde(rename = "PodInterfaceID", default, deserialize_with = "blank::null")]
    pub pod_interface_id: String,
    /// Which of its key schemes upstream uses; 1 is the interface id.
    #[serde(rename = "Version", default, deserialize_with = "blank::null")]
    pub version: u32,
    /// More than one interface.
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
    /// Where it is in its life.
    pub state: AddressState,
    /// The assignment's name in the NodeNetworkConfig.
    #[serde(rename = "ID")]
    pub id: String,
    /// The address.
    #[serde(rename = "IPAddress")]
    pub ip_address: IpAddr,
    /// RFC 3339.
    #[serde(
        rename = "LastStateTransition",
        default,
        deserialize_with = "blank::null"
    )]
    pub last_state_transition: String,
    /// The network container it belongs to.
    #[serde(rename = "NCID", default, deserialize_with = "blank::null")]
    pub nc_id: String,
    /// Who holds it, or held it last.
    #[serde(rename = "PodInfo", default)]
    pub pod_info: Option<PodRecord>,
}

/// Answer of [`DEBUG_ADDRESSES`](crate::path::DEBUG_ADDRESSES).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressesResponse {
    /// Those that the filter let through.
    #[serde(
        rename = "IPConfigurationStatus",
        default,
        deserialize_with = "blank::null"
    )]
    pub addresses: Vec<AddressStatus>,
    /// How it went.
    #[serde(rename = "Response")]
    pub response: Response,
}

/// Answer of [`DEBUG_POD_CONTEXT`](crate::path::DEBUG_POD_CONTEXT).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodContextResponse {
    /// Address ids by key.
    #[serde(rename = "PodContext", default, deserialize_with = "blank::null")]
    pub pod_context: BTreeMap<String, Vec<String>>,
    /// How it went.
    #[serde(rename = "Response")]
    pub response: Response,
}

/// What the daemon remembers.
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

/// Answer of [`DEBUG_REST_DATA`](crate::path::DEBUG_REST_DATA).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestDataResponse {
    /// What it remembers.
    #[serde(
        rename = "HTTPRestServiceData",
        default,
        deserialize_with = "blank::null"
    )]
    pub data: RestData,
    /// How it went.
    #[serde(rename = "Response")]
    pub response: Response,
}
