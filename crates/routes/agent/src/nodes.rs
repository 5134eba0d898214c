//! The nodes and their blocks as the watches deliver them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use weft_model::ObjectKey;
use weft_routes::Node;
use weft_runtime::Change;

use crate::{
    blocks::{BlockChange, BlockList, NodeBlocks},
    controller::Parts,
    views::RouteNode,
};

/// Every node as last delivered, and what is known about its blocks.
pub(super) struct NodeFeed {
    parts: Arc<Parts>,
    nodes: HashMap<Box<str>, Arc<RouteNode>>,
    /// Nodes that exist and of which no state could be decoded.
    unreadable: BTreeSet<ObjectKey>,
    blocks: BlockList,
}

/// A change that routes may depend on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NodeChange {
    /// The node of this name came or changed.
    Applied(Box<str>),
    /// The node of this name is gone.
    Deleted(Box<str>),
    /// The blocks of all nodes became known or unknown.
    All,
}

impl NodeFeed {
    pub(super) fn new(parts: Arc<Parts>) -> Self {
        let blocks = match &parts.settings.blocks {
            None => BlockList::Off,
            Some(_) => BlockList::default(),
        };
        Self {
            parts,
            nodes: HashMap::new(),
            unreadable: BTreeSet::new(),
            blocks,
        }
    }

    /// Takes in a change of a Node. Heartbeats, which are most of them, are no change.
    pub(super) fn node(&mut self, change: Change<RouteNode>) -> Option<NodeChange> {
        match change {
            Change::Added { new, .. } => {
                let name: Box<str> = new.name().into();
                self.nodes.insert(name.clone(), new);
                self.unreadable.remove(&ObjectKey::cluster(&name));
                Some(NodeChange::Applied(name))
            }
            Change::Updated { old, new, .. } => {
                let name: Box<str> = new.name().into();
                let heartbeat = new.is_like(&old);
                self.nodes.insert(name.clone(), new);
                (!heartbeat).then_some(NodeChange::Applied(name))
            }
            Change::Deleted { last, .. } => {
                self.nodes.remove(last.name());
                Some(NodeChange::Deleted(last.name().into()))
            }
            Change::Undecodable(object) if object.deleted => {
                self.unreadable.remove(&object.key);
                None
            }
            // One that could be decoded once is known by that state.
            Change::Undecodable(object) if !self.nodes.contains_key(&*object.key.name) => {
                tracing::warn!(
                    node = %object.key, error = %object.error,
                    "cannot read Node; no route is deleted until it can be read or is gone"
                );
                self.unreadable.insert(object.key.clone());
                None
            }
            Change::Undecodable(_) | Change::Synced | Change::Closed(_) => None,
        }
    }

    /// Takes in a change of a NodeNetworkConfig.
    pub(super) fn blocks(&mut self, change: Change<NodeBlocks>) -> Option<NodeChange> {
        match self.blocks.apply(change)? {
            BlockChange::All => Some(NodeChange::All),
            BlockChange::Of(name) if self.nodes.contains_key(&name) => {
                Some(NodeChange::Applied(name))
            }
            BlockChange::Of(_) => None,
        }
    }

    /// The number of nodes that cannot be decoded: they are missing, so their ranges look unused.
    pub(super) fn unreadable(&self) -> usize {
        self.unreadable.len()
    }

    /// Every node, as routes depend on it.
    pub(super) fn list(&self) -> impl Iterator<Item = Node> {
        self.nodes.values().map(|node| self.project(node))
    }

    /// A node, as routes depend on it.
    pub(super) fn get(&self, name: &str) -> Option<Node> {
        self.nodes.get(name).map(|node| self.project(node))
    }

    pub(super) fn uid(&self, name: &str) -> Option<&str> {
        self.nodes.get(name).map(|node| node.uid())
    }

    fn project(&self, node: &RouteNode) -> Node {
        let mut projected = node.to_node(&*self.parts.provider, &self.parts.capabilities);
        projected.blocks = self.blocks.of(node.name()).blocks(node.uid());
        // In node mode a node gets no route to itself.
        projected.excluded |= self.parts.own_node.as_deref() == Some(node.name());
        projected
    }
}
