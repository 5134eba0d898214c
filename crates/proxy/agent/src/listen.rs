//! Addresses that may be taken when we come: tried again, or given up at once.

use std::{error::Error, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use thiserror::Error;
use weft_runtime::{Component, ComponentScope, Phase};

/// How long after a failure the address is tried again.
const RETRY: Duration = Duration::from_secs(5);

pub(super) type Running =
    Pin<Box<dyn Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send>>;

/// What to do when an address cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindPolicy {
    /// Try again every five seconds; the rest of the process goes on meanwhile.
    Retry,
    /// End the process.
    HardFail,
}

/// An address that cannot be bound.
#[derive(Debug, Error)]
#[error("bind {address} for the {name}")]
pub struct BindError {
    /// The server.
    pub name: &'static str,
    /// Its address.
    pub address: SocketAddr,
    /// Why.
    pub source: io::Error,
}

type Open = Box<dyn Fn() -> io::Result<Arc<dyn Component>> + Send + Sync>;
type Report = Box<dyn Fn(&BindError) + Send + Sync>;

/// A server that is opened again and again until it is there.
pub struct PatientServer {
    name: &'static str,
    address: SocketAddr,
    policy: BindPolicy,
    open: Open,
    report: Report,
}

impl PatientServer {
    /// `open` binds the address; what it returns is run in this server's place.
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

    /// Tells of every failure to bind, besides the log: for an event.
    #[must_use]
    pub fn report(mut self, report: impl Fn(&BindError) + Send + Sync + 'static) -> Self {
        self.report = Box::new(report);
        self
    }
}

impl Component for PatientServer {
    fn name(&self) -> &str {
        self.name
    }

    fn phase(&self) -> Phase {
        Phase::Server
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> Running {
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
                    "cannot bind; trying again"
                );
                // Nobody has to wait for a port.
                scope.ready();
                tokio::select! {
                    () = scope.stopped() => return Ok(()),
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        })
    }
}
