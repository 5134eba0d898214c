//! Controllers, units and machines, and the lifecycle that starts and stops them.

mod builder;
mod context;
mod driver;
mod expectation;
mod gate;
mod handle;
mod inbox;
mod kube_adapter;
mod lifecycle;
mod machine;
mod reconciler;
mod scope;
mod source;
mod state;
mod statistics;
mod unit;
mod worker;

pub use builder::{ControllerBuilder, WatchOptions};
pub use context::{Context, NotWatched, Reasons};
pub use driver::{Effects, MachineScope};
pub use expectation::TrackedApi;
pub use gate::{Gate, GateState};
pub use handle::{Controller, ControllerHandle, ControllerInfo, StopReport};
pub use kube_adapter::KubeReconciler;
pub use lifecycle::Failure;
pub use machine::{Machine, MachineBuilder};
pub use reconciler::{Action, ReconcileError, Reconciler, reconcile_with};
pub use source::WatchId;
pub use state::{ControllerState, DegradedReason, PendingReason};
pub(crate) use statistics::ControllerStatistics;
pub use unit::Unit;
