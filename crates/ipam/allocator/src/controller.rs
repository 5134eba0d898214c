//! The allocator as a controller: watches objects, plans, writes, under leader election.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use axum::http::Method;
use serde_json::json;
use tokio::{sync::Mutex, time::Instant};
use weft_ipam::{
    NodeName, PoolName,
    allocator::{Allocator, AllocatorSettings, Shard, View, WallTime, Write},
    objects::{Meta, PoolFlaw, Pools, read_pools},
};
use weft_model::{Moment, SharedStr};
use weft_runtime::{
    Action, Change, Cluster, Context, Controller, InformerStopped, Kinded as _, Lister, Mapper,
    Metrics, Object as _, Predicate, ReconcileError, Reconciler, WatchOptions, WatchSpec,
};

use crate::{
    AllocatorEvents, AllocatorMetrics, WallClock,
    announce::Reported,
    clock::{rfc3339, until},
    metrics::ADDRESS_REASONS,
    pool_status,
    term::{Seen, Term, chain, label},
    views::{ConfigView, NodeView, PoolView, ShardView, StateView},
    writer::{Facts, Writer, Written},
};

/// The only key of the queue: all addresses of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AllocatorKey;

impl fmt::Debug for AllocatorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("addresses")
    }
}

/// Dependencies of an allocator.
pub struct AllocatorParts {
    /// Access to the API server.
    pub cluster: Cluster,
    /// The operator's settings.
    pub settings: AllocatorSettings,
    /// Namespace of the NodeNetworkConfigs.
    pub namespace: String,
    /// Metrics to update.
    pub metrics: AllocatorMetrics,
    /// Reporter of events.
    pub events: AllocatorEvents,
    /// Clock for cooldowns.
    pub clock: WallClock,
}

/// Name of the controller.
pub const NAME: &str = "ipam";

/// Interval of planning without a change.
const AUDIT: Duration = Duration::from_mins(5);
/// Delay before planning again for a deadline that should have passed by now.
const OVERDUE: Duration = Duration::from_secs(10);
/// Minimum interval between writes of a pool's figures.
const FIGURES: Duration = Duration::from_secs(5);

/// Builds the controller, stopped. Only the leader runs it, and only while its kinds are served.
pub fn controller(parts: AllocatorParts, metrics: Option<&Metrics>) -> Controller<AllocatorKey> {
    let namespace = parts.namespace.as_str();
    let inside = || WatchSpec::all().namespace(namespace);
    let mut builder = Controller::builder(NAME, &parts.cluster)
        .watches::<PoolView>(WatchSpec::all(), Mapper::always(AllocatorKey))
        .watches::<ShardView>(WatchSpec::all(), Mapper::always(AllocatorKey))
        .watches::<ConfigView>(inside(), Mapper::always(AllocatorKey))
        .watches::<StateView>(inside(), Mapper::always(AllocatorKey))
        .watches_with::<NodeView>(
            NodeView::resource_kind(),
            WatchSpec::all(),
            Mapper::always(AllocatorKey),
            WatchOptions::default().predicate(matters()),
        )
        .leader_only();
    for kind in [
        PoolView::resource_kind(),
        ShardView::resource_kind(),
        ConfigView::resource_kind(),
        StateView::resource_kind(),
    ] {
        builder = builder.requires_kind(kind);
    }
    if let Some(metrics) = metrics {
        builder = builder.metrics(metrics);
    }
    builder.build(AddressReconciler {
        writer: Writer {
            client: parts.cluster.client().clone(),
            namespace: SharedStr::new(namespace),
        },
        parts,
        state: Mutex::new(None),
    })
}

/// Ignores node updates that are only heartbeats.
pub(super) fn matters() -> Predicate<NodeView> {
    Predicate::new(|change: &Change<NodeView>| match change {
        Change::Updated { old, new, .. } => !old.is_like(new),
        _ => true,
    })
}

struct AddressReconciler {
    parts: AllocatorParts,
    writer: Writer,
    state: Mutex<Option<State>>,
}

struct State {
    term: Term,
    core: Allocator,
    reported: Reported,
    figures_at: Option<Instant>,
}

struct Listers {
    pools: Lister<PoolView>,
    shards: Lister<ShardView>,
    configs: Lister<ConfigView>,
    states: Lister<StateView>,
    nodes: Lister<NodeView>,
}

/// All objects as they were observed.
struct Observed {
    view: View,
    flaws: BTreeMap<PoolName, Vec<PoolFlaw>>,
    pools: Vec<Arc<PoolView>>,
    configs: Vec<Arc<ConfigView>>,
}

impl Reconciler<AllocatorKey> for AddressReconciler {
    async fn reconcile(&self, context: Context<AllocatorKey>) -> Result<Action, ReconcileError> {
        let mut state = self.state.lock().await;
        if state.as_ref().is_none_or(|state| state.term.is_over()) {
            *state = None;
        }
        let state = state.get_or_insert_with(|| State {
            term: Term::begin(context.cancelled().clone()),
            core: Allocator::new(self.parts.settings),
            reported: Reported::default(),
            figures_at: None,
        });
        self.work(state, &context).await
    }
}

impl AddressReconciler {
    async fn work(
        &self,
        state: &mut State,
        context: &Context<AllocatorKey>,
    ) -> Result<Action, ReconcileError> {
        let listers = Listers::of(context)?;
        if let Some(wait) = state.term.waits_for_cache(&listers.seen())? {
            return Ok(Action::requeue(wait));
        }
        let wall = self.parts.clock.now();
        let observed = listers.observe(wall)?;
        let begun = Instant::now();
        let plan = state.core.plan(&observed.view, state.term.now(), wall);
        self.parts
            .metrics
            .planned(begun.elapsed(), &plan.notices, &ADDRESS_REASONS);
        self.parts
            .events
            .notices(&mut state.reported, &plan.notices);
        let flaws = observed.flaws.iter();
        let flaws = flaws.flat_map(|(pool, flaws)| flaws.iter().map(move |flaw| (pool, flaw)));
        self.parts.events.flaws(&mut state.reported, flaws);
        let again = self
            .carry_out(state, context, &observed, &plan.writes, wall)
            .await;
        let settled = again.is_none();
        let due = |at: Instant| at.elapsed() >= FIGURES;
        if settled || state.figures_at.is_none_or(due) {
            state.figures_at = Some(Instant::now());
            self.write_figures(state, context, &observed, wall).await;
        }
        Ok(Action::requeue(again.unwrap_or_else(|| {
            next_plan(&state.core, state.term.now(), &observed.view, wall)
        })))
    }

    async fn carry_out(
        &self,
        state: &mut State,
        context: &Context<AllocatorKey>,
        observed: &Observed,
        writes: &[Write],
        wall: WallTime,
    ) -> Option<Duration> {
        let timestamp = rfc3339(wall);
        let facts = Facts {
            block_prefix: &|shard| observed.block_prefix(shard),
            finalizers: &|name| observed.finalizers(name),
            owners: &|name| observed.owners(name),
            pool_meta: &|name| observed.pool_meta(name),
            pool_owner: &|name| observed.pool_owner(name),
            held_by_nodes: false,
            timestamp: &timestamp,
        };
        let metrics = &self.parts.metrics;
        let work = (writes, &facts);
        state
            .term
            .carry_out(context, &self.writer, metrics, work)
            .await
    }

    /// Writes the status of pools that changed.
    async fn write_figures(
        &self,
        state: &mut State,
        context: &Context<AllocatorKey>,
        observed: &Observed,
        wall: WallTime,
    ) {
        let mut figures = Vec::new();
        for object in &observed.pools {
            let name = PoolName::from(&*object.0.metadata.name);
            let Some(pool) = observed.view.pools.get(&name) else {
                continue;
            };
            let usage = observed.view.usage(pool, wall);
            let exhausted = observed.view.exhausted.contains(&name);
            let flaws = observed.flaws.get(&name).map_or(&[][..], Vec::as_slice);
            let wanted = pool_status::wanted(&object.0, pool, usage, exhausted, flaws, wall);
            figures.push((&pool.name, usage, exhausted));
            if let Some(status) = wanted {
                let body = json!({
                    "metadata": {"resourceVersion": object.resource_version()},
                    "status": status,
                });
                let kind = PoolView::resource_kind();
                let path = format!("{}/{name}/status", kind.collection_path(None));
                let write = self.writer.put(kind, Method::PATCH, &path, &body);
                let outcome = context.fenced(write).await;
                self.parts
                    .metrics
                    .wrote_object("pool_status", label(outcome.as_ref()));
                match outcome {
                    Some(Ok(written)) => state.term.expect(written),
                    Some(Err(error)) => {
                        tracing::debug!(error = chain(&error), %name, "cannot write the pool status");
                    }
                    None => return,
                }
            }
        }
        let fatal = |flaws: &&Vec<PoolFlaw>| flaws.iter().any(PoolFlaw::is_fatal);
        let flawed = observed.flaws.values().filter(fatal).count();
        self.parts.metrics.pools(figures.into_iter(), flawed);
    }
}

/// Time until a plan may change without a new observation.
pub(super) fn next_plan(core: &Allocator, now: Moment, view: &View, wall: WallTime) -> Duration {
    let grace = core
        .wake()
        .map(|at| if at > now { at.since(now) } else { OVERDUE });
    let rested = view.next_cooldown_end(wall).map(|at| until(wall, at));
    let waits = [grace, rested, Some(AUDIT)];
    waits.into_iter().flatten().min().unwrap_or(AUDIT)
}

impl Listers {
    fn of(context: &Context<AllocatorKey>) -> Result<Self, ReconcileError> {
        Ok(Self {
            pools: context.lister()?,
            shards: context.lister()?,
            configs: context.lister()?,
            states: context.lister()?,
            nodes: context.lister()?,
        })
    }

    fn seen(&self) -> Box<Seen<'_>> {
        let kinds = [
            PoolView::resource_kind(),
            ShardView::resource_kind(),
            ConfigView::resource_kind(),
            StateView::resource_kind(),
        ];
        Box::new(move |written: &Written| {
            let place = kinds.iter().position(|kind| *kind == written.kind);
            let (key, version) = (&written.key, &*written.version);
            match place {
                Some(0) => self.pools.has_reached(key, version),
                Some(1) => self.shards.has_reached(key, version),
                Some(2) => self.configs.has_reached(key, version),
                Some(_) => self.states.has_reached(key, version),
                None => Ok(true),
            }
        })
    }

    fn observe(&self, wall: WallTime) -> Result<Observed, InformerStopped> {
        let pools = self.pools.list()?;
        let shards = self.shards.list()?;
        let configs = self.configs.list()?;
        let read = read_pools(
            pools.iter().map(|view| &view.0),
            shards.iter().map(|view| &view.0),
            wall,
        );
        let Pools {
            pools: usable,
            shards,
            flaws,
        } = read;
        let states = self.states.list()?;
        let exhausted = states.iter().filter(|view| view.0.status.exhausted);
        let nodes = self.nodes.list()?;
        let nodes = nodes.iter().map(|node| node.to_node());
        let view = View {
            pools: usable,
            shards,
            configs: configs
                .iter()
                .map(|view| (view.config.name.clone(), view.config.clone()))
                .collect(),
            nodes: nodes.map(|node| (node.name.clone(), node)).collect(),
            exhausted: exhausted
                .map(|view| PoolName::from(&*view.0.metadata.name))
                .collect(),
            // A controller starts once all of its sources were listed completely.
            complete: true,
        };
        Ok(Observed {
            view,
            flaws,
            pools,
            configs,
        })
    }
}

impl Observed {
    fn block_prefix(&self, shard: &Shard) -> Option<u8> {
        let pool = self.view.pools.get(&shard.pool)?;
        let range = pool.range_of(shard.range)?;
        Some(pool.block_prefix(range))
    }

    fn finalizers(&self, name: &NodeName) -> Vec<SharedStr> {
        let mut configs = self.configs.iter();
        let found = configs.find(|view| view.config.name == *name);
        found.map_or_else(Vec::new, |view| view.meta.finalizers.clone())
    }

    fn owners(&self, name: &NodeName) -> Vec<serde_json::Value> {
        let mut configs = self.configs.iter();
        let found = configs.find(|view| view.config.name == *name);
        let owners = found.map(|view| view.meta.owner_references.iter());
        let owners = owners.into_iter().flatten();
        owners.map(|owner| json!(owner)).collect()
    }

    fn pool_meta(&self, name: &PoolName) -> Option<Meta> {
        let mut pools = self.pools.iter();
        let pool = pools.find(|view| *view.0.metadata.name == *name.as_str())?;
        Some(pool.0.metadata.clone())
    }

    fn pool_owner(&self, name: &str) -> Option<serde_json::Value> {
        let mut pools = self.pools.iter();
        let pool = pools.find(|view| *view.0.metadata.name == *name)?;
        let kind = PoolView::resource_kind();
        Some(json!({
            "apiVersion": kind.api_version(), "kind": &*kind.kind,
            "name": name, "uid": pool.0.metadata.uid,
        }))
    }
}
