//! Components of a manager and the phases in which they start.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::Failure;

/// Start order of components; they stop in reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Servers of health, metrics and diagnostics.
    Server,
    /// Servers that must answer before anything can be listed.
    Webhook,
    /// Fillers of caches.
    Cache,
    /// Work of every process.
    Always,
    /// Work of the leader only.
    Leader,
}

impl Phase {
    /// All phases in start order.
    pub const ALL: [Self; 5] = [
        Self::Server,
        Self::Webhook,
        Self::Cache,
        Self::Always,
        Self::Leader,
    ];
}

/// One run of a component.
pub type ComponentRun = BoxFuture<'static, Result<(), Failure>>;

/// A part of a process that a manager starts and stops.
pub trait Component: Send + Sync + 'static {
    /// Name in logs and errors.
    fn name(&self) -> &str;

    /// Phase in which it starts.
    fn phase(&self) -> Phase;

    /// Runs until [`ComponentScope::stopped`]. An error ends the whole process in order. A
    /// component of [`Phase::Leader`] is run once per leadership term.
    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun;
}

/// A component's side of its lifecycle: it reports readiness and receives the stop.
#[derive(Clone, Debug)]
pub struct ComponentScope {
    pub(crate) stop: CancellationToken,
    pub(crate) ready: CancellationToken,
}

impl ComponentScope {
    pub(crate) fn new() -> Self {
        Self {
            stop: CancellationToken::new(),
            ready: CancellationToken::new(),
        }
    }

    /// Reports readiness: later phases may start.
    pub fn ready(&self) {
        self.ready.cancel();
    }

    /// Resolves when the component must end.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }
}
