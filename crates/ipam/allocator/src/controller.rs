//! The allocator of blocks as a machine: its watches, and its plans from the objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::json;
use weft_ipam::{
    NodeName, PoolName,
    allocator::{Allocator, AllocatorSettings, Shard, View, WallTime},
    objects::{Meta, PoolFlaw, Pools, read_pools},
};
use weft_model::Moment;
use weft_runtime::{
    Cluster, ControllerHandle, Failure, Kinded as _, MachineBuilder, Metrics, Object as _,
    WatchSpec,
};

use crate::{
    AllocatorEvents, AllocatorMetrics, WallClock,
    clock::{rfc3339, until},
    machine::{AddressMachine, CACHE_LAG_LIMIT, Event, Planned, Planner, StatusWrite, Tools},
    metrics::ADDRESS_REASONS,
    objects::{ByName, ObjectChange, Objects},
    pool_status,
    views::{ConfigView, PoolView, ShardView, StateView},
    writer::{Facts, HolderKind, Writer},
};

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

/// Builds the controller, stopped. Only the leader runs it, and only while its kinds are served.
pub fn controller(parts: AllocatorParts, metrics: Option<&Metrics>) -> ControllerHandle {
    let namespace = parts.namespace.as_str();
    let inside = || WatchSpec::all().namespace(namespace);
    let all = WatchSpec::all;
    let mut builder = MachineBuilder::new(NAME, &parts.cluster)
        .watches(all(), |change| Event::Object(ObjectChange::Pool(change)))
        .watches(all(), |change| Event::Object(ObjectChange::Shard(change)))
        .watches(inside(), |change| {
            Event::Object(ObjectChange::Config(change))
        })
        .watches(inside(), |change| {
            Event::Object(ObjectChange::State(change))
        })
        .watches(all(), |change| Event::Object(ObjectChange::Node(change)))
        .requires_kind(PoolView::resource_kind())
        .requires_kind(ShardView::resource_kind())
        .requires_kind(ConfigView::resource_kind())
        .requires_kind(StateView::resource_kind())
        .read_own_writes(CACHE_LAG_LIMIT)
        .leader_only();
    if let Some(metrics) = metrics {
        builder = builder.metrics(metrics);
    }
    let settings = parts.settings;
    let tools = Arc::new(Tools {
        writer: Writer::new(&parts.cluster, namespace),
        metrics: parts.metrics,
        events: parts.events,
        clock: parts.clock,
    });
    builder.build(move |_| {
        let planner = PoolPlanner {
            core: Allocator::new(settings),
            metrics: tools.metrics.clone(),
            observed: Arc::default(),
        };
        let machine = AddressMachine::new(tools.clone(), planner);
        std::future::ready(Ok(machine))
    })
}

/// Plans blocks of pools for nodes.
struct PoolPlanner {
    core: Allocator,
    metrics: AllocatorMetrics,
    /// The objects of the last plan.
    observed: Arc<Observed>,
}

/// All objects as a plan saw them.
#[derive(Default)]
struct Observed {
    view: View,
    flaws: BTreeMap<PoolName, Vec<PoolFlaw>>,
    pools: ByName<PoolView>,
    configs: ByName<ConfigView>,
    timestamp: String,
}

impl Planner for PoolPlanner {
    const REASONS: &'static [&'static str] = &ADDRESS_REASONS;

    fn matters(&self, _change: &ObjectChange) -> bool {
        true
    }

    fn plan(&mut self, objects: &Objects, now: Moment, wall: WallTime) -> Result<Planned, Failure> {
        let observed = Arc::new(Observed::of(objects, wall));
        self.observed = observed.clone();
        let plan = self.core.plan(&observed.view, now, wall);
        let flaws = observed.flaws.iter();
        let flaws = flaws.flat_map(|(pool, flaws)| {
            let flaws = flaws.iter().cloned();
            flaws.map(|flaw| (pool.clone(), flaw))
        });
        Ok(Planned {
            plan,
            flaws: flaws.collect(),
            next: next_plan(&self.core, now, &observed.view, wall),
            facts: observed,
        })
    }

    fn statuses(&mut self, wall: WallTime) -> Vec<StatusWrite> {
        let observed = &self.observed;
        let mut figures = Vec::new();
        let mut writes = Vec::new();
        for object in observed.pools.values() {
            let name = PoolName::from(&*object.0.metadata.name);
            let Some(pool) = observed.view.pools.get(&name) else {
                continue;
            };
            let usage = observed.view.usage(pool, wall);
            let exhausted = observed.view.exhausted.contains(&name);
            let flaws = observed.flaws.get(&name).map_or(&[][..], Vec::as_slice);
            let wanted = pool_status::wanted(&object.0, pool, usage, exhausted, flaws, wall);
            figures.push((&pool.name, usage, exhausted));
            writes.extend(wanted.map(|status| StatusWrite {
                pool: name,
                body: json!({
                    "metadata": {"resourceVersion": object.resource_version()},
                    "status": pool_status::patch(&status),
                }),
            }));
        }
        let fatal = |flaws: &&Vec<PoolFlaw>| flaws.iter().any(PoolFlaw::is_fatal);
        let flawed = observed.flaws.values().filter(fatal).count();
        self.metrics.pools(figures.into_iter(), flawed);
        writes
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

impl Observed {
    fn of(objects: &Objects, wall: WallTime) -> Self {
        let Pools {
            pools,
            shards,
            flaws,
        } = read_pools(
            objects.pools.values().map(|view| &view.0),
            objects.shards.values().map(|view| &view.0),
            wall,
        );
        let configs = objects.configs.values();
        let nodes = objects.nodes.values().map(|node| node.to_node());
        let states = objects.states.values();
        let exhausted = states.filter(|view| view.0.status.exhausted);
        let exhausted: BTreeSet<PoolName> = exhausted
            .map(|view| PoolName::from(&*view.0.metadata.name))
            .collect();
        Self {
            view: View {
                pools,
                shards,
                configs: configs
                    .map(|view| (view.config.name.clone(), view.config.clone()))
                    .collect(),
                nodes: nodes.map(|node| (node.name.clone(), node)).collect(),
                exhausted,
                // A machine acts once all of its kinds were listed completely.
                complete: true,
            },
            flaws,
            pools: objects.pools.clone(),
            configs: objects.configs.clone(),
            timestamp: rfc3339(wall),
        }
    }
}

impl Facts for Observed {
    fn block_prefix(&self, shard: &Shard) -> Option<u8> {
        let pool = self.view.pools.get(&shard.pool)?;
        let range = pool.range_of(shard.range)?;
        Some(pool.block_prefix(range))
    }

    fn config(&self, name: &NodeName) -> Option<&Meta> {
        self.configs.get(name.as_str()).map(|view| &view.meta)
    }

    fn pool(&self, name: &PoolName) -> Option<&Meta> {
        self.pools.get(name.as_str()).map(|view| &view.0.metadata)
    }

    fn holders(&self) -> HolderKind {
        HolderKind::Config
    }

    fn timestamp(&self) -> &str {
        &self.timestamp
    }
}
