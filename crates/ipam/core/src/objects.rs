//! The objects of `ipam.weft.dev` as they are on the wire, and what they mean.
//!
//! Types here hold what the JSON holds; conversions give the types that decisions are made with, or
//! say what is wrong. The schemas are in `deploy/crds`.

mod ip_pool;
mod meta;
mod network_objects;
mod node_network_config;
mod pools;
mod shard;
mod subnet_state;

pub use ip_pool::{ExhaustionPercent, IpPool, IpPoolSpec, IpPoolStatus, PoolCondition, PoolFlaw};
pub use meta::{Meta, OwnerReference};
pub use network_objects::NetworkObjects;
pub use node_network_config::{
    ContainerRecord, EntryRecord, NodeNetworkConfig, NodeNetworkConfigSpec, NodeNetworkConfigStatus,
};
pub use pools::{Pools, read_cidr_shards, read_pools};
pub use shard::{BlockRecord, ClaimRecord, IpPoolShard, ShardFlaw, ShardSpec};
pub use subnet_state::{ClusterSubnetState, SubnetStatus};

/// Our group.
pub const GROUP: &str = "ipam.weft.dev";
/// Its version.
pub const VERSION: &str = "v1alpha1";
/// Azure's group of the NodeNetworkConfig.
pub const AZURE_GROUP: &str = "acn.azure.com";
/// Its version there.
pub const AZURE_VERSION: &str = "v1alpha";
/// What keeps a NodeNetworkConfig until nothing of it can get lost, and an IPPool until nothing is
/// claimed of it.
pub const FINALIZER: &str = "ipam.weft.dev/ipam";
/// The pool that claims of pod CIDRs belong to; no IPPool may be called so.
pub const POD_CIDR_POOL: &str = "node-pod-cidrs";
