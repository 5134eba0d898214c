//! Nodes that come and go, and the claims they leave.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weft_model::Moment;

use super::{
    Allocator, Notice, Plan, View, Write,
    object::{Claim, ClaimState, Holder, IpPool, PoolSource},
    reconcile::holders,
    space::Space,
    status::{Published, emptied},
};
use crate::{NodeConfig, Uid, scaling::Scaler};

impl Allocator {
    /// Configs of nodes that came, and of nodes that went.
    pub(super) fn node_life(&self, view: &View, now: Moment, plan: &mut Plan) {
        for node in view.nodes.values() {
            let Some(pool) = view.pool_of(node) else {
                plan.notices.push(Notice::NoPool(node.name.clone()));
                continue;
            };
            if !view.configs.contains_key(&node.name) {
                let (scaler, _) = Scaler::read(Some(&pool.scaler));
                plan.writes.push(Write::CreateConfig {
                    node: node.name.clone(),
                    owner: node.uid.clone(),
                    requested: i64::from(scaler.batch()),
                });
            }
        }
        for config in view
            .configs
            .values()
            .filter(|config| view.node_of(config).is_none())
        {
            let gone = config
                .owner
                .as_ref()
                .is_none_or(|owner| self.is_gone(owner, now));
            if !gone {
                continue;
            }
            if !config.deleting {
                plan.writes.push(Write::DeleteConfig {
                    name: config.name.clone(),
                    precondition: config.precondition(),
                });
            } else if publishes_or_may(view, config) {
                plan.writes.push(Write::Status {
                    name: config.name.clone(),
                    precondition: config.precondition(),
                    status: emptied(config, &claimed_ranges(view, config)),
                });
            } else if config.finalized && !has_claims(view, &config.uid) {
                plan.writes.push(Write::RemoveFinalizer {
                    name: config.name.clone(),
                    precondition: config.precondition(),
                });
            }
        }
    }

    /// Claims of configs that are not there, whose nodes have been absent for long enough.
    pub(super) fn free_orphans(&self, view: &View, space: &mut Space<'_>, now: Moment) {
        let known: BTreeMap<&Uid, &NodeConfig> = view
            .configs
            .values()
            .map(|config| (&config.uid, config))
            .collect();
        let orphan = |claim: &Claim| {
            claim.state == ClaimState::Held
                && !known.contains_key(&claim.holder.config)
                && (self.is_gone(&claim.holder.node_uid, now) || was_replaced(view, &claim.holder))
        };
        let orphans: Vec<(IpNet, Holder)> = space
            .claims()
            .filter(|(_, claim)| orphan(claim))
            .map(|(net, claim)| (net, claim.holder.clone()))
            .collect();
        for (net, holder) in orphans {
            space.free(net, Some(&holder));
        }
        // Configs of nodes that are gone publish nothing any more.
        let emptied: BTreeSet<&Uid> = view
            .configs
            .values()
            .filter(|config| config.deleting && view.node_of(config).is_none())
            .map(|config| &config.uid)
            .collect();
        let passed: Vec<IpNet> = space
            .claims()
            .filter(|(net, claim)| {
                let config = known.get(&claim.holder.config);
                claim.state == ClaimState::Held
                    && emptied.contains(&claim.holder.config)
                    && config.is_some_and(|config| has_passed(config, claim, *net, space))
            })
            .map(|(net, _)| net)
            .collect();
        for net in passed {
            space.free(net, None);
        }
    }
}

/// Whether the node's config was made again while the Node stayed.
fn was_replaced(view: &View, holder: &Holder) -> bool {
    let node = view
        .nodes
        .get(&holder.node)
        .filter(|node| node.uid == holder.node_uid);
    let config = view.configs.get(&holder.node);
    node.is_some() && config.is_some_and(|config| config.uid != holder.config)
}

/// Whether it is certain that a claim is not published and never will be.
fn has_passed(config: &NodeConfig, claim: &Claim, net: IpNet, space: &Space<'_>) -> bool {
    let Some(range) = space.range_of(net) else {
        return false;
    };
    let published = Published::read(config, &space.pool().name);
    !published.names.contains(&claim.id) && published.version(range) > claim.version
}

/// Where claims of a config lie, with the version of each.
fn claimed_ranges<'a>(view: &'a View, config: &NodeConfig) -> Vec<(&'a IpPool, IpNet, i64)> {
    let mut found = Vec::new();
    for shard in view.shards.values() {
        let Some(pool) = view.pools.get(&shard.pool) else {
            continue;
        };
        let PoolSource::Ranges(ranges) = &pool.source else {
            continue;
        };
        let Some(range) = ranges.iter().find(|range| range.contains(&shard.range)) else {
            continue;
        };
        for (_, claim) in shard.claims(pool.block_prefix(*range)) {
            if claim.state == ClaimState::Held && claim.holder.config == config.uid {
                found.push((pool, *range, claim.version));
            }
        }
    }
    found
}

/// Whether anything is published, or could be by whoever has not seen that the node is gone.
fn publishes_or_may(view: &View, config: &NodeConfig) -> bool {
    config.status.entries().next().is_some()
        || claimed_ranges(view, config)
            .iter()
            .any(|(pool, range, version)| {
                Published::read(config, &pool.name).version(*range) <= *version
            })
}

fn has_claims(view: &View, config: &Uid) -> bool {
    let blocks = view.shards.values().flat_map(|shard| shard.blocks.values());
    blocks
        .flat_map(holders)
        .any(|holder| holder.config == *config)
}
