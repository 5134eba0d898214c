//! Controllers: sources fill a queue, workers reconcile keys, an actor starts and stops it all.

mod actor;
mod builder;
mod context;
mod expectation;
mod gate;
mod handle;
mod kube_adapter;
mod reconciler;
mod source;
mod state;
mod statistics;
mod unit;
mod worker;

pub use builder::{ControllerBuilder, WatchOptions};
pub use context::{Context, NotWatched, Reasons};
pub use expectation::TrackedApi;
pub use gate::{Gate, GateState};
pub use handle::{Controller, ControllerHandle, ControllerInfo, StopReport, Trigger};
pub use kube_adapter::KubeReconciler;
pub use reconciler::{Action, ReconcileError, Reconciler, reconcile_with};
pub use source::WatchId;
pub use state::{ControllerState, DegradedReason, PendingReason};
pub(crate) use statistics::ControllerStatistics;
pub use unit::{Failure, Unit};
