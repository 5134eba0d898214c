//! The nodes and their blocks as the watches deliver them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use weft_model::ObjectKey;
use weft_providers::{Capabilities, SharedProvider};
use weft_routes::Node;
use weft_runtime::Change;

use crate::{
    blocks::{BlockChange, BlockList, NodeBlocks},
    views::RouteNode,
};

/// Every node as last delivered, and what is known about its blocks.
pub(super) struct NodeFeed {
    provider: SharedProvider,
    capabilities: Capabilities,
    /// Name of this node in node mode, where a node gets no route to itself.
    own_node: Option<String>,
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
    pub(super) fn new(
        provider: SharedProvider,
        own_node: Option<String>,
        blocks: BlockList,
    ) -> Self {
        Self {
            capabilities: provider.capabilities(),
            provider,
            own_node,
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
        let mut projected = node.to_node(&*self.provider, &self.capabilities);
        projected.blocks = self.blocks.of(node.name()).blocks(node.uid());
        projected.own = self.own_node.as_deref() == Some(node.name());
        projected.excluded |= projected.own;
        projected
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use futures::future::BoxFuture;
    use serde_json::{Value, json};
    use weft_model::SharedStr;
    use weft_providers::Provider;
    use weft_routes::{Answer, Blocks, Route, Step};
    use weft_runtime::{StopReason, UndecodableObject};

    use super::*;

    /// A provider that counts the nodes whose machine is looked up: those that are examined.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Provider for Counting {
        fn name(&self) -> &'static str {
            "counting"
        }
        fn capabilities(&self) -> Capabilities {
            Capabilities::default()
        }
        fn instance(&self, provider_id: &str) -> Option<SharedStr> {
            self.0.fetch_add(1, Relaxed);
            Some(SharedStr::new(provider_id))
        }
        fn list(&self) -> BoxFuture<'_, Answer<Vec<Route>>> {
            Box::pin(async { Answer::ok(Vec::new()) })
        }
        fn apply<'a>(&'a self, _step: &'a Step) -> BoxFuture<'a, Answer<()>> {
            Box::pin(async { Answer::ok(()) })
        }
    }

    fn feed(blocks: BlockList) -> (NodeFeed, Arc<Counting>) {
        let provider = Arc::new(Counting::default());
        let feed = NodeFeed::new(provider.clone(), None, blocks);
        (feed, provider)
    }

    fn node(number: usize, ready: &str, address: &str) -> Arc<RouteNode> {
        let node = json!({
            "metadata": {"name": format!("node-{number}"), "uid": format!("uid-{number}"),
                "resourceVersion": ready},
            "spec": {"podCIDRs": ["10.244.1.0/24"], "providerID": format!("machine-{number}")},
            "status": {
                "addresses": [{"type": "InternalIP", "address": address}],
                "conditions": [{"type": "Ready", "status": "True", "reason": ready}],
            },
        });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn added(new: Arc<RouteNode>) -> Change<RouteNode> {
        Change::Added {
            new,
            initial: false,
        }
    }

    fn updated<K>(old: Arc<K>, new: Arc<K>) -> Change<K> {
        Change::Updated {
            old,
            new,
            resync: false,
        }
    }

    #[test]
    fn a_heartbeat_among_thousands_of_nodes_examines_none_of_them() {
        let (mut feed, provider) = feed(BlockList::Off);
        for number in 0..5_000 {
            let change = feed.node(added(node(number, "0", "10.0.0.1")));
            assert!(change.is_some());
        }
        let beat = updated(node(7, "0", "10.0.0.1"), node(7, "1", "10.0.0.1"));
        assert_eq!(feed.node(beat), None);
        assert_eq!(provider.0.load(Relaxed), 0);
        let moved = updated(node(7, "1", "10.0.0.1"), node(7, "2", "10.0.0.2"));
        let applied = NodeChange::Applied("node-7".into());
        assert_eq!(feed.node(moved), Some(applied));
        assert!(feed.get("node-7").is_some());
        assert_eq!(provider.0.load(Relaxed), 1, "only the node that changed");
    }

    fn unreadable(deleted: bool) -> Change<RouteNode> {
        Change::Undecodable(Arc::new(UndecodableObject {
            key: ObjectKey::cluster("node-1"),
            resource_version: "1".into(),
            error: "a number where a list should be".to_owned(),
            deleted,
        }))
    }

    #[test]
    fn a_node_is_unreadable_until_it_can_be_read_or_is_gone() {
        let (mut feed, _) = feed(BlockList::Off);
        feed.node(unreadable(false));
        assert_eq!(feed.unreadable(), 1);
        feed.node(unreadable(true));
        assert_eq!(feed.unreadable(), 0);
        feed.node(unreadable(false));
        feed.node(added(node(1, "2", "10.0.0.1")));
        assert_eq!(feed.unreadable(), 0);
        feed.node(unreadable(false));
        assert_eq!(feed.unreadable(), 0, "known by the state before");
    }

    fn blocks(request: u32, block: &str) -> Arc<NodeBlocks> {
        let object: Value = json!({
            "metadata": {"name": "node-1", "namespace": "kube-system"},
            "spec": {"requestedIPCount": request},
            "status": {"networkContainers": [{"ipAssignments": [{"ip": block}]}]},
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn blocks_count_from_the_first_complete_list_until_the_watch_ends() {
        let (mut feed, _) = feed(BlockList::default());
        feed.node(added(node(1, "0", "10.0.0.1")));
        let held = |feed: &NodeFeed| feed.get("node-1").unwrap().blocks;
        let first = Change::Added {
            new: blocks(16, "10.244.9.0/28"),
            initial: true,
        };
        assert_eq!(feed.blocks(first), None, "a part of a list");
        assert_eq!(held(&feed), Blocks::Unknown);
        assert_eq!(feed.blocks(Change::Synced), Some(NodeChange::All));
        let known = |block: &str| Blocks::known([block.parse().unwrap()]);
        assert_eq!(held(&feed), known("10.244.9.0/28"));
        let asked = updated(blocks(16, "10.244.9.0/28"), blocks(32, "10.244.9.0/28"));
        assert_eq!(feed.blocks(asked), None, "a request is not a block");
        let moved = updated(blocks(32, "10.244.9.0/28"), blocks(32, "10.244.8.0/28"));
        let applied = NodeChange::Applied("node-1".into());
        assert_eq!(feed.blocks(moved), Some(applied));
        assert_eq!(held(&feed), known("10.244.8.0/28"));
        let closed = Change::Closed(StopReason::KindRemoved);
        assert_eq!(feed.blocks(closed), Some(NodeChange::All));
        assert_eq!(held(&feed), Blocks::Unknown);
    }
}
