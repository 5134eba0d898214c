//! Claims, and what follows from them.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weft_model::{IpFamily, Moment};

use super::{
    Allocator, Notice, Plan, View, Write,
    object::{Block, Claim, ClaimState, Holder, IpPool, PoolSource, Wall},
    share::{Need, share},
    space::Space,
    status::{Published, emptied, write_status},
};
use crate::{NodeConfig, Uid, range::address_count, scaling::Scaler};

/// The holders of claims that hold.
pub(super) fn holders(block: &Block) -> Vec<&Holder> {
    let held = |claim: &&Claim| claim.state == ClaimState::Held;
    match block {
        Block::Whole(claim) => Some(claim)
            .filter(held)
            .map(|claim| &claim.holder)
            .into_iter()
            .collect(),
        Block::Split(claims) => claims
            .values()
            .filter(held)
            .map(|claim| &claim.holder)
            .collect(),
    }
}

/// A config of a node that is there, and what it has.
pub(super) struct Client<'a> {
    pub(super) config: &'a NodeConfig,
    pub(super) holder: Holder,
    pub(super) published: Published,
    /// Claimed and about to be published.
    pub(super) pending: Vec<(IpNet, Claim)>,
    /// Whether claims were planned for it: its status waits for them.
    pub(super) claiming: bool,
    /// What it lacks and nobody has.
    pub(super) missing: u64,
}

impl Client<'_> {
    /// How many it may have of each family.
    fn wanted(&self, pool: &IpPool) -> u64 {
        let (scaler, _) = Scaler::read(Some(&pool.scaler));
        let wanted = self
            .config
            .spec
            .requested
            .clamp(0, i64::from(scaler.maximum()));
        u64::try_from(wanted).unwrap_or_default()
    }

    /// How many it has of a family, or is about to get.
    fn has(&self, family: IpFamily) -> u64 {
        let of_family = |net: &IpNet| IpFamily::of(net.addr()) == family;
        let pending = self.pending.iter().filter(|(net, _)| of_family(net));
        let pending: u64 = pending.map(|(net, _)| address_count(*net)).sum();
        self.published.kept(family) + pending
    }

    fn need(&self, family: IpFamily, pool: &IpPool) -> Need {
        let wanted = self.wanted(pool);
        let have = self.has(family);
        let demand = self
            .config
            .spec
            .demand
            .and_then(|demand| u64::try_from(demand).ok());
        let lacking = wanted.saturating_sub(have);
        let pods = demand.unwrap_or(wanted).min(wanted).saturating_sub(have);
        Need {
            node: self.config.name.clone(),
            pods,
            buffer: lacking - pods,
        }
    }
}

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

    /// Everything about a pool with ranges of its own.
    pub(super) fn plan_ranges(
        &self,
        view: &View,
        pool: &IpPool,
        ranges: &[IpNet],
        now: Moment,
        wall: Wall,
        plan: &mut Plan,
    ) {
        let shards = view.shards.values().filter(|shard| shard.pool == pool.name);
        let mut space = Space::new(pool, ranges, &pool.reserved, shards.cloned(), wall);
        self.free_orphans(view, &mut space, now);
        let mut clients = clients(view, pool, &space);
        let mut adopting = false;
        for client in &mut clients {
            adopting |= adopt(client, &mut space, plan);
            settle(client, &mut space);
        }
        // What is published without a claim may be what looks free.
        if !adopting && !pool.disabled {
            grant(
                &mut clients,
                pool,
                &mut space,
                view.exhausted.contains(&pool.name),
                plan,
            );
        }
        let exhausted = is_exhausted(pool, &space, &clients, view.exhausted.contains(&pool.name));
        if exhausted != view.exhausted.contains(&pool.name) {
            plan.writes.push(Write::SubnetState {
                pool: pool.name.clone(),
                exhausted,
            });
        }
        for draft in space.into_drafts() {
            plan.writes.push(Write::Shard {
                shard: draft.shard,
                gone: draft.gone,
                changes: draft.changes,
            });
        }
        for client in clients.iter().filter(|client| !client.claiming) {
            plan.writes.extend(write_status(client, pool, ranges));
        }
    }

    /// Claims of configs that are not there, whose nodes have been absent for long enough.
    fn free_orphans(&self, view: &View, space: &mut Space<'_>, now: Moment) {
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

fn clients<'a>(view: &'a View, pool: &IpPool, space: &Space<'_>) -> Vec<Client<'a>> {
    let mut owned: BTreeMap<&Uid, Vec<(IpNet, Claim)>> = BTreeMap::new();
    for (net, claim) in space
        .claims()
        .filter(|(_, claim)| claim.state == ClaimState::Held)
    {
        owned
            .entry(&claim.holder.config)
            .or_default()
            .push((net, claim.clone()));
    }
    let served = view.configs.values().filter_map(|config| {
        let node = view.node_of(config).filter(|_| !config.deleting)?;
        let serves = view
            .pool_of(node)
            .is_some_and(|serving| serving.name == pool.name);
        serves.then_some((config, node))
    });
    served
        .map(|(config, node)| Client {
            config,
            holder: Holder {
                node: node.name.clone(),
                node_uid: node.uid.clone(),
                config: config.uid.clone(),
            },
            published: Published::read(config, &pool.name),
            pending: owned.remove(&config.uid).unwrap_or_default(),
            claiming: false,
            missing: 0,
        })
        .collect()
}

/// Claims what a node publishes and nobody has claimed. Says whether there was any such thing.
fn adopt(client: &mut Client<'_>, space: &mut Space<'_>, plan: &mut Plan) -> bool {
    let mut adopted = false;
    for (entry, net) in client.published.entries.clone() {
        let held = space
            .claim_at(net)
            .filter(|claim| claim.state == ClaimState::Held);
        match held {
            Some(claim) if claim.holder.config == client.holder.config => {}
            Some(claim) => plan.notices.push(Notice::Conflict {
                config: client.config.name.clone(),
                entry,
                net,
                holder: claim.holder.node.clone(),
            }),
            None => {
                let range = space.range_of(net);
                let version = range.map(|range| client.published.version(range));
                let claim = Claim {
                    id: entry.clone(),
                    holder: client.holder.clone(),
                    version: version.unwrap_or_default() - 1,
                    state: ClaimState::Held,
                };
                if space.adopt(net, claim) {
                    adopted = true;
                } else {
                    plan.notices.push(Notice::Stray {
                        config: client.config.name.clone(),
                        entry,
                        net,
                        pool: space.pool().name.clone(),
                    });
                }
            }
        }
    }
    adopted
}

/// Sorts a node's claims: those that are published, those that are to be, those that never will.
fn settle(client: &mut Client<'_>, space: &mut Space<'_>) {
    for (net, claim) in std::mem::take(&mut client.pending) {
        if client.published.names.contains(&claim.id) {
            continue;
        }
        let Some(range) = space.range_of(net) else {
            continue;
        };
        let version = client.published.version(range);
        // A later version than the node's is what a cache shows that is behind, and then the status
        // will not be written; or somebody set the status back, and then it is put right.
        if claim.version < version {
            space.free(net, None);
        } else {
            client.pending.push((net, claim));
        }
    }
}

/// Makes claims for whoever lacks something.
pub(super) fn grant(
    clients: &mut [Client<'_>],
    pool: &IpPool,
    space: &mut Space<'_>,
    exhausted: bool,
    plan: &mut Plan,
) {
    for family in space.families() {
        let needs: Vec<Need> = clients
            .iter()
            .map(|client| client.need(family, pool))
            .collect();
        let block = space.block_size(family);
        let lacking = |need: &Need| need.pods + need.buffer;
        let blocks: u64 = needs.iter().map(|need| lacking(need).div_ceil(block)).sum();
        let scarce = exhausted || space.free_blocks(family, blocks) < blocks;
        let (held, resting) = space.used(family);
        let free = space.total(family).saturating_sub(held + resting);
        let shares = if scarce {
            share(&needs, free)
        } else {
            needs.iter().map(lacking).collect()
        };
        for ((client, need), share) in clients.iter_mut().zip(&needs).zip(shares) {
            let claimed = claim(client, family, share, scarce, space);
            client.claiming |= claimed > 0;
            let missing = lacking(need).saturating_sub(claimed);
            if missing > 0 {
                client.missing = client.missing.max(missing);
                plan.notices.push(Notice::Unmet {
                    node: need.node.clone(),
                    pool: pool.name.clone(),
                    missing,
                });
            }
        }
    }
}

/// Claims so many addresses for a node: whole blocks, and single ones where there is little.
fn claim(
    client: &Client<'_>,
    family: IpFamily,
    share: u64,
    scarce: bool,
    space: &mut Space<'_>,
) -> u64 {
    let block = space.block_size(family);
    let version = |range: IpNet| client.published.version(range);
    let mut claimed = 0;
    while claimed < share {
        let whole = !scarce || share - claimed >= block;
        let net = if whole {
            space.claim_block(family, &client.holder, version)
        } else {
            None
        };
        match net.or_else(|| space.claim_single(family, &client.holder, version)) {
            Some(net) => claimed += address_count(net),
            None => break,
        }
    }
    claimed
}

/// Whether a pool is nearly empty: it is when little is free or somebody lacks something, and no
/// more when enough is free and would be if all nodes asked for their buffers again. Without the
/// latter a small pool would go back and forth for ever.
fn is_exhausted(pool: &IpPool, space: &Space<'_>, clients: &[Client<'_>], exhausted: bool) -> bool {
    let threshold = if exhausted {
        pool.exhaustion.leave
    } else {
        pool.exhaustion.enter
    };
    let unmet = clients.iter().any(|client| client.missing > 0);
    unmet
        || space.families().into_iter().any(|family| {
            let (held, resting) = space.used(family);
            let total = space.total(family);
            let more = if exhausted {
                usual_growth(pool, clients, family, space.block_size(family))
            } else {
                0
            };
            let free = total.saturating_sub(held + resting + more);
            u128::from(free) * 100 < u128::from(total) * u128::from(threshold)
        })
}

/// How much more the nodes would hold if there were enough.
fn usual_growth(pool: &IpPool, clients: &[Client<'_>], family: IpFamily, block: u64) -> u64 {
    let (scaler, _) = Scaler::read(Some(&pool.scaler));
    let growth = clients.iter().map(|client| {
        let spec = &client.config.spec;
        let demand = spec.demand.unwrap_or(spec.requested).max(0);
        let target = scaler.target(u32::try_from(demand).unwrap_or(u32::MAX));
        let usual = u64::from(target).div_ceil(block) * block;
        usual.saturating_sub(client.has(family))
    });
    growth.sum()
}
