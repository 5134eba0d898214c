//! Assigns `spec.podCIDRs` to nodes, as kube-controller-manager's range allocator does, but claims
//! them first: two processes that both believe they are the leader cannot give one range to two
//! nodes.

use tokio::{sync::Mutex, time::Instant};
use weft_ipam::{
    PoolName,
    allocator::{Allocator, AllocatorSettings, ClusterCidr, Shard, View},
    objects::{POD_CIDR_POOL, read_cidr_shards},
};
use weft_model::SharedStr;
use weft_runtime::{
    Action, Cluster, Context, Controller, Kinded as _, Lister, Mapper, Metrics, Predicate,
    ReconcileError, Reconciler, WatchOptions, WatchSpec,
};

use crate::{
    AllocatorEvents, AllocatorMetrics, WallClock,
    announce::Reported,
    clock::rfc3339,
    controller::{AllocatorKey, matters, next_plan},
    metrics::CIDR_REASONS,
    term::Term,
    views::{ConfigView, NodeView, ShardView},
    writer::{Facts, Writer, Written},
};

/// Name of the controller.
pub const POD_CIDR_NAME: &str = "pod-cidr";

/// Dependencies of the pod CIDR controller.
pub struct PodCidrParts {
    /// Access to the API server.
    pub cluster: Cluster,
    /// Ranges to assign from: at most one of each family.
    pub ranges: Vec<ClusterCidr>,
    /// The operator's settings.
    pub settings: AllocatorSettings,
    /// Namespace of the NodeNetworkConfigs: a node's range is not free before its config is gone.
    pub namespace: String,
    /// Metrics to update.
    pub metrics: AllocatorMetrics,
    /// Reporter of events.
    pub events: AllocatorEvents,
    /// Clock for cooldowns.
    pub clock: WallClock,
}

/// Builds the controller, stopped. Only the leader runs it, and only while claims can be stored.
pub fn pod_cidr_controller(
    parts: PodCidrParts,
    metrics: Option<&Metrics>,
) -> Controller<AllocatorKey> {
    let ours = Predicate::new(|change: &weft_runtime::Change<ShardView>| match change {
        weft_runtime::Change::Updated { new, .. } => new.0.spec.pool.as_str() == POD_CIDR_POOL,
        _ => true,
    });
    // Their addresses are read when one of them is deleted, and not before.
    let gone = Predicate::new(|change: &weft_runtime::Change<ConfigView>| {
        !matches!(change, weft_runtime::Change::Updated { .. })
    });
    let mut builder = Controller::builder(POD_CIDR_NAME, &parts.cluster)
        .watches_with::<ShardView>(
            ShardView::resource_kind(),
            WatchSpec::all(),
            Mapper::always(AllocatorKey),
            WatchOptions::default().predicate(ours),
        )
        .watches_with::<NodeView>(
            NodeView::resource_kind(),
            WatchSpec::all(),
            Mapper::always(AllocatorKey),
            WatchOptions::default().predicate(matters()),
        )
        .watches_with::<ConfigView>(
            ConfigView::resource_kind(),
            WatchSpec::all().namespace(&parts.namespace),
            Mapper::always(AllocatorKey),
            WatchOptions::default().predicate(gone),
        )
        .requires_kind(ShardView::resource_kind())
        .requires_kind(ConfigView::resource_kind())
        .leader_only();
    if let Some(metrics) = metrics {
        builder = builder.metrics(metrics);
    }
    builder.build(CidrReconciler {
        writer: Writer {
            client: parts.cluster.client().clone(),
            namespace: SharedStr::new(&parts.namespace),
        },
        parts,
        state: Mutex::new(None),
    })
}

struct CidrReconciler {
    parts: PodCidrParts,
    writer: Writer,
    state: Mutex<Option<State>>,
}

struct State {
    term: Term,
    core: Allocator,
    reported: Reported,
}

impl Reconciler<AllocatorKey> for CidrReconciler {
    async fn reconcile(&self, context: Context<AllocatorKey>) -> Result<Action, ReconcileError> {
        let mut state = self.state.lock().await;
        if state.as_ref().is_none_or(|state| state.term.is_over()) {
            *state = None;
        }
        let state = state.get_or_insert_with(|| State {
            term: Term::begin(context.cancelled().clone()),
            core: Allocator::new(self.parts.settings),
            reported: Reported::default(),
        });
        self.work(state, &context).await
    }
}

impl CidrReconciler {
    async fn work(
        &self,
        State {
            term,
            core,
            reported,
        }: &mut State,
        context: &Context<AllocatorKey>,
    ) -> Result<Action, ReconcileError> {
        let shards: Lister<ShardView> = context.lister()?;
        let nodes: Lister<NodeView> = context.lister()?;
        let configs: Lister<ConfigView> = context.lister()?;
        let seen = |written: &Written| {
            if written.kind == ShardView::resource_kind() {
                shards.has_reached(&written.key, &written.version)
            } else {
                nodes.has_reached(&written.key, &written.version)
            }
        };
        if let Some(wait) = term.waits_for_cache(&seen)? {
            return Ok(Action::requeue(wait));
        }
        let wall = self.parts.clock.now();
        let name = PoolName::from(POD_CIDR_POOL);
        let shards = shards.list()?;
        let shards = shards.iter().map(|view| &view.0);
        let (nodes, configs) = (nodes.list()?, configs.list()?);
        let nodes = nodes.iter().map(|node| node.to_node());
        let configs = configs.iter().map(|view| &view.config);
        let view = View {
            shards: read_cidr_shards(shards, &self.parts.ranges, wall)?,
            nodes: nodes.map(|node| (node.name.clone(), node)).collect(),
            configs: configs
                .map(|config| (config.name.clone(), config.clone()))
                .collect(),
            complete: true,
            ..View::default()
        };
        let begun = Instant::now();
        let plan = core.plan_node_cidrs(&view, &name, &self.parts.ranges, term.now(), wall);
        self.parts
            .metrics
            .planned(begun.elapsed(), &plan.notices, &CIDR_REASONS);
        self.parts.events.notices(reported, &plan.notices);
        let timestamp = rfc3339(wall);
        let facts = Facts {
            block_prefix: &|shard| self.block_prefix(shard),
            finalizers: &|_| Vec::new(),
            owners: &|_| Vec::new(),
            pool_meta: &|_| None,
            pool_owner: &|_| None,
            held_by_nodes: true,
            timestamp: &timestamp,
        };
        let work = (plan.writes.as_slice(), &facts);
        let metrics = &self.parts.metrics;
        let again = term.carry_out(context, &self.writer, metrics, work).await;
        Ok(Action::requeue(again.unwrap_or_else(|| {
            next_plan(core, term.now(), &view, wall)
        })))
    }

    fn block_prefix(&self, shard: &Shard) -> Option<u8> {
        let mut ranges = self.parts.ranges.iter();
        let cluster = ranges.find(|cluster| cluster.range.contains(&shard.range))?;
        Some(cluster.node_prefix.max(cluster.range.prefix_len()))
    }
}
