//! Allocation of pool addresses to nodes.
//!
//! [`Allocator::plan`] takes all objects and returns the writes to make. Two rules keep an address
//! from belonging to two nodes: it is **claimed before it is published** and **unpublished before
//! it is freed**. Both are kept with any number of writers and with caches of any age:
//!
//! - a claim is made in a [`Shard`], which is written only if unchanged since it was read, so it is
//!   made once;
//! - a claim names the version of its holder's container at which it may be published, and that
//!   write, too, requires an unchanged object. Publishing increments the version. So once the version
//!   of a claim has passed, it is certain whether the claim was published, and if it was not, it
//!   never will be. Only then is it freed.
//!
//! Addresses that are published without a claim are claimed before anything is granted. A
//! NodeNetworkConfig that is recreated for the same Node gets the claims of its predecessor, and so
//! does that of a Node that was deleted and registered again under its name. The claims of a Node
//! are freed once it was absent for the grace period and no Node of its name took them over.
//! `tests/it/exhaustive.rs` and ADR 17 state the depth and bounds to which these rules were
//! model-checked.

mod exhaustion;
mod lifecycle;
mod node_cidrs;
mod object;
mod own_cidrs;
mod plan;
mod reconcile;
mod share;
mod space;
mod status;
mod usage;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ipnet::IpNet;
use weft_model::Moment;

pub use node_cidrs::ClusterCidr;
pub(crate) use node_cidrs::cidr_pool;
pub use object::{
    Block, Claim, ClaimState, Exhaustion, Holder, IpPool, Node, PoolSource, Shard, WallTime,
};
pub use plan::{Notice, Plan, Write};
pub use space::ClaimChange;
pub use usage::Usage;

use crate::{NodeConfig, NodeName, PoolName, Uid};

/// All objects as they were observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// IPPools by name.
    pub pools: BTreeMap<PoolName, IpPool>,
    /// Shards by pool and range.
    pub shards: BTreeMap<(PoolName, IpNet), Shard>,
    /// NodeNetworkConfigs by name.
    pub configs: BTreeMap<NodeName, NodeConfig>,
    /// Nodes by name.
    pub nodes: BTreeMap<NodeName, Node>,
    /// Pools whose ClusterSubnetState says they are nearly exhausted.
    pub exhausted: BTreeSet<PoolName>,
    /// True once all of these were listed completely.
    pub complete: bool,
}

impl View {
    /// The pool that serves a node: of those whose selector matches, the first by name.
    pub fn pool_of(&self, node: &Node) -> Option<&IpPool> {
        let matches = |pool: &&IpPool| {
            let label = |key: &str| node.labels.get(key).map(weft_model::SharedStr::as_str);
            pool.nodes.matches(label)
        };
        self.pools.values().find(matches)
    }

    /// The Node that a config belongs to; none if it is gone or another one has its name.
    fn node_of(&self, config: &NodeConfig) -> Option<&Node> {
        let node = self.nodes.get(&config.name)?;
        (config.owner.as_ref() == Some(&node.uid)).then_some(node)
    }
}

/// Settings of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorSettings {
    /// Time a Node must be absent before its addresses are freed: a kubelet may be cut off with its
    /// pods still running.
    pub node_grace: Duration,
}

impl Default for AllocatorSettings {
    fn default() -> Self {
        Self {
            node_grace: Duration::from_secs(300),
        }
    }
}

/// Plans the writes to make. Its only state is the time since which each Node is absent, and a
/// restart begins that time again: addresses are freed later, never earlier. Whose they are is in
/// the claims, so a Node that is registered again after a restart gets them back as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocator {
    settings: AllocatorSettings,
    absent: BTreeMap<Uid, Moment>,
}

impl Allocator {
    /// An allocator that has seen no Node yet.
    pub fn new(settings: AllocatorSettings) -> Self {
        Self {
            settings,
            absent: BTreeMap::new(),
        }
    }

    /// The writes to make now. Empty while the view is incomplete: a partial list would make
    /// addresses look free.
    pub fn plan(&mut self, view: &View, now: Moment, wall: WallTime) -> Plan {
        if !view.complete {
            return Plan::default();
        }
        self.note_absent(view, now);
        let mut plan = Plan::default();
        self.plan_configs(view, now, &mut plan);
        for pool in view.pools.values() {
            match &pool.source {
                PoolSource::Ranges(ranges) => {
                    self.plan_ranges(view, pool, ranges, now, wall, &mut plan);
                }
                PoolSource::NodeCidrs => own_cidrs::plan_own_cidrs(view, pool, &mut plan),
            }
        }
        plan.keep_first_statuses();
        plan
    }

    /// Time at which a plan may change without a new observation: a Node has been absent for the
    /// grace period.
    pub fn wake(&self) -> Option<Moment> {
        let absent = self.absent.values().min().copied()?;
        Some(absent + self.settings.node_grace)
    }

    fn is_gone(&self, node: &Uid, now: Moment) -> bool {
        let since = self.absent.get(node);
        since.is_some_and(|since| now.since(*since) >= self.settings.node_grace)
    }

    fn note_absent(&mut self, view: &View, now: Moment) {
        let present: BTreeSet<&Uid> = view.nodes.values().map(|node| &node.uid).collect();
        let configs = view.configs.values();
        // A config without an owner belongs to the Node of its name.
        let owners = configs
            .filter(|config| config.owner.is_some() || !view.nodes.contains_key(&config.name))
            .map(lifecycle::tenant);
        let blocks = view.shards.values().flat_map(|shard| shard.blocks.values());
        let holders = blocks
            .flat_map(reconcile::claims)
            .map(|claim| &claim.holder.node_uid);
        let known: BTreeSet<&Uid> = owners.chain(holders).collect();
        self.absent
            .retain(|uid, _| known.contains(uid) && !present.contains(uid));
        for uid in known.difference(&present) {
            self.absent.entry((*uid).clone()).or_insert(now);
        }
    }
}
