//! What Weft's plugin asks beyond the original: whether an ADD can be served, and the clean-up of
//! CNI 1.1.

use serde::{Deserialize, Serialize};

use crate::{Response, blank};

/// One interface of one container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attachment {
    /// The CNI container id.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface inside of it.
    pub ifname: String,
}

/// Body of [`GC`](crate::path::GC): whatever else of this network is held may go, but for keys
/// whose ADD is under way or younger than the runtime's patience.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GcRequest {
    /// The CNI network; others are left alone.
    pub network_name: String,
    /// What still lives. It has no default: a list that is missing must not free everything.
    pub valid_attachments: Vec<Attachment>,
}

/// Answer of [`GC`](crate::path::GC).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcResponse {
    /// How many keys were freed.
    #[serde(default)]
    pub released: u64,
    /// How it went.
    pub response: Response,
}

/// Whether an ADD can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Serving {
    /// Yes, at once or as soon as addresses that are on their way arrive.
    Ready,
    /// No: start-up is not complete, or node and cluster have run out of addresses.
    Unavailable,
    /// No, and pods that run already may lack connectivity.
    Limited,
}

/// How many addresses are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolCounts {
    /// Pods have them.
    #[serde(default, deserialize_with = "blank::null")]
    pub assigned: u64,
    /// Free to be assigned.
    #[serde(default, deserialize_with = "blank::null")]
    pub available: u64,
    /// Released a moment ago.
    #[serde(default, deserialize_with = "blank::null")]
    pub cooling: u64,
    /// Offered back to the cluster.
    #[serde(default, deserialize_with = "blank::null")]
    pub pending_release: u64,
    /// Not yet usable in the network.
    #[serde(default, deserialize_with = "blank::null")]
    pub pending_programming: u64,
    /// Held by a pod, but no longer this node's.
    #[serde(default, deserialize_with = "blank::null")]
    pub quarantined: u64,
    /// ADDs that wait for an address.
    #[serde(default, deserialize_with = "blank::null")]
    pub waiting: u64,
    /// How many addresses the node's pods need.
    #[serde(default, deserialize_with = "blank::null")]
    pub demand: u64,
    /// How many addresses the node asks the cluster for.
    #[serde(default, deserialize_with = "blank::null")]
    pub requested: u64,
}

/// Answer of [`STATUS`](crate::path::STATUS).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusResponse {
    /// Whether an ADD can be served.
    pub serving: Serving,
    /// Why not, for people; empty when ready.
    #[serde(default, deserialize_with = "blank::null")]
    pub reason: String,
    /// The pool at this moment.
    #[serde(default, deserialize_with = "blank::null")]
    pub pool: PoolCounts,
    /// How it went.
    pub response: Response,
}
