//! Assigns `spec.podCIDRs` to nodes, as kube-controller-manager's range allocator does, but claims
//! them first: two processes that both believe they are the leader cannot give one range to two
//! nodes.

use std::sync::Arc;

use weft_ipam::{
    PoolName,
    allocator::{Allocator, AllocatorSettings, ClusterCidr, Shard, View, WallTime},
    objects::{POD_CIDR_POOL, read_cidr_shards},
};
use weft_model::Moment;
use weft_runtime::{
    Change, Cluster, ControllerHandle, Failure, Kinded as _, MachineBuilder, Metrics, WatchSpec,
};

use crate::{
    AllocatorEvents, AllocatorMetrics, WallClock,
    clock::rfc3339,
    controller::next_plan,
    machine::{AddressMachine, CACHE_LAG_LIMIT, Event, Planned, Planner, Tools},
    metrics::CIDR_REASONS,
    objects::{ObjectChange, Objects},
    views::{ConfigView, ShardView},
    writer::{Facts, HolderKind, Writer},
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
pub fn pod_cidr_controller(parts: PodCidrParts, metrics: Option<&Metrics>) -> ControllerHandle {
    let all = WatchSpec::all;
    let inside = all().namespace(&parts.namespace);
    let mut builder = MachineBuilder::new(POD_CIDR_NAME, &parts.cluster)
        .watches(all(), |change| Event::Object(ObjectChange::Shard(change)))
        .watches(all(), |change| Event::Object(ObjectChange::Node(change)))
        .watches(inside, |change| Event::Object(ObjectChange::Config(change)))
        .requires_kind(ShardView::resource_kind())
        .requires_kind(ConfigView::resource_kind())
        .read_own_writes(CACHE_LAG_LIMIT)
        .leader_only();
    if let Some(metrics) = metrics {
        builder = builder.metrics(metrics);
    }
    let (settings, ranges) = (parts.settings, Arc::<[ClusterCidr]>::from(parts.ranges));
    let tools = Arc::new(Tools {
        writer: Writer::new(&parts.cluster, &parts.namespace),
        metrics: parts.metrics,
        events: parts.events,
        clock: parts.clock,
    });
    builder.build(move |_| {
        let planner = CidrPlanner {
            core: Allocator::new(settings),
            ranges: ranges.clone(),
        };
        let machine = AddressMachine::new(tools.clone(), planner);
        std::future::ready(Ok(machine))
    })
}

/// Plans pod CIDRs of nodes.
struct CidrPlanner {
    core: Allocator,
    ranges: Arc<[ClusterCidr]>,
}

struct CidrFacts {
    ranges: Arc<[ClusterCidr]>,
    timestamp: String,
}

impl Planner for CidrPlanner {
    const REASONS: &'static [&'static str] = &CIDR_REASONS;

    fn matters(&self, change: &ObjectChange) -> bool {
        match change {
            ObjectChange::Shard(Change::Updated { new, .. }) => {
                new.0.spec.pool.as_str() == POD_CIDR_POOL
            }
            // Their addresses are read when one of them is deleted, and not before.
            ObjectChange::Config(Change::Updated { .. }) => false,
            _ => true,
        }
    }

    fn plan(&mut self, objects: &Objects, now: Moment, wall: WallTime) -> Result<Planned, Failure> {
        let shards = objects.shards.values().map(|view| &view.0);
        let nodes = objects.nodes.values().map(|node| node.to_node());
        let configs = objects.configs.values().map(|view| &view.config);
        let view = View {
            shards: read_cidr_shards(shards, &self.ranges, wall)?,
            nodes: nodes.map(|node| (node.name.clone(), node)).collect(),
            configs: configs
                .map(|config| (config.name.clone(), config.clone()))
                .collect(),
            complete: true,
            ..View::default()
        };
        let name = PoolName::from(POD_CIDR_POOL);
        let core = &mut self.core;
        let plan = core.plan_node_cidrs(&view, &name, &self.ranges, now, wall);
        Ok(Planned {
            plan,
            flaws: Vec::new(),
            next: next_plan(core, now, &view, wall),
            facts: Arc::new(CidrFacts {
                ranges: self.ranges.clone(),
                timestamp: rfc3339(wall),
            }),
        })
    }
}

impl Facts for CidrFacts {
    fn block_prefix(&self, shard: &Shard) -> Option<u8> {
        let mut ranges = self.ranges.iter();
        let cluster = ranges.find(|cluster| cluster.range.contains(&shard.range))?;
        Some(cluster.node_prefix.max(cluster.range.prefix_len()))
    }

    fn holders(&self) -> HolderKind {
        HolderKind::Node
    }

    fn timestamp(&self) -> &str {
        &self.timestamp
    }
}
