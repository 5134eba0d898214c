//! Which node gets which addresses of the cluster.
//!
//! [`Allocator::plan`] looks at all objects and says what to write. Two rules keep an address from
//! being two nodes': it is **claimed before it is published** and **unpublished before it is
//! freed**; and both hold whoever writes, with a cache however old:
//!
//! - a claim is made in a [`Shard`], which is written only as it was read, so it is made once;
//! - a claim names the version of its holder's container at which it may be published, and that
//!   write, too, happens only to the object as it was read. Publishing moves the version on. So of
//!   a claim whose version has passed it is known for good whether it is published, and one that is
//!   not never will be: that, and nothing else, is when it is freed.
//!
//! What is published without a claim is claimed before anything is granted. A NodeNetworkConfig that
//! was made again for the same Node gets the claims of the one before; those of a Node are freed when
//! it was absent for the grace. These rules are searched to a depth and within bounds that
//! `tests/it/exhaustive.rs` and ADR 17 state.

mod exhaustion;
mod lifecycle;
mod node_cidrs;
mod object;
mod own;
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
    Block, Claim, ClaimState, Exhaustion, Holder, IpPool, Node, PoolSource, Shard, Wall,
};
pub use plan::{Notice, Plan, Write};
pub use space::ClaimChange;
pub use usage::Usage;

use crate::{NodeConfig, NodeName, PoolName, Uid};

/// Everything there is, as it was observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// IPPools.
    pub pools: BTreeMap<PoolName, IpPool>,
    /// Shards, by pool and range.
    pub shards: BTreeMap<(PoolName, IpNet), Shard>,
    /// NodeNetworkConfigs, by name.
    pub configs: BTreeMap<NodeName, NodeConfig>,
    /// Nodes, by name.
    pub nodes: BTreeMap<NodeName, Node>,
    /// Pools that are said to be nearly empty.
    pub exhausted: BTreeSet<PoolName>,
    /// Whether all of these were listed to the end at least once.
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

    /// The Node that a config belongs to, unless it is gone or another one has its name.
    fn node_of(&self, config: &NodeConfig) -> Option<&Node> {
        let node = self.nodes.get(&config.name)?;
        (config.owner.as_ref() == Some(&node.uid)).then_some(node)
    }
}

/// How an allocator behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorSettings {
    /// How long a Node must have been absent before its addresses are taken: kubelet may be cut off
    /// with its pods still running.
    pub node_grace: Duration,
}

impl Default for AllocatorSettings {
    fn default() -> Self {
        Self {
            node_grace: Duration::from_secs(300),
        }
    }
}

/// Plans what to write. Remembers only since when which Node is absent, which after a restart
/// begins anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocator {
    settings: AllocatorSettings,
    absent: BTreeMap<Uid, Moment>,
}

impl Allocator {
    /// One that has seen nothing yet.
    pub fn new(settings: AllocatorSettings) -> Self {
        Self {
            settings,
            absent: BTreeMap::new(),
        }
    }

    /// What to write now. Nothing while the view is not complete: a list that ends early would
    /// make addresses look free.
    pub fn plan(&mut self, view: &View, now: Moment, wall: Wall) -> Plan {
        if !view.complete {
            return Plan::default();
        }
        self.note_absent(view, now);
        let mut plan = Plan::default();
        self.node_life(view, now, &mut plan);
        for pool in view.pools.values() {
            match &pool.source {
                PoolSource::Ranges(ranges) => {
                    self.plan_ranges(view, pool, ranges, now, wall, &mut plan);
                }
                PoolSource::NodeCidrs => own::plan_own_cidrs(view, pool, &mut plan),
            }
        }
        plan.keep_first_statuses();
        plan
    }

    /// When a plan may say something new although nothing has changed: a Node has been absent for
    /// long enough.
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
        // One without an owner is that of the Node of its name.
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
