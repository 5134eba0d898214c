//! The daemon as a part of a process.

use std::{
    error::Error,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::Router;
use futures::future::BoxFuture;
use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;
use weft_ipam::pool::Identity;
use weft_listener::{ConnectionPool, Limits, PrivateSocket};
use weft_runtime::{
    Cluster, Component, ComponentScope, HealthCheck, Phase, SelectorError, check_host,
};

use crate::{
    actor::{Actor, ActorParts},
    desk::Desk,
    feeds::Feeds,
    machine::{self, Clock},
    metrics::IpamMetrics,
    replay::{Replayed, replay},
    report,
    rest::Rest,
    settings::IpamSettings,
    store::StoreError,
    writer::Writer,
};

/// What a daemon is made of.
pub struct DaemonParts {
    /// Where the node, its pods and its NodeNetworkConfig are.
    pub cluster: Cluster,
    /// What the operator decided.
    pub settings: IpamSettings,
    /// Which machine this is, and which of its lives.
    pub identity: Identity,
    /// Counts moments.
    pub clock: Clock,
    /// Tells this process from all others, for the marks of its writes.
    pub process: String,
    /// Where to count.
    pub metrics: IpamMetrics,
}

/// Why there is no daemon.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The node's name cannot be selected by.
    #[error("watch this node")]
    Watch(#[from] SelectorError),
    /// Another process keeps the addresses of this node.
    #[error("the state directory is another process's")]
    Taken(#[source] StoreError),
}

/// Keeps the addresses of a node.
pub struct Daemon {
    actor: Actor,
    rest: Rest,
}

impl Daemon {
    /// Reads the store and begins to watch. Nothing is answered before [`Daemon::run`].
    pub async fn open(parts: DaemonParts) -> Result<Self, DaemonError> {
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
        let (desk, messages) = Desk::new();
        let rest = Rest {
            desk,
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
            messages,
        });
        Ok(Self {
            actor: actor.await.map_err(DaemonError::Taken)?,
            rest,
        })
    }

    /// Where it can be asked.
    pub fn desk(&self) -> &Desk {
        &self.rest.desk
    }

    /// The pages of its socket.
    pub fn pages(&self) -> Rest {
        self.rest.clone()
    }

    /// Runs until it is told to stop; what was promised by then is made durable and answered.
    pub async fn run(self, stop: CancellationToken) {
        self.actor.run(stop).await;
    }
}

/// Where plugins come to.
#[derive(Clone, Debug)]
pub struct Doors {
    /// The Unix socket.
    pub socket: PathBuf,
    /// A TCP port of loopback, which any pod of the host's network can reach.
    pub loopback: Option<SocketAddr>,
    /// Where plugins leave releases while no door is open.
    pub queue: PathBuf,
}

/// What an address daemon of a process is told.
#[derive(Clone, Debug)]
pub struct IpamSetup {
    /// What the operator decided.
    pub settings: IpamSettings,
    /// Where plugins come to.
    pub doors: Doors,
    /// Where machine id and boot id are looked up; `/` but for tests.
    pub root: PathBuf,
}

/// A daemon with its sockets, as a part of a process. Every life of it reads the store anew.
pub struct IpamComponent {
    setup: IpamSetup,
    cluster: Cluster,
    metrics: IpamMetrics,
    /// Of the life that is under way.
    desk: watch::Sender<Option<Desk>>,
    obstacle: Obstacle,
}

impl IpamComponent {
    /// Serves a daemon of this set-up.
    pub fn new(setup: IpamSetup, cluster: &Cluster, metrics: IpamMetrics) -> Self {
        Self {
            setup,
            cluster: cluster.clone(),
            metrics,
            desk: watch::Sender::new(None),
            obstacle: Arc::default(),
        }
    }

    /// Whether ADDs can be served, asked every second. A daemon that does not run is none of its
    /// business: whether that should be is another check.
    pub fn readiness(&self, stop: &CancellationToken) -> HealthCheck {
        let obstacle = self.obstacle.clone();
        let desk = self.desk.subscribe();
        tokio::spawn(follow_readiness(desk, obstacle.clone(), stop.clone()));
        HealthCheck::readiness("addresses", move || match *lock(&obstacle) {
            None => Ok(()),
            Some(obstacle) => Err(obstacle.to_owned()),
        })
    }

    async fn open(&self) -> Result<Daemon, AnyError> {
        let daemon = Daemon::open(DaemonParts {
            cluster: self.cluster.clone(),
            settings: self.setup.settings.clone(),
            identity: machine::identity(&self.setup.root)?,
            clock: Clock::Boot,
            process: weft_process::identity(),
            metrics: self.metrics.clone(),
        });
        Ok(daemon.await?)
    }
}

/// Why ADDs cannot be served.
type Obstacle = Arc<Mutex<Option<&'static str>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow_readiness(
    mut desks: watch::Receiver<Option<Desk>>,
    told: Obstacle,
    stop: CancellationToken,
) {
    loop {
        let desk = desks.borrow_and_update().clone();
        let obstacle = match desk {
            None => None,
            Some(desk) => desk
                .look(report::obstacle)
                .await
                .unwrap_or(Some("stopping")),
        };
        *lock(&told) = obstacle;
        tokio::select! {
            () = stop.cancelled() => return,
            changed = desks.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}

type AnyError = Box<dyn Error + Send + Sync>;

impl Component for IpamComponent {
    fn name(&self) -> &'static str {
        "ipam"
    }

    fn phase(&self) -> Phase {
        Phase::Always
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> BoxFuture<'static, Result<(), AnyError>> {
        Box::pin(async move {
            let daemon = self.open().await?;
            *lock(&self.obstacle) = Some("starting");
            self.desk.send_replace(Some(daemon.desk().clone()));
            let served = serve(daemon, &self.setup.doors, scope).await;
            self.desk.send_replace(None);
            served
        })
    }
}

async fn serve(daemon: Daemon, doors: &Doors, scope: ComponentScope) -> Result<(), AnyError> {
    let rest = daemon.pages();
    let stop = CancellationToken::new();
    let mut parts: JoinSet<Result<(), AnyError>> = JoinSet::new();
    let ending = stop.clone();
    parts.spawn(async move {
        Box::pin(daemon.run(ending)).await;
        Ok(())
    });
    let opened = tokio::select! {
        () = scope.stopped() => Ok(()),
        opened = open(rest, doors, &stop, &mut parts) => opened,
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

fn flat(ended: Result<Result<(), AnyError>, JoinError>) -> Result<(), AnyError> {
    ended?
}

/// Opens the doors, after everything was done that was left before them.
async fn open(
    rest: Rest,
    doors: &Doors,
    stop: &CancellationToken,
    parts: &mut JoinSet<Result<(), AnyError>>,
) -> Result<(), AnyError> {
    match replay(&rest, &doors.queue).await {
        Ok(replayed) if replayed == Replayed::default() => {}
        Ok(replayed) => tracing::info!(
            released = replayed.released,
            kept = replayed.kept,
            damaged = replayed.damaged,
            "replayed releases that waited"
        ),
        Err(error) => {
            let error: &dyn Error = &error;
            tracing::error!(error, "releases that waited are not replayed");
        }
    }
    let router = rest.router();
    let pool = ConnectionPool::new("plugins", LIMITS);
    let listener = PrivateSocket::bind(&doors.socket)
        .map_err(|error| format!("bind {}: {error}", doors.socket.display()))?;
    tracing::info!(socket = %doors.socket.display(), "serving plugins");
    serve_plugins(listener, &pool, router.clone(), stop, parts);
    if let Some(address) = doors.loopback {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| format!("bind {address}: {error}"))?;
        tracing::warn!(%address, "serving plugins on loopback, where any pod of the host's network can ask");
        serve_plugins(listener, &pool, check_host(router, address), stop, parts);
    }
    Ok(())
}

/// A plugin asks once and waits for its address, so there are as many as pods that start at once.
const LIMITS: Limits = Limits::PAGES.with_connections(512);

fn serve_plugins(
    listener: impl weft_listener::Listener + Sync,
    pool: &ConnectionPool,
    router: Router,
    stop: &CancellationToken,
    parts: &mut JoinSet<Result<(), AnyError>>,
) {
    let (pool, stopped) = (pool.clone(), stop.clone().cancelled_owned());
    parts.spawn(async move {
        weft_listener::serve(listener, &pool, router, stopped).await;
        Ok(())
    });
}
