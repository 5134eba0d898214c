//! Claims of a pool with ranges: adopt, settle, grant, and the status writes that follow.

use std::collections::BTreeMap;

use ipnet::IpNet;
use weft_model::{IpFamily, Moment};

use super::{
    Allocator, Notice, Plan, View, Write,
    exhaustion::is_exhausted,
    lifecycle::{move_claims, tenant},
    object::{Block, Claim, ClaimState, Holder, IpPool, WallTime},
    share::{Need, share},
    space::Space,
    status::{Published, publish_pending, write_status},
};
use crate::{NodeConfig, PoolName, Uid, range::address_count, scaling::Scaler};

/// The claims of a block that are held, not in cooldown.
pub(super) fn claims(block: &Block) -> Vec<&Claim> {
    let held = |claim: &&Claim| claim.state == ClaimState::Held;
    match block {
        Block::Whole(claim) => Some(claim).filter(held).into_iter().collect(),
        Block::Split(claims) => claims.values().filter(held).collect(),
    }
}

/// A config of an existing node, with its claims in a pool.
pub(super) struct Client<'a> {
    pub(super) config: &'a NodeConfig,
    pub(super) holder: Holder,
    pub(super) published: Published,
    /// Claimed and about to be published.
    pub(super) pending: Vec<(IpNet, Claim)>,
    /// True if this plan makes claims for it or moves claims to it: its status is written later.
    pub(super) claiming: bool,
    /// Number of addresses it lacks and the pool cannot provide.
    pub(super) missing: u64,
}

impl Client<'_> {
    /// Number of addresses of each family it may have.
    fn wanted(&self, pool: &IpPool) -> u64 {
        let (scaler, _) = Scaler::read(Some(&pool.scaler));
        let wanted = self
            .config
            .spec
            .requested
            .clamp(0, i64::from(scaler.maximum()));
        u64::try_from(wanted).unwrap_or_default()
    }

    /// Number of addresses of a family it has or is about to get.
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
    /// Plans everything about a pool with ranges of its own.
    pub(super) fn plan_ranges(
        &self,
        view: &View,
        pool: &IpPool,
        ranges: &[IpNet],
        now: Moment,
        wall: WallTime,
        plan: &mut Plan,
    ) {
        let shards = view.shards.values().filter(|shard| shard.pool == pool.name);
        let mut space = Space::new(pool, ranges, &pool.reserved, shards.cloned(), wall);
        let moved = move_claims(view, &mut space);
        self.free_orphans(view, &mut space, now);
        let mut adopting = false;
        for config in view.configs.values() {
            adopting |= adopt(view, config, &mut space, plan);
        }
        let (mut clients, mut lodgers) = clients(view, pool, &space);
        for client in clients.iter_mut().chain(&mut lodgers) {
            settle(client, &mut space);
            client.claiming = moved.contains(&client.config.uid);
        }
        // Addresses published without a claim may look free.
        if !adopting && !pool.disabled && !pool.deleting {
            let supply = if view.exhausted.contains(&pool.name) {
                Supply::NearlyExhausted
            } else {
                Supply::Sufficient
            };
            grant(&mut clients, pool, &mut space, supply, plan);
        }
        let exhausted = is_exhausted(pool, &space, &clients, view.exhausted.contains(&pool.name));
        if exhausted != view.exhausted.contains(&pool.name) {
            plan.writes.push(Write::SubnetState {
                pool: pool.name.clone(),
                exhausted,
            });
        }
        hold(pool, &space, plan);
        plan.writes.extend(space.into_drafts().map(Write::from));
        let settled = |client: &&Client<'_>| !client.claiming;
        for lodger in lodgers.iter().filter(settled) {
            plan.writes.extend(publish_pending(lodger, pool, ranges));
        }
        for client in clients.iter().filter(settled) {
            plan.writes.extend(write_status(client, pool, ranges));
        }
    }
}

/// Keeps a pool that is being deleted until none of its addresses is claimed.
fn hold(pool: &IpPool, space: &Space<'_>, plan: &mut Plan) {
    let claimed = space.claims().next().is_some();
    match (pool.deleting, pool.finalized) {
        (false, false) => plan.writes.push(Write::AddPoolFinalizer(pool.name.clone())),
        (true, _) if claimed => plan.notices.push(Notice::PoolInUse(pool.name.clone())),
        (true, true) => plan
            .writes
            .push(Write::RemovePoolFinalizer(pool.name.clone())),
        _ => {}
    }
}

/// The configs that a pool serves, and those that only have claims there because the pool served
/// their nodes before.
fn clients<'a>(
    view: &'a View,
    pool: &IpPool,
    space: &Space<'_>,
) -> (Vec<Client<'a>>, Vec<Client<'a>>) {
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
    let (mut clients, mut lodgers) = (Vec::new(), Vec::new());
    for config in view.configs.values().filter(|config| !config.deleting) {
        let Some(node) = view.node_of(config) else {
            continue;
        };
        let serving = view.pool_of(node);
        let serves = serving.is_some_and(|serving| serving.name == pool.name);
        let pending = owned.remove(&config.uid).unwrap_or_default();
        if !serves && pending.is_empty() {
            continue;
        }
        let client = Client {
            config,
            holder: holder(view, config),
            published: Published::read(config, &pool.name),
            pending,
            claiming: false,
            missing: 0,
        };
        if serves {
            clients.push(client);
        } else {
            lodgers.push(client);
        }
    }
    (clients, lodgers)
}

/// The holder for claims of a config. A config without an owner belongs to the Node of its name.
fn holder(view: &View, config: &NodeConfig) -> Holder {
    let node = view.nodes.get(&config.name).map(|node| &node.uid);
    let nobodys = config.owner.is_none();
    Holder {
        node: config.name.clone(),
        node_uid: node
            .filter(|_| nobodys)
            .unwrap_or_else(|| tenant(config))
            .clone(),
        config: config.uid.clone(),
    }
}

/// Claims addresses that a config publishes without a claim, whether its node exists or not, so
/// that no other node gets them. Returns true if there were any.
fn adopt(view: &View, config: &NodeConfig, space: &mut Space<'_>, plan: &mut Plan) -> bool {
    let mut adopted = false;
    for (_, entry) in config.status.entries() {
        let Ok(net) = entry.net() else {
            continue;
        };
        let parts = space.covered(net).unwrap_or_default();
        if parts.is_empty() && is_stray(view, config, net, &space.pool().name) {
            plan.notices.push(Notice::Stray {
                config: config.name.clone(),
                entry: entry.name.clone(),
                net,
                pool: space.pool().name.clone(),
            });
        }
        for part in parts {
            let held = space
                .claim_at(part)
                .filter(|claim| claim.state == ClaimState::Held);
            match held {
                Some(claim) if claim.holder.config == config.uid => {}
                Some(claim) => plan.notices.push(Notice::Conflict {
                    config: config.name.clone(),
                    entry: entry.name.clone(),
                    net,
                    holder: claim.holder.node.clone(),
                }),
                None => {
                    let range = space.range_of(part);
                    let published = Published::read(config, &space.pool().name);
                    let version = range.map(|range| published.version(range));
                    let claim = Claim {
                        id: entry.name.clone(),
                        holder: holder(view, config),
                        version: version.unwrap_or_default() - 1,
                        state: ClaimState::Held,
                    };
                    adopted |= space.adopt(part, claim);
                }
            }
        }
    }
    adopted
}

/// True if a node that this pool serves publishes addresses that are in no pool.
fn is_stray(view: &View, config: &NodeConfig, net: IpNet, pool: &PoolName) -> bool {
    let node = view.node_of(config).filter(|_| !config.deleting);
    let serving = node.and_then(|node| view.pool_of(node));
    let own = node.is_some_and(|node| node.pod_cidrs.iter().any(|cidr| cidr.contains(&net)));
    serving.is_some_and(|serving| serving.name == *pool)
        && !own
        && !view.pools.values().any(|pool| pool.range_of(net).is_some())
}

/// Sorts a node's claims: published, to be published, and never to be published, which are freed.
fn settle(client: &mut Client<'_>, space: &mut Space<'_>) {
    for (net, claim) in std::mem::take(&mut client.pending) {
        if client.published.names.contains(&claim.id) {
            continue;
        }
        let Some(range) = space.range_of(net) else {
            continue;
        };
        let version = client.published.version(range);
        // A version later than the node's comes from a stale cache, and then the status write
        // fails; or the status was set back by another writer, and then it is repaired.
        if claim.version < version {
            space.free(net, None);
        } else {
            client.pending.push((net, claim));
        }
    }
}

/// The supply of free addresses in a pool, as its ClusterSubnetState says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Supply {
    Sufficient,
    /// Nodes get shares, and single addresses instead of blocks.
    NearlyExhausted,
}

/// Makes claims for nodes that lack addresses.
pub(super) fn grant(
    clients: &mut [Client<'_>],
    pool: &IpPool,
    space: &mut Space<'_>,
    supply: Supply,
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
        let exhausted = supply == Supply::NearlyExhausted;
        let scarce = exhausted || space.free_blocks(family, blocks) < blocks;
        let (held, resting) = space.used(family);
        let free = space.total(family).saturating_sub(held + resting);
        let shares = if scarce {
            share(&needs, free, space.turn())
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

/// Claims addresses for a node: whole blocks, and single addresses where little is free.
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
