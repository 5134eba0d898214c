//! Addresses for pods: which pod gets which, how many a node asks for, and which node gets which
//! block.
//!
//! Nothing here acts: no socket, no file, no clock. Events and observed objects come in as values
//! together with the time; records to be kept, answers and planned writes come out.

pub mod allocator;
#[cfg(feature = "simulation")]
pub mod burst;
mod config;
mod demand;
mod monitor;
mod names;
pub mod objects;
pub mod pool;
mod range;
pub mod scaling;

pub use config::{
    ConfigFlaw, ContainerResult, Entry, EntryError, NetworkContainer, NodeConfig, NodeSpec,
    NodeStatus, Phase,
};
pub use demand::{Gathering, PodSketch, pod_demand};
pub use monitor::{Monitor, MonitorSettings, Outlook, ScalingMode, SpecWrite, Verdict, needed};
pub use names::{ContainerId, GrantName, NodeName, PoolName, Precondition, ResourceVersion, Uid};
