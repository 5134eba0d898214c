//! Assignment of pod CIDRs to nodes, as kube-controller-manager does it, but claimed first: two
//! controllers that both believe they are the leader cannot give one CIDR to two nodes.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weft_model::{IpFamily, Moment};

use super::{
    Allocator, Notice, Plan, View, Write,
    object::{Claim, ClaimState, Holder, IpPool, Node, PoolSource, WallTime},
    space::Space,
};
use crate::{PoolName, Precondition, Uid};

/// A range from which nodes get their pod CIDRs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClusterCidr {
    /// The cluster's range.
    pub range: IpNet,
    /// Prefix length of a node's CIDR.
    pub node_prefix: u8,
}

impl Allocator {
    /// Claims a CIDR of each family for every node without one, assigns it to the node in a later
    /// plan, and frees the claims of nodes that are gone. A node's CIDRs never change, so a claim
    /// that is not the CIDR of its node never will be.
    ///
    /// A Node that is deleted and registered again under its name gets its former CIDRs back for as
    /// long as they are claimed: its pods may still be running. The claims say whose they are, so a
    /// restart changes nothing about that.
    ///
    /// A node is gone when its Node was absent for the grace period and its NodeNetworkConfig,
    /// which publishes addresses of the CIDR until then, is gone as well.
    ///
    /// Shards are those of the pool of this name; it must not be the name of an IPPool.
    pub fn plan_node_cidrs(
        &mut self,
        view: &View,
        name: &PoolName,
        cluster: &[ClusterCidr],
        now: Moment,
        wall: WallTime,
    ) -> Plan {
        let mut plan = Plan::default();
        if !view.complete {
            return plan;
        }
        self.note_absent(view, now);
        let ranges: Vec<IpNet> = cluster.iter().map(|cidr| cidr.range).collect();
        let pool = cidr_pool(name, cluster, &ranges);
        let shards = view.shards.values().filter(|shard| shard.pool == *name);
        let mut space = Space::new(&pool, &ranges, &[], shards.cloned(), wall);
        let adopting = adopt(view, &mut space, &mut plan);
        let (mut owned, heirs) = self.settle_cidrs(view, &mut space, now);
        let families: BTreeSet<IpFamily> = ranges
            .iter()
            .map(|range| IpFamily::of(range.addr()))
            .collect();
        // Moved claims are assigned once the move is written.
        let waiting = |node: &&Node| node.pod_cidrs.is_empty() && !heirs.contains(&node.uid);
        for node in view.nodes.values().filter(waiting) {
            let claimed = owned.remove(&node.uid).unwrap_or_default();
            serve(node, claimed, &families, adopting, &mut space, &mut plan);
        }
        let shards = space.into_drafts().map(Write::from);
        plan.writes.splice(0..0, shards);
        plan
    }

    /// Frees the claims that have ended, and moves those of former Nodes to the Nodes of their
    /// names. Returns the others by Node, and the Nodes that claims are moved to.
    fn settle_cidrs(
        &self,
        view: &View,
        space: &mut Space<'_>,
        now: Moment,
    ) -> (BTreeMap<Uid, Vec<IpNet>>, BTreeSet<Uid>) {
        let mut owned: BTreeMap<Uid, Vec<IpNet>> = BTreeMap::new();
        let mut heirs = BTreeSet::new();
        let held: Vec<(IpNet, Claim)> = space
            .claims()
            .filter(|(_, claim)| claim.state == ClaimState::Held)
            .map(|(net, claim)| (net, claim.clone()))
            .collect();
        for (net, claim) in held {
            let node = view.nodes.get(&claim.holder.node);
            match node {
                Some(node) if node.uid == claim.holder.node_uid => {
                    if is_beside(node, net) {
                        space.free(net, None);
                    } else {
                        owned.entry(node.uid.clone()).or_default().push(net);
                    }
                }
                Some(node) if !is_beside(node, net) => {
                    space.pass_on(net, &holder(node));
                    heirs.insert(node.uid.clone());
                }
                _ => {
                    let gone = self.is_gone(&claim.holder.node_uid, now);
                    if gone && !is_published(view, net, &claim.holder) {
                        space.free(net, Some(&claim.holder));
                    }
                }
            }
        }
        (owned, heirs)
    }
}

/// True if addresses of a CIDR are in use or may be: its node's config still exists.
fn is_published(view: &View, cidr: IpNet, holder: &Holder) -> bool {
    view.configs.values().any(|config| {
        let mut nets = config
            .status
            .entries()
            .filter_map(|(_, entry)| entry.net().ok());
        config.owner.as_ref() == Some(&holder.node_uid)
            || nets.any(|net| cidr.contains(&net) || net.contains(&cidr))
    })
}

fn serve(
    node: &Node,
    mut claimed: Vec<IpNet>,
    families: &BTreeSet<IpFamily>,
    adopting: bool,
    space: &mut Space<'_>,
    plan: &mut Plan,
) {
    let has = |family: IpFamily| claimed.iter().any(|net| IpFamily::of(net.addr()) == family);
    let lacking: Vec<IpFamily> = families
        .iter()
        .copied()
        .filter(|family| !has(*family))
        .collect();
    if lacking.is_empty() {
        claimed.sort();
        claimed.dedup_by_key(|net| IpFamily::of(net.addr()));
        plan.writes.push(Write::PodCidrs {
            name: node.name.clone(),
            precondition: Precondition {
                uid: node.uid.clone(),
                version: node.version.clone(),
            },
            cidrs: claimed,
        });
        return;
    }
    if adopting {
        return;
    }
    for family in lacking {
        if space.claim_block(family, &holder(node), |_| 0).is_none() {
            plan.notices.push(Notice::NoCidr(node.name.clone()));
        }
    }
}

fn holder(node: &Node) -> Holder {
    Holder {
        node: node.name.clone(),
        node_uid: node.uid.clone(),
        config: node.uid.clone(),
    }
}

/// True if a node has CIDRs, and none of them in a block.
fn is_beside(node: &Node, block: IpNet) -> bool {
    let touches = |cidr: &IpNet| cidr.contains(&block) || block.contains(cidr);
    !node.pod_cidrs.is_empty() && !node.pod_cidrs.iter().any(touches)
}

/// Claims CIDRs that nodes have without a claim. Returns true if there were any.
fn adopt(view: &View, space: &mut Space<'_>, plan: &mut Plan) -> bool {
    let mut adopted = false;
    for node in view.nodes.values() {
        for cidr in &node.pod_cidrs {
            let Some(blocks) = space.covered(*cidr) else {
                plan.notices
                    .push(Notice::HugeCidr(node.name.clone(), *cidr));
                adopted = true;
                continue;
            };
            for block in blocks {
                let held = space
                    .claim_at(block)
                    .is_some_and(|claim| claim.state == ClaimState::Held);
                if held {
                    continue;
                }
                let claim = Claim {
                    id: format!("{}-{block}", node.uid).into(),
                    holder: holder(node),
                    version: 0,
                    state: ClaimState::Held,
                };
                adopted |= space.adopt(block, claim);
            }
        }
    }
    adopted
}

/// The pool in which pod CIDRs are claimed.
pub(crate) fn cidr_pool(name: &PoolName, cluster: &[ClusterCidr], ranges: &[IpNet]) -> IpPool {
    let prefix = |family: IpFamily| {
        let mut cidrs = cluster.iter();
        let cidr = cidrs.find(|cidr| IpFamily::of(cidr.range.addr()) == family);
        cidr.map_or(family.width(), |cidr| cidr.node_prefix)
    };
    IpPool {
        block_v4: prefix(IpFamily::V4),
        block_v6: prefix(IpFamily::V6),
        ..IpPool::new(name.as_str(), PoolSource::Ranges(ranges.to_vec()))
    }
}
