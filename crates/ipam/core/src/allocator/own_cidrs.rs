//! Pools whose addresses are the nodes' own pod CIDRs.

use std::collections::BTreeMap;

use ipnet::IpNet;
use weft_model::IpFamily;

use super::{
    Notice, Plan, View,
    object::{Claim, ClaimState, Holder, IpPool, Node, PoolSource, WallTime, first_usable, net},
    reconcile::{Client, Supply, grant},
    space::{ClaimChange, Space},
    status::{Published, write_status},
};
use crate::{NodeName, PoolName, range::number};

/// An owner of addresses other than the node whose CIDR contains them.
#[derive(Clone, Copy, Debug)]
enum Owner<'a> {
    /// A pool, with one of its ranges.
    Pool(&'a PoolName),
    /// A Node, with its pod CIDR.
    Node(&'a NodeName),
    /// A config, by publishing them.
    Config(&'a NodeName),
}

/// Networks with all their owners. Of two networks that overlap, one contains the other.
struct Taken<'a>(BTreeMap<IpNet, Vec<Owner<'a>>>);

impl<'a> Taken<'a> {
    fn read(view: &'a View) -> Self {
        let mut taken: BTreeMap<IpNet, Vec<Owner<'_>>> = BTreeMap::new();
        let mut add = |net: IpNet, owner| taken.entry(net.trunc()).or_default().push(owner);
        for pool in view.pools.values() {
            if let PoolSource::Ranges(ranges) = &pool.source {
                for range in ranges {
                    add(*range, Owner::Pool(&pool.name));
                }
            }
        }
        for node in view.nodes.values() {
            for cidr in &node.pod_cidrs {
                add(*cidr, Owner::Node(&node.name));
            }
        }
        for config in view.configs.values() {
            for (_, entry) in config.status.entries() {
                if let Ok(net) = entry.net() {
                    add(net, Owner::Config(&config.name));
                }
            }
        }
        Self(taken)
    }

    /// Networks that overlap a network, with their owners.
    fn overlapping(&self, net: IpNet) -> impl Iterator<Item = (IpNet, Owner<'a>)> {
        let around = std::iter::successors(net.supernet(), IpNet::supernet);
        let around = around.filter_map(|wider| self.0.get_key_value(&wider.trunc()));
        let inside = self.0.range(net.trunc()..);
        let inside = inside.take_while(move |(other, _)| net.contains(*other));
        let both = around.chain(inside);
        both.flat_map(|(net, owners)| owners.iter().map(|owner| (*net, *owner)))
    }

    /// Parts of a node's CIDRs that may belong to another owner and are not assigned. A config that
    /// still publishes some of it is normal after a Node was removed and its CIDR was given to the
    /// next.
    fn by_others(&self, node: &Node, plan: &mut Plan) -> Vec<IpNet> {
        let mut taken = Vec::new();
        for cidr in &node.pod_cidrs {
            for (other, owner) in self.overlapping(*cidr) {
                let named = match owner {
                    Owner::Pool(pool) => Some(format!("pool {pool}")),
                    Owner::Node(name) if *name == node.name => continue,
                    Owner::Node(name) => Some(format!("node {name}")),
                    Owner::Config(name) if *name == node.name => continue,
                    Owner::Config(_) => None,
                };
                if let Some(owner) = named {
                    plan.notices.push(Notice::Overlap {
                        node: node.name.clone(),
                        cidr: *cidr,
                        other,
                        owner,
                    });
                }
                taken.push(if other.contains(cidr) { *cidr } else { other });
            }
        }
        taken
    }
}

/// Plans everything about a pool of nodes' own CIDRs. No other node gets the addresses, so the
/// status itself is the claim.
pub(super) fn plan_own_cidrs(view: &View, pool: &IpPool, plan: &mut Plan) {
    let taken = Taken::read(view);
    for config in view.configs.values() {
        let Some(node) = view.node_of(config).filter(|_| !config.deleting) else {
            continue;
        };
        let serves = view
            .pool_of(node)
            .is_some_and(|serving| serving.name == pool.name);
        if !serves || pool.disabled || node.pod_cidrs.is_empty() {
            continue;
        }
        let holder = Holder {
            node: node.name.clone(),
            node_uid: node.uid.clone(),
            config: config.uid.clone(),
        };
        let published = Published::read(config, &pool.name);
        let mut reserved = own_reserved(pool, &node.pod_cidrs);
        reserved.extend(taken.by_others(node, plan));
        reserved.sort();
        reserved.dedup();
        // Names grow with the status, and differ from those of a recreated config.
        let sequence = WallTime((published.age() + 1) << 20);
        let uid: String = config.uid.as_str().chars().take(8).collect();
        let label = format!("{}-{uid}", pool.name);
        let mut space = Space::new(pool, &node.pod_cidrs, &reserved, [], sequence).labelled(label);
        for (name, net) in &published.entries {
            let claim = Claim {
                id: name.clone(),
                holder: holder.clone(),
                version: 0,
                state: ClaimState::Held,
            };
            space.adopt(*net, claim);
        }
        let mut clients = [Client {
            config,
            holder,
            published,
            pending: Vec::new(),
            claiming: false,
            missing: 0,
        }];
        grant(&mut clients, pool, &mut space, Supply::Sufficient, plan);
        let [mut client] = clients;
        let changes = space.into_drafts().flat_map(|draft| draft.changes);
        client.pending = changes
            .filter_map(|change| match change {
                ClaimChange::Claimed(net, claim) => Some((net, claim)),
                _ => None,
            })
            .collect();
        plan.writes
            .extend(write_status(&client, pool, &node.pod_cidrs));
    }
}

/// The network address, the gateway, and for IPv4 the broadcast address.
fn own_reserved(pool: &IpPool, ranges: &[IpNet]) -> Vec<IpNet> {
    let mut reserved = pool.reserved.clone();
    for range in ranges {
        let family = IpFamily::of(range.addr());
        let single = |address| net(number(address), family.width(), family);
        reserved.extend([single(range.network()), single(first_usable(*range))]);
        reserved.push(single(pool.gateway(*range)));
        if family == IpFamily::V4 {
            reserved.push(single(range.broadcast()));
        }
    }
    reserved
}
