//! States of a controller, as logs, metrics and `/debug/controllers` show them.

use std::fmt;

use serde::Serialize;

/// State of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerState {
    /// Not asked to run.
    Stopped,
    /// Asked to run, but something it needs is not there.
    Waiting(PendingReason),
    /// Its sources are filling.
    Syncing,
    /// Reconciling, with every source in step with the server.
    Running,
    /// Reconciling what it can, with a source that is gone or cannot follow the server.
    Degraded(DegradedReason),
    /// Waiting for running reconciles to end.
    Draining,
    /// The last run ended with this error; the next one starts after a back-off, if at all.
    Failed(String),
}

/// Reason of [`ControllerState::Waiting`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingReason {
    /// The kind it requires is not served.
    KindMissing(String),
    /// It is not known yet whether the kind it requires is served.
    KindUnknown(String),
    /// Another process leads.
    NotLeading,
    /// The cluster it belongs to was removed.
    ClusterLeft,
}

/// Reason of [`ControllerState::Degraded`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DegradedReason {
    /// A source's informer was removed.
    SourceClosed {
        /// The source.
        source: String,
        /// The informer's stop reason.
        reason: String,
    },
    /// A source's informer cannot follow the server.
    SourceStale {
        /// The source.
        source: String,
        /// The latest failure.
        error: String,
    },
    /// These sources did not sync in time.
    SyncTimeout(Vec<String>),
    /// A reconcile panicked and the controller does not recover from panics.
    Panicked,
}

impl ControllerState {
    /// Every name that [`ControllerState::name`] may give.
    pub const NAMES: [&'static str; 7] = [
        "stopped", "waiting", "syncing", "running", "degraded", "draining", "failed",
    ];

    /// One word for logs, metrics and debug pages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Waiting(_) => "waiting",
            Self::Syncing => "syncing",
            Self::Running => "running",
            Self::Degraded(_) => "degraded",
            Self::Draining => "draining",
            Self::Failed(_) => "failed",
        }
    }

    /// Returns whether reconciles may be running.
    pub fn is_reconciling(&self) -> bool {
        matches!(self, Self::Running | Self::Degraded(_) | Self::Draining)
    }
}

impl fmt::Display for ControllerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(PendingReason::KindMissing(kind)) => {
                write!(f, "waiting: {kind} is not served")
            }
            Self::Waiting(PendingReason::KindUnknown(kind)) => {
                write!(f, "waiting: discovery of {kind} is not complete")
            }
            Self::Waiting(PendingReason::NotLeading) => f.write_str("waiting: not leading"),
            Self::Waiting(PendingReason::ClusterLeft) => f.write_str("waiting: its cluster left"),
            Self::Degraded(reason) => write!(f, "degraded: {reason}"),
            Self::Failed(error) => write!(f, "failed: {error}"),
            _ => f.write_str(self.name()),
        }
    }
}

impl fmt::Display for DegradedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SourceClosed { source, reason } => write!(f, "{source}: {reason}"),
            Self::SourceStale { source, error } => write!(f, "{source} cannot follow: {error}"),
            Self::SyncTimeout(sources) => write!(f, "not synced in time: {}", sources.join(", ")),
            Self::Panicked => f.write_str("a reconcile panicked"),
        }
    }
}

impl Serialize for ControllerState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
