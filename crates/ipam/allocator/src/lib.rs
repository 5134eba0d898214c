//! Gives nodes their addresses.
//!
//! What to do is decided in `weft-ipam`. Here is what lies between: [`controller()`] watches pools,
//! claims, nodes and their NodeNetworkConfigs, and writes what was decided, each object only as it
//! was read and within the time left to lead. [`pod_cidr_controller()`] does the same for
//! `spec.podCIDRs` of nodes.

mod announce;
mod clock;
mod controller;
mod life;
mod metrics;
mod pod_cidrs;
mod pool_status;
mod process;
mod views;
mod writer;

pub use announce::AllocatorEvents;
pub use clock::WallClock;
pub use controller::{AllocatorKey, AllocatorParts, NAME, controller};
pub use metrics::AllocatorMetrics;
pub use pod_cidrs::{POD_CIDR_NAME, PodCidrParts, pod_cidr_controller};
pub use process::AddressControllers;
