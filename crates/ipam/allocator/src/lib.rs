//! Allocates address blocks and pod CIDRs to nodes.
//!
//! Decisions are made in `weft-ipam`. [`controller()`] watches pools, claims, nodes and their
//! NodeNetworkConfigs, and carries out the planned writes: each object only if unchanged since it
//! was read, and only within the leadership term. [`pod_cidr_controller()`] does the same for
//! `spec.podCIDRs` of nodes.

mod announce;
mod clock;
mod controller;
mod machine;
mod metrics;
mod objects;
mod pod_cidrs;
mod pool_status;
mod process;
mod retries;
mod views;
mod writer;

pub use announce::AllocatorEvents;
pub use clock::WallClock;
pub use controller::{AllocatorParts, NAME, controller};
pub use metrics::AllocatorMetrics;
pub use pod_cidrs::{POD_CIDR_NAME, PodCidrParts, pod_cidr_controller};
pub use process::AddressControllers;
