//! Routes as a controller of a process: started, stopped, elected.

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use kube::Client;
use tokio::sync::{Mutex, Notify};
use weft_providers::{Capabilities, SharedProvider};
use weft_runtime::{
    Action, Bell, Cluster, Context, Controller, ControllerState, Mapper, Metrics, ReconcileError,
    Reconciler, WatchSpec,
};

use crate::{
    Announce, RoutesMetrics, RoutesSettings, StatusBoard, life::Life, record::RecordStore,
    settings::Mode, views::RouteNode,
};

/// The only key there is: all routes of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RoutesKey;

impl fmt::Debug for RoutesKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("routes")
    }
}

/// What a route controller is made of.
pub struct RoutesParts {
    /// Where the nodes are.
    pub cluster: Cluster,
    /// Where the routes are.
    pub provider: SharedProvider,
    /// What the operator decided.
    pub settings: RoutesSettings,
    /// Where to remember which routes are ours; `None` where routes carry marks.
    pub record_namespace: Option<String>,
    /// The node on which this runs, where its own table is programmed.
    pub own_node: Option<String>,
    /// Where to count.
    pub metrics: RoutesMetrics,
    /// Where to say what people should know.
    pub announce: Announce,
    /// Where to show how routes stand.
    pub board: StatusBoard,
}

pub(super) struct Parts {
    pub(super) cluster: Cluster,
    pub(super) client: Client,
    pub(super) provider: SharedProvider,
    pub(super) capabilities: Capabilities,
    pub(super) settings: RoutesSettings,
    pub(super) record: Option<RecordStore>,
    pub(super) own_node: Option<String>,
    pub(super) metrics: RoutesMetrics,
    pub(super) announce: Announce,
    pub(super) board: StatusBoard,
    pub(super) signal: Arc<Notify>,
    pub(super) table_changed: AtomicBool,
    /// Set once the controller is there.
    pub(super) bell: OnceLock<Bell<RoutesKey>>,
}

impl Parts {
    /// Something outside changed: whoever works hears of it at once, and whoever does not, by the
    /// queue.
    pub(super) fn wake(&self) {
        self.signal.notify_one();
        if let Some(bell) = self.bell.get() {
            bell.ring(RoutesKey);
        }
    }
}

/// Upstream's name of the controller; its queue has another.
pub const NAME: &str = "route";

/// Builds the controller, stopped. Only the leader runs it, unless each node has its own.
pub fn controller(parts: RoutesParts, metrics: Option<&Metrics>) -> Controller<RoutesKey> {
    let capabilities = parts.provider.capabilities();
    let per_node = parts.own_node.is_some() || parts.settings.observe;
    parts.board.change(|status| {
        parts.provider.name().clone_into(&mut status.provider);
        let mode = match parts.settings.mode {
            Mode::Watch => "watch",
            Mode::Poll(_) => "poll",
        };
        mode.clone_into(&mut status.mode);
        status.observing = parts.settings.observe;
    });
    let client = parts.cluster.client().clone();
    // Whoever only observes reads the record and never writes it.
    let record = parts.record_namespace.as_deref().map(|namespace| {
        let cluster = &parts.settings.cluster_name;
        RecordStore::new(&client, namespace, parts.provider.name(), cluster)
    });
    let signal = Arc::new(Notify::new());
    let noticed = signal.clone();
    let mapper = Mapper::new(move |_: &RouteNode| {
        // Whoever works at the moment hears of it at once, and whoever does not, by the queue.
        noticed.notify_one();
        vec![RoutesKey]
    });
    let mut builder = Controller::builder(NAME, &parts.cluster)
        .queue_name("Routes")
        .watches::<RouteNode>(WatchSpec::all(), mapper);
    if !per_node {
        builder = builder.leader_only();
    }
    if let Some(metrics) = metrics {
        builder = builder.metrics(metrics);
    }
    let shared = Arc::new(Parts {
        cluster: parts.cluster,
        client,
        provider: parts.provider,
        capabilities,
        settings: parts.settings,
        record,
        own_node: parts.own_node,
        metrics: parts.metrics,
        announce: parts.announce,
        board: parts.board,
        signal,
        table_changed: AtomicBool::new(false),
        bell: OnceLock::new(),
    });
    let controller = builder.build(RouteReconciler {
        parts: shared.clone(),
        life: Mutex::new(None),
    });
    let _first = shared.bell.set(controller.bell());
    tokio::spawn(follow_state(shared.clone(), controller.clone()));
    tokio::spawn(follow_table(shared, controller.clone()));
    controller
}

/// A cluster without nodes has no events, and may still have routes. And whoever looks wants to
/// know whether anybody works.
async fn follow_state(parts: Arc<Parts>, controller: Controller<RoutesKey>) {
    let mut state = controller.state();
    let bell = controller.bell();
    // The task must not keep the controller alive.
    drop(controller);
    while state.changed().await.is_ok() {
        let now = state.borrow_and_update().clone();
        parts.board.change(|status| status.state = now.to_string());
        if now == ControllerState::Running {
            bell.ring(RoutesKey);
        }
    }
}

async fn follow_table(parts: Arc<Parts>, controller: Controller<RoutesKey>) {
    let mut state = controller.state();
    drop(controller);
    loop {
        tokio::select! {
            () = parts.provider.changed() => {
                parts.table_changed.store(true, std::sync::atomic::Ordering::Relaxed);
                parts.wake();
            }
            ended = state.changed() => if ended.is_err() { return },
        }
    }
}

struct RouteReconciler {
    parts: Arc<Parts>,
    life: Mutex<Option<Life>>,
}

impl Reconciler<RoutesKey> for RouteReconciler {
    async fn reconcile(&self, context: Context<RoutesKey>) -> Result<Action, ReconcileError> {
        let mut kept = self.life.lock().await;
        // Out of its place while it works: one that panics or is cut short does not come back, and
        // the next begins with a look at the table.
        let life = kept.take().filter(|life| !life.is_over());
        let mut life = match life {
            Some(life) => life,
            None => Life::begin(self.parts.clone(), context.cancelled().clone()).await?,
        };
        let done = life.work(&context).await;
        *kept = Some(life);
        done
    }
}
