//! Weft's additions to the CNS API: the CNI 1.1 commands STATUS and GC.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{IpSubnet, Response, blank};

/// One interface of one container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attachment {
    /// The CNI container id.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface inside the container.
    pub ifname: String,
}

/// Body of [`GC`](crate::path::GC): releases every other key of this network, except keys whose ADD
/// is under way or too recent for the runtime to have listed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GcRequest {
    /// The CNI network; keys of other networks are left alone.
    pub network_name: String,
    /// Attachments that still exist. There is no default: a missing list must not free everything.
    pub valid_attachments: Vec<Attachment>,
}

/// Response to [`GC`](crate::path::GC).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcResponse {
    /// Number of keys that were released.
    #[serde(default)]
    pub released: u64,
    /// Return code and message.
    pub response: Response,
}

/// Readiness to serve an ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Serving {
    /// Served at once, or as soon as addresses that are on their way arrive.
    Ready,
    /// Not served: start-up is not complete, or node and cluster have run out of addresses.
    Unavailable,
    /// Not served, and running pods may lack connectivity.
    Limited,
}

/// Number of addresses of one family in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyCounts {
    /// Held by pods.
    #[serde(default, deserialize_with = "blank::null")]
    pub assigned: u64,
    /// Free to be assigned.
    #[serde(default, deserialize_with = "blank::null")]
    pub available: u64,
    /// Released recently and not reused yet.
    #[serde(default, deserialize_with = "blank::null")]
    pub cooling: u64,
    /// Offered back to the cluster.
    #[serde(default, deserialize_with = "blank::null")]
    pub pending_release: u64,
    /// Not programmed in the network yet.
    #[serde(default, deserialize_with = "blank::null")]
    pub pending_programming: u64,
    /// Held by a pod, but no longer assigned to this node.
    #[serde(default, deserialize_with = "blank::null")]
    pub quarantined: u64,
}

/// Figures of a node's pool. Every one counts addresses of one family: a pod takes one of each, so
/// that figures of different families are never added up. The scarcest family is the one with the
/// fewest free addresses, which limits how many pods can start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolCounts {
    /// Held by pods, of the scarcest family.
    #[serde(default, deserialize_with = "blank::null")]
    pub assigned: u64,
    /// Free to be assigned, of the scarcest family.
    #[serde(default, deserialize_with = "blank::null")]
    pub available: u64,
    /// Released recently and not reused yet, of the scarcest family.
    #[serde(default, deserialize_with = "blank::null")]
    pub cooling: u64,
    /// Offered back to the cluster, of the scarcest family.
    #[serde(default, deserialize_with = "blank::null")]
    pub pending_release: u64,
    /// Not programmed in the network yet, of the scarcest family.
    #[serde(default, deserialize_with = "blank::null")]
    pub pending_programming: u64,
    /// Held by a pod, but no longer assigned to this node, of the scarcest family.
    #[serde(default, deserialize_with = "blank::null")]
    pub quarantined: u64,
    /// Counts of each family that the node serves: `ipv4`, `ipv6`.
    #[serde(default, deserialize_with = "blank::null")]
    pub families: BTreeMap<String, FamilyCounts>,
    /// ADDs that wait for an address of each family.
    #[serde(default, deserialize_with = "blank::null")]
    pub waiting: u64,
    /// Number of addresses of each family that the node's pods need.
    #[serde(default, deserialize_with = "blank::null")]
    pub demand: u64,
    /// Number of addresses of each family that the node requests from the cluster.
    #[serde(default, deserialize_with = "blank::null")]
    pub requested: u64,
}

/// Response to [`STATUS`](crate::path::STATUS).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusResponse {
    /// Readiness to serve an ADD.
    pub serving: Serving,
    /// Human-readable reason for not being ready; empty when ready.
    #[serde(default, deserialize_with = "blank::null")]
    pub reason: String,
    /// True if it is not ready because it has been started and has not seen the cluster yet: what it
    /// lacks is on its way.
    #[serde(default, deserialize_with = "blank::null")]
    pub starting: bool,
    /// Gateways of the subnets that pods get addresses of, with the length of their prefixes; none
    /// while the node's addresses are unknown.
    #[serde(default, deserialize_with = "blank::null")]
    pub gateways: Vec<IpSubnet>,
    /// Name and version of the node's container runtime, such as `containerd://2.3.7`; empty if
    /// unknown.
    #[serde(default, deserialize_with = "blank::null")]
    pub container_runtime: String,
    /// Address counts at this moment.
    #[serde(default, deserialize_with = "blank::null")]
    pub pool: PoolCounts,
    /// Return code and message.
    pub response: Response,
}
