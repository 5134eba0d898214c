use serde::{Deserialize, Serialize};

use super::Meta;

/// A ClusterSubnetState: whether a pool is nearly empty, for the nodes that scale by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSubnetState {
    /// `metadata`; the name is the pool's.
    pub metadata: Meta,
    /// `status`.
    pub status: SubnetStatus,
}

/// `status` of a ClusterSubnetState.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubnetStatus {
    /// Whether it is nearly empty.
    pub exhausted: bool,
    /// When that was written, in RFC 3339.
    pub timestamp: String,
}
