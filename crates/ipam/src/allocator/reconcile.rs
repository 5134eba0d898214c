//! Claims, and what follows from them.

use std::collections::BTreeMap;

use ipnet::IpNet;
use weft_model::{IpFamily, Moment};

use super::{
    Allocator, Notice, Plan, View, Write,
    exhaustion::is_exhausted,
    object::{Block, Claim, ClaimState, Holder, IpPool, Wall},
    share::{Need, share},
    space::Space,
    status::{Published, write_status},
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
    pub(super) fn has(&self, family: IpFamily) -> u64 {
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
