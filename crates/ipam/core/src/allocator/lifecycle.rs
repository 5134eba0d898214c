//! NodeNetworkConfigs of joining and leaving nodes, and the claims of nodes that are gone.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weft_model::Moment;

use super::{
    Allocator, Notice, Plan, View, Write,
    object::{Claim, ClaimState, Holder, IpPool, Node, PoolSource},
    reconcile::claims,
    space::Space,
    status::{Published, emptied},
};
use crate::{GrantName, NodeConfig, Uid, scaling::Scaler};

impl Allocator {
    /// Creates, repairs and deletes NodeNetworkConfigs as Nodes come and go.
    pub(super) fn plan_configs(&self, view: &View, now: Moment, plan: &mut Plan) {
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
        for config in view.configs.values() {
            match view.nodes.get(&config.name) {
                Some(node) if config.owner.as_ref().is_none_or(|owner| *owner == node.uid) => {
                    keep_config(view, config, node, plan);
                }
                Some(node) if passes_to(view, config, node) => replace_config(config, plan),
                _ if self.is_gone(tenant(config), now) => end_config(view, config, plan),
                _ => {}
            }
        }
    }

    /// Frees claims whose config does not exist and whose Node has been absent for the grace
    /// period, unless they pass to the Node that has its name now.
    pub(super) fn free_orphans(&self, view: &View, space: &mut Space<'_>, now: Moment) {
        let known: BTreeMap<&Uid, &NodeConfig> = view
            .configs
            .values()
            .map(|config| (&config.uid, config))
            .collect();
        let has_heir = |holder: &Holder| {
            let node = view.nodes.get(&holder.node);
            node.is_some_and(|node| view.pool_of(node).is_some())
        };
        let orphan = |claim: &Claim| {
            claim.state == ClaimState::Held
                && !known.contains_key(&claim.holder.config)
                && self.is_gone(&claim.holder.node_uid, now)
                && !has_heir(&claim.holder)
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

/// The owner of a config: its Node, or the config itself if it has no owner.
pub(super) fn tenant(config: &NodeConfig) -> &Uid {
    config.owner.as_ref().unwrap_or(&config.uid)
}

/// Repairs a config whose Node exists.
fn keep_config(view: &View, config: &NodeConfig, node: &Node, plan: &mut Plan) {
    if config.deleting {
        plan.notices.push(Notice::Deleted(config.name.clone()));
        // The claims stay and pass to the config that is created next.
        if config.finalized && all_claimed(view, config) {
            plan.writes.push(Write::RemoveConfigFinalizer {
                name: config.name.clone(),
                precondition: config.precondition(),
            });
        }
    } else if config.owner.is_none() {
        plan.notices.push(Notice::Ownerless(config.name.clone()));
        plan.writes.push(Write::SetConfigOwner {
            name: config.name.clone(),
            precondition: config.precondition(),
            owner: node.uid.clone(),
        });
    }
}

/// True if a Node that was registered again can have what the config of the former Node of its name
/// publishes: addresses of pools are claimed, and pass to its own config with the claims; all others
/// are in its pod CIDRs. If they are not, because the Node has another range than before, no other
/// node may get them before the grace period is over.
fn passes_to(view: &View, config: &NodeConfig, node: &Node) -> bool {
    let own = |net: IpNet| node.pod_cidrs.iter().any(|cidr| cidr.contains(&net));
    let pooled = |net| {
        let mut pools = view.pools.values();
        pools.any(|pool| pool.range_of(net).is_some())
    };
    let mut entries = config.status.entries();
    let placed = entries.all(|(_, entry)| entry.net().is_ok_and(|net| pooled(net) || own(net)));
    placed && all_claimed(view, config)
}

/// Makes room for the config of a Node that was registered again. The config of the former Node is
/// not kept, because requests of that Node must not apply to this one.
fn replace_config(config: &NodeConfig, plan: &mut Plan) {
    let (name, precondition) = (config.name.clone(), config.precondition());
    if !config.deleting {
        plan.writes.push(Write::DeleteConfig { name, precondition });
    } else if config.finalized {
        plan.writes
            .push(Write::RemoveConfigFinalizer { name, precondition });
    }
}

/// Removes everything from a config whose Node is gone, and lets it be deleted.
fn end_config(view: &View, config: &NodeConfig, plan: &mut Plan) {
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
    } else if config.finalized && claimed_ranges(view, config).is_empty() {
        plan.writes.push(Write::RemoveConfigFinalizer {
            name: config.name.clone(),
            precondition: config.precondition(),
        });
    }
}

/// Moves the claims of deleted configs to those that were recreated for the same Nodes, or for Nodes
/// that were registered again under the same names: pods there go on using the addresses. Returns the UIDs of the new holders: they publish the claims under
/// new names only once the move is written.
pub(super) fn move_claims<'a>(view: &'a View, space: &mut Space<'_>) -> BTreeSet<&'a Uid> {
    let heir = |claim: &Claim| {
        let holder = &claim.holder;
        let config = view.configs.get(&holder.node)?;
        view.node_of(config)?;
        let replaced = config.uid != holder.config;
        (claim.state == ClaimState::Held && replaced && !config.deleting).then_some(config)
    };
    let moving: Vec<(IpNet, &'a NodeConfig)> = space
        .claims()
        .filter_map(|(net, claim)| Some((net, heir(claim)?)))
        .collect();
    let mut heirs = BTreeSet::new();
    for (net, config) in moving {
        heirs.insert(&config.uid);
        let Some(range) = space.range_of(net) else {
            continue;
        };
        let published = Published::read(config, &space.pool().name);
        let mut entries = published.entries.iter();
        let entry = entries.find(|(_, other)| *other == net);
        let holder = Holder {
            node: config.name.clone(),
            node_uid: tenant(config).clone(),
            config: config.uid.clone(),
        };
        space.hand_over(
            net,
            (&holder, config.precondition()),
            entry.map(|(name, _)| name),
            published.version(range),
        );
    }
    heirs
}

/// True if everything that a config publishes of pools with ranges is claimed for it.
fn all_claimed(view: &View, config: &NodeConfig) -> bool {
    let blocks = view.shards.values().flat_map(|shard| shard.blocks.values());
    let claimed: BTreeSet<&GrantName> = blocks
        .flat_map(claims)
        .filter(|claim| claim.holder.config == config.uid)
        .map(|claim| &claim.id)
        .collect();
    config.status.entries().all(|(_, entry)| {
        let net = entry.net();
        let mut pools = view.pools.values();
        claimed.contains(&entry.name)
            || !net.is_ok_and(|net| pools.any(|pool| pool.range_of(net).is_some()))
    })
}

/// True if it is certain that a claim is not published and never will be.
fn has_passed(config: &NodeConfig, claim: &Claim, net: IpNet, space: &Space<'_>) -> bool {
    let Some(range) = space.range_of(net) else {
        return false;
    };
    let published = Published::read(config, &space.pool().name);
    !published.names.contains(&claim.id) && published.version(range) > claim.version
}

/// Ranges with claims of a config, with the version of each claim.
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

/// True if the config publishes addresses, or a writer that has not seen that the node is gone
/// could still do so.
fn publishes_or_may(view: &View, config: &NodeConfig) -> bool {
    config.status.entries().next().is_some()
        || claimed_ranges(view, config)
            .iter()
            .any(|(pool, range, version)| {
                Published::read(config, &pool.name).version(*range) <= *version
            })
}
