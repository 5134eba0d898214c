//! HTTP server of the page.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use parking_lot::Mutex;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weft_listener::{ConnectionPool, Limits};
use weft_runtime::{Component, ComponentRun, ComponentScope, Phase};

use crate::{Pages, Reach};

/// Browsers open several connections each, and keep one for events.
const LIMITS: Limits = Limits::PAGES.with_connections(128);

/// Failure to serve the page.
#[derive(Debug, Error)]
pub enum BindError {
    /// The address is not loopback, and remote access is not allowed.
    #[error("{0} is not a loopback address: the page has no TLS and no authentication")]
    NotLoopback(IpAddr),
    /// Binding failed.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
}

/// Serves [`Pages`] at an address.
pub struct DashboardServer {
    pages: Pages,
    address: SocketAddr,
    reach: Reach,
    listener: Mutex<Option<std::net::TcpListener>>,
}

impl DashboardServer {
    /// Binds at once, so that a port in use is a startup error.
    pub fn bind(pages: Pages, address: SocketAddr, reach: Reach) -> Result<Self, BindError> {
        if reach == Reach::Loopback && !address.ip().is_loopback() {
            return Err(BindError::NotLoopback(address.ip()));
        }
        let failed = |error| BindError::Listen(address, error);
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            pages: pages.seen(reach),
            address: listener.local_addr().map_err(failed)?,
            reach,
            listener: Mutex::new(Some(listener)),
        })
    }

    /// Serves on an existing listener, which must be on loopback.
    pub fn on(pages: Pages, listener: std::net::TcpListener) -> io::Result<Self> {
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() {
            return Err(io::Error::other(BindError::NotLoopback(address.ip())));
        }
        listener.set_nonblocking(true)?;
        Ok(Self {
            pages: pages.seen(Reach::Loopback),
            address,
            reach: Reach::Loopback,
            listener: Mutex::new(Some(listener)),
        })
    }

    /// Bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL of the page. Contains the token if there are actions: only for users who may act.
    pub fn url(&self) -> String {
        let token = self.pages.token();
        let fragment = token.map_or(String::new(), |token| format!("#token={}", token.reveal()));
        format!("http://{}/{fragment}", self.address)
    }

    /// Serves until `stop`.
    pub async fn serve(&self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let bound = self.listener.lock().take();
        let listener = match bound {
            Some(listener) => TcpListener::from_std(listener)?,
            None => TcpListener::bind(self.address).await?,
        };
        let streams = CancellationToken::new();
        let pages = self.pages.clone().until(streams.clone());
        let router = pages.router(self.address.port(), self.reach);
        let stopped = async move {
            stop.await;
            // Streams never end by themselves, and the server waits for its connections.
            streams.cancel();
        };
        let pool = ConnectionPool::new("dashboard", LIMITS);
        weft_listener::serve(listener, &pool, router, stopped).await;
        Ok(())
    }
}

impl Component for DashboardServer {
    fn name(&self) -> &'static str {
        "dashboard"
    }

    fn phase(&self) -> Phase {
        Phase::Server
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun {
        Box::pin(async move {
            scope.ready();
            self.serve(async move { scope.stopped().await }).await?;
            Ok(())
        })
    }
}
