//! The kind ClusterSubnetState, which reports whether a pool is nearly exhausted.

use serde::{Deserialize, Serialize};
use weft_model::null_is_default;

use super::Meta;

/// A ClusterSubnetState: shows the nodes of a pool whether it is nearly exhausted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSubnetState {
    /// `metadata`; the name is the pool's.
    pub metadata: Meta,
    /// Exhaustion, written by the allocator.
    #[serde(deserialize_with = "null_is_default")]
    pub status: SubnetStatus,
}

/// `status` of a ClusterSubnetState.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubnetStatus {
    /// True if it is nearly exhausted.
    #[serde(deserialize_with = "null_is_default")]
    pub exhausted: bool,
    /// Time of that write, in RFC 3339.
    pub timestamp: String,
}
