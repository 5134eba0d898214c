//! Servers whose address may be taken at the start: they retry to bind, or fail at once.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use thiserror::Error;
use weft_runtime::{Component, ComponentRun, ComponentScope, Phase};

/// Time between two attempts to bind.
const RETRY: Duration = Duration::from_secs(5);

/// The reaction to an address that cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindPolicy {
    /// Retry every five seconds; the rest of the process runs meanwhile.
    Retry,
    /// End the process.
    HardFail,
}

/// An address that cannot be bound.
#[derive(Debug, Error)]
#[error("cannot bind {address} for the {name}")]
pub struct BindError {
    /// Name of the server.
    pub name: &'static str,
    /// Its address.
    pub address: SocketAddr,
    /// The cause.
    pub source: io::Error,
}

type Open = Box<dyn Fn() -> io::Result<Arc<dyn Component>> + Send + Sync>;
type Report = Box<dyn Fn(&BindError) + Send + Sync>;

/// A server that retries to bind its address.
pub struct RetryingServer {
    name: &'static str,
    address: SocketAddr,
    policy: BindPolicy,
    open: Open,
    report: Report,
}

impl RetryingServer {
    /// `open` binds the address; the component that it returns runs in place of this one.
    pub fn new<S: Component>(
        name: &'static str,
        address: SocketAddr,
        policy: BindPolicy,
        open: impl Fn() -> io::Result<S> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            address,
            policy,
            open: Box::new(move || Ok(Arc::new(open()?) as Arc<dyn Component>)),
            report: Box::new(|_| {}),
        }
    }

    /// Calls `report` for every failure to bind, for example to record an event. All are logged
    /// too.
    #[must_use]
    pub fn report(mut self, report: impl Fn(&BindError) + Send + Sync + 'static) -> Self {
        self.report = Box::new(report);
        self
    }
}

impl Component for RetryingServer {
    fn name(&self) -> &str {
        self.name
    }

    fn phase(&self) -> Phase {
        Phase::Server
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun {
        Box::pin(async move {
            loop {
                let source = match (self.open)() {
                    Ok(server) => return server.run(scope).await,
                    Err(error) => error,
                };
                let error = BindError {
                    name: self.name,
                    address: self.address,
                    source,
                };
                (self.report)(&error);
                if self.policy == BindPolicy::HardFail {
                    return Err(error.into());
                }
                tracing::error!(
                    server = self.name,
                    address = %self.address,
                    error = %error.source,
                    "cannot bind, retrying"
                );
                // Readiness does not depend on the port.
                scope.ready();
                tokio::select! {
                    () = scope.stopped() => return Ok(()),
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        })
    }
}
