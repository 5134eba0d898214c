//! The objects that the controllers plan from, as the watches deliver them.

use std::{collections::BTreeMap, sync::Arc};

use weft_runtime::{Change, Object};

use crate::views::{ConfigView, NodeView, PoolView, ShardView, StateView};

/// A change of one object.
pub(super) enum ObjectChange {
    Pool(Change<PoolView>),
    Shard(Change<ShardView>),
    Config(Change<ConfigView>),
    State(Change<StateView>),
    Node(Change<NodeView>),
}

/// Objects of one kind, by name.
pub(super) type ByName<K> = BTreeMap<Box<str>, Arc<K>>;

/// All objects as last delivered.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) pools: ByName<PoolView>,
    pub(super) shards: ByName<ShardView>,
    pub(super) configs: ByName<ConfigView>,
    pub(super) states: ByName<StateView>,
    pub(super) nodes: ByName<NodeView>,
}

impl ObjectChange {
    /// True if only a Node's heartbeat changed, as most changes in a cluster do.
    pub(super) fn is_heartbeat(&self) -> bool {
        match self {
            Self::Node(Change::Updated { old, new, .. }) => old.is_like(new),
            _ => false,
        }
    }
}

impl Objects {
    pub(super) fn apply(&mut self, change: ObjectChange) {
        match change {
            ObjectChange::Pool(change) => keep(&mut self.pools, change),
            ObjectChange::Shard(change) => keep(&mut self.shards, change),
            ObjectChange::Config(change) => keep(&mut self.configs, change),
            ObjectChange::State(change) => keep(&mut self.states, change),
            ObjectChange::Node(change) => keep(&mut self.nodes, change),
        }
    }
}

/// An object that cannot be decoded stays in the last state that could be.
fn keep<K: Object>(objects: &mut ByName<K>, change: Change<K>) {
    match change {
        Change::Added { new, .. } | Change::Updated { new, .. } => {
            objects.insert(new.name().into(), new);
        }
        Change::Deleted { last, .. } => drop(objects.remove(last.name())),
        Change::Undecodable(_) | Change::Synced | Change::Closed(_) => {}
    }
}
