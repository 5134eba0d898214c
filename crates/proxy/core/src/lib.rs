//! Derives what this node programs for each Service from Services, EndpointSlices and the Node,
//! without a kernel, a clock or a network.
//!
//! A [`Model`] takes objects in and gives [`Service`]s out, one value for each Service and family.
//! Two equal values need equal rules, so comparing them decides whether anything has to be written.
//! A [`Backend`] programs them into a kernel; nothing here knows how.

mod address;
pub mod backend;
pub mod config;
pub mod conntrack;
mod desired;
mod endpoint;
mod frontend;
mod model;
pub mod objects;
pub mod quarantine;
pub mod schedule;
mod selection;
mod service;
mod settings;
mod slices;

pub use backend::{
    AuditReport, Backend, ChainCount, Deviation, ElementCount, KernelRefusal, ReadBudget, Repair,
    RepairedPart, RuleCount, RuleOwner, Scope, SyncError, SyncReport,
};
pub use desired::Desired;
pub use endpoint::{Endpoint, EndpointHints, Slice, SlicePort};
pub use frontend::Frontend;
pub use model::{Effect, Model, Problem};
pub use quarantine::Quarantine;
pub use service::{PortId, Service, ServicePort};
pub use settings::{
    LocalDetector, LoopbackNodePorts, NodeFacts, NodePortAddresses, NodePortTail, Settings,
    service_networks,
};
