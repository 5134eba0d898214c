use std::fmt;

use serde::Serialize;

/// What a controller is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerState {
    /// Not asked to run.
    Stopped,
    /// Asked to run, but something it needs is not there.
    Waiting(PendingReason),
    /// Its sources are filling.
    Syncing,
    /// Reconciling.
    Running,
    /// Reconciling what it can, with a source that is gone or cannot follow the server.
    Degraded(DegradedReason),
    /// Finishing what it had begun.
    Draining,
    /// Its last life ended with this error; it begins again after a while, if it may.
    Failed(String),
}

/// Why a controller that should run does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingReason {
    /// The kind it requires is not served.
    KindMissing(String),
    /// It is not known yet whether the kind it requires is served.
    KindUnknown(String),
    /// Another process leads.
    NotLeading,
    /// The cluster it belongs to left.
    ClusterLeft,
}

/// What is wrong with a running controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DegradedReason {
    /// A source's informer was removed.
    SourceClosed {
        /// The source.
        source: String,
        /// Why the informer ended.
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

    /// Whether reconciles may be running.
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
                write!(f, "waiting: it is not known yet whether {kind} is served")
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
