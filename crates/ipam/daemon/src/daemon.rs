//! The daemon as a component of a process, with its listeners and its readiness check.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use axum::Router;
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;
use weft_ipam::pool::Identity;
use weft_listener::{ConnectionPool, Limits, PrivateSocket};
use weft_runtime::{
    Cluster, Component, ComponentRun, ComponentScope, EventRecorder, Failure, HealthCheck, Phase,
    SelectorError, check_host,
};

use crate::{
    actor::{Actor, ActorParts},
    feeds::Feeds,
    handle::DaemonHandle,
    machine::{self, Clock},
    metrics::IpamMetrics,
    replay::{Replayed, replay},
    report,
    rest::RestApi,
    settings::IpamSettings,
    store::StoreError,
    writer::Writer,
};

/// Dependencies of a daemon.
pub struct DaemonParts {
    /// Access to the node, its pods and its NodeNetworkConfig.
    pub cluster: Cluster,
    /// The operator's settings.
    pub settings: IpamSettings,
    /// Machine id and boot id.
    pub identity: Identity,
    /// Clock for all times in records.
    pub clock: Clock,
    /// Identity of this process among all others, for the annotation of its writes.
    pub process: String,
    /// Metrics to update.
    pub metrics: IpamMetrics,
    /// Recorder of events about the Node; none reports to the log only.
    pub events: Option<EventRecorder>,
}

/// The daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonStartError {
    /// The node's name cannot be used in a field selector.
    #[error("cannot watch this node")]
    Watch(#[from] SelectorError),
    /// Another process owns the addresses of this node.
    #[error("cannot open the address store")]
    Locked(#[source] StoreError),
}

/// The address daemon of a node.
pub struct Daemon {
    actor: Actor,
    rest: RestApi,
}

impl Daemon {
    /// Reads the store and starts the watches. Nothing is answered before [`Daemon::run`].
    pub async fn open(parts: DaemonParts) -> Result<Self, DaemonStartError> {
        let DaemonParts {
            cluster,
            settings,
            metrics,
            ..
        } = parts;
        let feeds = Feeds::open(cluster.cache(), &settings.node, &settings.objects)?;
        let client = cluster.client().clone();
        let limit = settings.write_limit;
        let writer = Writer::new(client, &settings.objects, &parts.process, limit);
        let (handle, messages) = DaemonHandle::new();
        let rest = RestApi {
            handle,
            metrics: metrics.clone(),
            wait: settings.pool.wait,
        };
        let actor = Actor::open(ActorParts {
            settings,
            identity: parts.identity,
            clock: parts.clock,
            feeds,
            writer,
            metrics,
            events: parts.events,
            messages,
        });
        Ok(Self {
            actor: actor.await.map_err(DaemonStartError::Locked)?,
            rest,
        })
    }

    /// Handle for requests to the daemon.
    pub fn handle(&self) -> &DaemonHandle {
        &self.rest.handle
    }

    /// The HTTP API of its socket.
    pub fn pages(&self) -> RestApi {
        self.rest.clone()
    }

    /// Runs until cancelled; decisions made by then are made durable and answered.
    pub async fn run(self, stop: CancellationToken) {
        self.actor.run(stop).await;
    }
}

/// Addresses that plugins connect to.
#[derive(Clone, Debug)]
pub struct Listeners {
    /// Path of the Unix socket.
    pub socket: PathBuf,
    /// A TCP port on loopback, which every hostNetwork pod can reach.
    pub loopback: Option<SocketAddr>,
    /// Directory in which plugins queue releases while the daemon does not listen.
    pub queue: PathBuf,
}

/// Configuration of an address daemon.
#[derive(Clone, Debug)]
pub struct IpamSetup {
    /// The operator's settings.
    pub settings: IpamSettings,
    /// Addresses that plugins connect to.
    pub listeners: Listeners,
    /// Root directory of machine id and boot id; `/` except in tests.
    pub root: PathBuf,
}

/// A daemon with its listeners, as a component of a process. Every run of it reads the store again.
pub struct IpamComponent {
    setup: IpamSetup,
    cluster: Cluster,
    metrics: IpamMetrics,
    /// Handle of the current run.
    handle: watch::Sender<Option<DaemonHandle>>,
    obstacle: Obstacle,
}

impl IpamComponent {
    /// A component with this configuration.
    pub fn new(setup: IpamSetup, cluster: &Cluster, metrics: IpamMetrics) -> Self {
        Self {
            setup,
            cluster: cluster.clone(),
            metrics,
            handle: watch::Sender::new(None),
            obstacle: Arc::default(),
        }
    }

    /// Readiness check: whether ADDs can be served, updated every second. It passes while the
    /// daemon does not run: another check reports that.
    pub fn readiness(&self, stop: &CancellationToken) -> HealthCheck {
        let obstacle = self.obstacle.clone();
        let handle = self.handle.subscribe();
        tokio::spawn(follow_readiness(handle, obstacle.clone(), stop.clone()));
        HealthCheck::readiness("addresses", move || match *obstacle.lock() {
            None => Ok(()),
            Some(obstacle) => Err(obstacle.into()),
        })
    }

    async fn open(&self) -> Result<Daemon, Failure> {
        let daemon = Daemon::open(DaemonParts {
            cluster: self.cluster.clone(),
            settings: self.setup.settings.clone(),
            identity: machine::identity(&self.setup.root)?,
            clock: Clock::Boot,
            process: weft_process::identity(),
            metrics: self.metrics.clone(),
            events: Some(EventRecorder::new(
                self.cluster.client().clone(),
                "weft_ipam",
                &weft_process::identity(),
            )),
        });
        Ok(daemon.await?)
    }
}

/// The reason why ADDs cannot be served.
type Obstacle = Arc<Mutex<Option<&'static str>>>;

async fn follow_readiness(
    mut handles: watch::Receiver<Option<DaemonHandle>>,
    shared: Obstacle,
    stop: CancellationToken,
) {
    loop {
        let handle = handles.borrow_and_update().clone();
        let obstacle = match handle {
            None => None,
            Some(handle) => handle
                .read(report::obstacle)
                .await
                .unwrap_or(Some("stopping")),
        };
        *shared.lock() = obstacle;
        tokio::select! {
            () = stop.cancelled() => return,
            changed = handles.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}

impl Component for IpamComponent {
    fn name(&self) -> &'static str {
        "ipam"
    }

    fn phase(&self) -> Phase {
        Phase::Always
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun {
        Box::pin(async move {
            let daemon = self.open().await?;
            *self.obstacle.lock() = Some("starting");
            self.handle.send_replace(Some(daemon.handle().clone()));
            let served = serve(daemon, &self.setup.listeners, scope).await;
            self.handle.send_replace(None);
            served
        })
    }
}

async fn serve(
    daemon: Daemon,
    listeners: &Listeners,
    scope: ComponentScope,
) -> Result<(), Failure> {
    let rest = daemon.pages();
    let stop = CancellationToken::new();
    let mut parts: JoinSet<Result<(), Failure>> = JoinSet::new();
    let ending = stop.clone();
    parts.spawn(async move {
        Box::pin(daemon.run(ending)).await;
        Ok(())
    });
    let opened = tokio::select! {
        () = scope.stopped() => Ok(()),
        opened = open(rest, listeners, &stop, &mut parts) => opened,
    };
    scope.ready();
    let mut outcome = Ok(());
    if opened.is_ok() {
        tokio::select! {
            () = scope.stopped() => {}
            Some(ended) = parts.join_next() => outcome = flat(ended),
        }
    }
    stop.cancel();
    while let Some(ended) = parts.join_next().await {
        outcome = outcome.and(flat(ended));
    }
    opened.and(outcome)
}

fn flat(ended: Result<Result<(), Failure>, JoinError>) -> Result<(), Failure> {
    ended?
}

/// Replays queued releases, then opens the listeners.
async fn open(
    rest: RestApi,
    listeners: &Listeners,
    stop: &CancellationToken,
    parts: &mut JoinSet<Result<(), Failure>>,
) -> Result<(), Failure> {
    match replay(&rest, &listeners.queue).await {
        Ok(replayed) if replayed == Replayed::default() => {}
        Ok(replayed) => tracing::info!(
            released = replayed.released,
            kept = replayed.kept,
            damaged = replayed.damaged,
            "queued releases replayed"
        ),
        Err(error) => {
            let error: &dyn std::error::Error = &error;
            tracing::error!(error, "cannot replay queued releases");
        }
    }
    let router = rest.router();
    let pool = ConnectionPool::new("plugins", LIMITS);
    let listener = PrivateSocket::bind(&listeners.socket)
        .map_err(|error| format!("cannot listen on {}: {error}", listeners.socket.display()))?;
    tracing::info!(socket = %listeners.socket.display(), "listening for CNI plugins");
    serve_plugins(listener, &pool, router.clone(), stop, parts);
    if let Some(address) = listeners.loopback {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| format!("cannot listen on {address}: {error}"))?;
        tracing::warn!(%address, "listening for CNI plugins on loopback, reachable from every hostNetwork pod");
        serve_plugins(listener, &pool, check_host(router, address), stop, parts);
    }
    Ok(())
}

/// A plugin sends one request and waits for its address, so there are as many connections as pods
/// that start at once.
const LIMITS: Limits = Limits::PAGES.with_connections(512);

fn serve_plugins(
    listener: impl weft_listener::Listener + Sync,
    pool: &ConnectionPool,
    router: Router,
    stop: &CancellationToken,
    parts: &mut JoinSet<Result<(), Failure>>,
) {
    let (pool, stopped) = (pool.clone(), stop.clone().cancelled_owned());
    parts.spawn(async move {
        weft_listener::serve(listener, &pool, router, stopped).await;
        Ok(())
    });
}
