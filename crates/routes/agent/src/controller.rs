//! The route controller as a controller of `weft-runtime`: start, stop and leader election.

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use kube::Client;
use tokio::sync::{Mutex, Notify};
use weft_providers::{Capabilities, SharedProvider};
use weft_runtime::{
    Action, Cluster, Context, Controller, ControllerState, Mapper, Metrics, ReconcileError,
    Reconciler, Trigger, WatchSpec,
};

use crate::{
    RouteEvents, RoutesMetrics, RoutesSettings, StatusBoard, record::RecordStore, run::Run,
    settings::Mode, views::RouteNode,
};

/// The only key of the work queue: all routes of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RoutesKey;

impl fmt::Debug for RoutesKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("routes")
    }
}

/// Everything that a route controller needs.
pub struct RoutesParts {
    /// The cluster whose nodes are routed to.
    pub cluster: Cluster,
    /// The route table.
    pub provider: SharedProvider,
    /// The operator's settings.
    pub settings: RoutesSettings,
    /// Namespace of the ConfigMap that records our routes; `None` where routes carry marks.
    pub record_namespace: Option<String>,
    /// Name of this node in node mode, where its own kernel table is managed.
    pub own_node: Option<String>,
    /// Metrics to update.
    pub metrics: RoutesMetrics,
    /// Publisher of events.
    pub events: RouteEvents,
    /// Status to update, for `/debug/routes`.
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
    pub(super) events: RouteEvents,
    pub(super) board: StatusBoard,
    pub(super) signal: Arc<Notify>,
    pub(super) table_changed: AtomicBool,
    /// Set once the controller is built.
    pub(super) trigger: OnceLock<Trigger<RoutesKey>>,
}

impl Parts {
    /// Wakes a run that is working, and queues the key for one that is not.
    pub(super) fn wake(&self) {
        self.signal.notify_one();
        if let Some(trigger) = self.trigger.get() {
            trigger.fire(RoutesKey);
        }
    }
}

/// Upstream's name of the controller; its work queue is called `Routes`.
pub const NAME: &str = "route";

/// Builds the controller, stopped. It needs the lease, except in node mode and in observe mode.
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
    // In observe mode the record is read and never written.
    let record = parts.record_namespace.as_deref().map(|namespace| {
        let cluster = &parts.settings.cluster_name;
        RecordStore::new(&client, namespace, parts.provider.name(), cluster)
    });
    let signal = Arc::new(Notify::new());
    let noticed = signal.clone();
    let mapper = Mapper::new(move |_: &RouteNode| {
        // Wakes a run that is working; the key starts one that is not.
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
        events: parts.events,
        board: parts.board,
        signal,
        table_changed: AtomicBool::new(false),
        trigger: OnceLock::new(),
    });
    let controller = builder.build(RouteReconciler {
        parts: shared.clone(),
        run: Mutex::new(None),
    });
    let _first = shared.trigger.set(controller.trigger_handle());
    tokio::spawn(follow_state(shared.clone(), controller.clone()));
    tokio::spawn(follow_table(shared, controller.clone()));
    controller
}

/// Updates the status with the controller's state, and queues the key when it starts: a cluster
/// without nodes has no events, and may still have routes.
async fn follow_state(parts: Arc<Parts>, controller: Controller<RoutesKey>) {
    let mut state = controller.state();
    let trigger = controller.trigger_handle();
    // The task must not keep the controller alive.
    drop(controller);
    while state.changed().await.is_ok() {
        let now = state.borrow_and_update().clone();
        parts.board.change(|status| status.state = now.to_string());
        if now == ControllerState::Running {
            trigger.fire(RoutesKey);
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
    run: Mutex<Option<Run>>,
}

impl Reconciler<RoutesKey> for RouteReconciler {
    async fn reconcile(&self, context: Context<RoutesKey>) -> Result<Action, ReconcileError> {
        let mut kept = self.run.lock().await;
        // Taken out while it works: a run that panics or is cut off is not used again, and the next
        // starts by reading the table.
        let run = kept.take().filter(|run| !run.is_over());
        let mut run = match run {
            Some(run) => run,
            None => Run::begin(self.parts.clone(), context.cancelled().clone()).await?,
        };
        let done = run.work(&context).await;
        *kept = Some(run);
        done
    }
}
