//! IP address management for pods: assignment of addresses to pods, the number of addresses a node
//! requests, and allocation of blocks to nodes.
//!
//! No I/O: no socket, no file, no clock. Events and observed objects come in as values together
//! with the time; records to store, replies and planned writes come out.

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
    NodeStatus, UpdatePhase,
};
pub use demand::{Debounce, PodSummary, pod_demand};
pub use monitor::{
    Monitor, MonitorDecision, MonitorInput, MonitorSettings, ScalingMode, SpecWrite, needed,
};
pub use names::{ContainerId, GrantName, NodeName, PoolName, Precondition, Uid};
pub use weft_model::ResourceVersion;
