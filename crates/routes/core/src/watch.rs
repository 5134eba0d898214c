use std::collections::BTreeMap;

use weft_model::{IpFamily, SharedStr};

use crate::{Blocks, NextHopKind, Node, NodeAddress, NodeList, Policy};

/// The nodes as they are reported, and which reports matter.
///
/// A node counts once it is *ready to route*: it has a range, and an address or identifier to
/// send packets to. Until then its changes start nothing, so the events of a joining node do not
/// use up the time of the one that matters.
#[derive(Clone, Debug, Default)]
pub struct NodeWatch {
    list: NodeList,
}

impl NodeWatch {
    /// The nodes that are known.
    pub fn list(&self) -> &NodeList {
        &self.list
    }

    /// To note what was written about a node.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Node> {
        self.list.nodes.get_mut(name)
    }

    /// A node was added or changed. Returns whether a pass is needed.
    pub fn apply(&mut self, node: Node, policy: &Policy) -> bool {
        let name = node.name.clone();
        let needed = is_relevant(self.list.nodes.get(&name), Some(&node), policy);
        self.list.nodes.insert(name, node);
        needed
    }

    /// A node was deleted. Returns whether a pass is needed: always, because the node may have
    /// been ready once, and a pass without mutations costs no call.
    pub fn delete(&mut self, name: &str) -> bool {
        self.list.nodes.remove(name).is_some()
    }

    /// Whether there are nodes of which nothing can be read. Returns whether that is news.
    pub fn set_unreadable(&mut self, count: usize) -> bool {
        let any = count > 0;
        std::mem::replace(&mut self.list.unreadable, any) != any
    }

    /// All nodes were listed, again or for the first time; who is missing was deleted meanwhile.
    pub fn relist(&mut self, nodes: impl IntoIterator<Item = Node>, policy: &Policy) -> bool {
        let fresh: BTreeMap<SharedStr, Node> = nodes
            .into_iter()
            .map(|node| (node.name.clone(), node))
            .collect();
        let gone = self.list.nodes.keys().any(|name| !fresh.contains_key(name));
        let changed = fresh
            .iter()
            .any(|(name, node)| is_relevant(self.list.nodes.get(name), Some(node), policy));
        let first = !self.list.complete;
        self.list = NodeList {
            nodes: fresh,
            complete: true,
            unreadable: self.list.unreadable,
        };
        first || gone || changed
    }
}

fn is_relevant(old: Option<&Node>, new: Option<&Node>, policy: &Policy) -> bool {
    let ready = |node: Option<&Node>| node.is_some_and(|node| is_ready(node, policy));
    (ready(old) || ready(new))
        && old.map(|old| facts(old, policy)) != new.map(|new| facts(new, policy))
}

/// Whether there is enough to decide something about the node. Bad input counts: it has to be
/// reported.
fn is_ready(node: &Node, policy: &Policy) -> bool {
    let reachable = |family: Option<IpFamily>| match policy.next_hop {
        NextHopKind::Address => family.is_none_or(|family| node.internal_ip(family).is_some()),
        NextHopKind::Instance => node.provider_id.is_some(),
    };
    let known = !policy.needs_machine || node.provider_id.is_some();
    known && !node.excluded && node.ranges().any(|cidr| reachable(cidr.family()))
}

type Facts<'a> = (
    (&'a SharedStr, bool, Option<&'a SharedStr>),
    (Vec<&'a str>, bool),
    Vec<&'a NodeAddress>,
    (&'a Option<Vec<std::net::IpAddr>>, &'a [SharedStr]),
);

/// What a route can depend on. The order of addresses and ranges means nothing, so a kubelet that
/// reports them in another order causes no work.
fn facts<'a>(node: &'a Node, policy: &Policy) -> Facts<'a> {
    let by_id = policy.watch_provider_id || policy.next_hop == NextHopKind::Instance;
    let provider_id = node.provider_id.as_ref().filter(|_| by_id);
    let mut cidrs: Vec<&str> = node.ranges().map(crate::Cidr::text).collect();
    cidrs.sort_unstable();
    let mut addresses: Vec<&NodeAddress> = node.addresses.iter().collect();
    // The first internal address of a family is the next hop: a stable sort keeps which it is.
    addresses.sort_by_key(|address| (address.kind, address.ip().map(IpFamily::of)));
    (
        (&node.uid, node.excluded, provider_id),
        (cidrs, node.blocks == Blocks::Unknown),
        addresses,
        (&node.instance_addresses, &node.triggers),
    )
}
