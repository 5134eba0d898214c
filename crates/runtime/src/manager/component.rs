use std::{error::Error, sync::Arc};

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

/// When a component starts; it stops in the reverse order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Servers that tell how the process is.
    Server,
    /// Servers that others need before anything can be listed.
    Webhook,
    /// What fills caches.
    Cache,
    /// What runs in every process.
    Always,
    /// What runs only where this process leads.
    Leader,
}

impl Phase {
    /// In the order of starting.
    pub const ALL: [Self; 5] = [
        Self::Server,
        Self::Webhook,
        Self::Cache,
        Self::Always,
        Self::Leader,
    ];
}

/// Something that a manager starts and stops.
pub trait Component: Send + Sync + 'static {
    /// Its name, for logs and errors.
    fn name(&self) -> &str;

    /// When it starts.
    fn phase(&self) -> Phase;

    /// Runs until [`ComponentScope::stopped`]. An error ends the whole process in order. A
    /// component of [`Phase::Leader`] is run anew for every term.
    fn run(
        self: Arc<Self>,
        scope: ComponentScope,
    ) -> BoxFuture<'static, Result<(), Box<dyn Error + Send + Sync>>>;
}

/// A component's view of the manager.
#[derive(Clone, Debug)]
pub struct ComponentScope {
    pub(super) stop: CancellationToken,
    pub(super) ready: CancellationToken,
}

impl ComponentScope {
    pub(crate) fn new() -> Self {
        Self {
            stop: CancellationToken::new(),
            ready: CancellationToken::new(),
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Resolves when the component has said that it is ready.
    pub(crate) async fn until_ready(&self) {
        self.ready.cancelled().await;
    }

    /// Says that whatever comes later may start.
    pub fn ready(&self) {
        self.ready.cancel();
    }

    /// Resolves when the component is to end.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }
}
