//! The objects of `ipam.weft.dev` on the wire, and their conversion to validated types.
//!
//! Types here hold what the JSON holds. Conversions return the types that decisions are made with,
//! or the errors found. The schemas are in `deploy/crds`.

mod ip_pool;
mod meta;
mod network_objects;
mod node_network_config;
mod pools;
mod shard;
mod subnet_state;

pub use ip_pool::{
    ExhaustionPercent, IpPool, IpPoolSpec, IpPoolStatus, PoolCondition, PoolFigures, PoolFlaw,
};
pub use meta::{Meta, OwnerReference};
pub use network_objects::NetworkObjects;
pub use node_network_config::{
    ContainerRecord, EntryRecord, NodeNetworkConfig, NodeNetworkConfigSpec, NodeNetworkConfigStatus,
};
pub use pools::{Pools, read_cidr_shards, read_pools};
pub use shard::{BlockRecord, ClaimRecord, IpPoolShard, ShardFlaw, ShardSpec};
pub use subnet_state::{ClusterSubnetState, SubnetStatus};

/// API group of Weft's objects.
pub const GROUP: &str = "ipam.weft.dev";
/// Version of [`GROUP`].
pub const VERSION: &str = "v1alpha1";
/// Azure's API group of the NodeNetworkConfig.
pub const AZURE_GROUP: &str = "acn.azure.com";
/// Version of [`AZURE_GROUP`].
pub const AZURE_VERSION: &str = "v1alpha";
/// Finalizer that keeps a NodeNetworkConfig until its claims are settled, and an IPPool until none
/// of its addresses is claimed.
pub const FINALIZER: &str = "ipam.weft.dev/ipam";
/// The pool that claims of pod CIDRs belong to; an IPPool must not have this name.
pub const POD_CIDR_POOL: &str = "node-pod-cidrs";
