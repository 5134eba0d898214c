//! Node cache that decides which node changes need a pass.

use std::collections::BTreeMap;

use weft_model::{IpFamily, SharedStr};

use crate::{Blocks, NextHopKind, Node, NodeAddress, NodeList, Policy};

/// The nodes of the cluster, and the rules for which of their changes need a pass.
///
/// A node counts once it is *ready to route*: it has a range, and an address or identifier to send
/// packets to. Changes before that start no pass, so the events of a joining node do not use up the
/// minimum interval before the one that matters.
#[derive(Clone, Debug, Default)]
pub struct NodeWatch {
    list: NodeList,
}

impl NodeWatch {
    /// The nodes as last reported.
    pub fn list(&self) -> &NodeList {
        &self.list
    }

    /// A node, to record a condition that was written.
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

    /// Records whether there are nodes that cannot be decoded. Returns whether that changed.
    pub fn set_unreadable(&mut self, count: usize) -> bool {
        let any = count > 0;
        std::mem::replace(&mut self.list.unreadable, any) != any
    }

    /// Replaces all nodes by those of a list. Returns whether a pass is needed.
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

/// True if enough is known to plan for the node. Bad input counts as known: it has to be reported.
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

/// The fields that routes depend on. The order of addresses and ranges means nothing, so a kubelet
/// that reports them in another order causes no work.
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
