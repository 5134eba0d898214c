//! I21, checked on a plan: what it claims, and for which node.

use std::collections::BTreeMap;

use ipnet::IpNet;
use weft_ipam::{
    NodeConfig, Uid,
    allocator::{ClaimChange, ClaimState, IpPool, PoolSource, View, Write},
};
use weft_model::IpFamily;

use super::Violation;

fn size(net: IpNet) -> u64 {
    1 << (net.max_prefix_len() - net.prefix_len())
}

/// Number of addresses of a family each config gets by these writes of a pool.
fn claimed(writes: &[Write], pool: &IpPool, family: IpFamily) -> BTreeMap<Uid, u64> {
    let mut claimed = BTreeMap::new();
    for write in writes {
        let Write::Shard { shard, changes, .. } = write else {
            continue;
        };
        for change in changes.iter().filter(|_| shard.pool == pool.name) {
            if let ClaimChange::Claimed(net, claim) = change
                && IpFamily::of(net.addr()) == family
            {
                *claimed.entry(claim.holder.config.clone()).or_default() += size(*net);
            }
        }
    }
    claimed
}

/// Addresses that a config keeps of a family: published and not offered; then with claims added.
fn kept(view: &View, config: &NodeConfig, family: IpFamily) -> (u64, u64) {
    let of_family = |net: &IpNet| IpFamily::of(net.addr()) == family;
    let entries = config.status.entries().map(|(_, entry)| entry);
    let stays = entries.filter(|entry| !config.spec.not_in_use.contains(&entry.name));
    let nets = stays.filter_map(|entry| entry.net().ok()).filter(of_family);
    let published: u64 = nets.map(size).sum();
    let mut pending = 0;
    for shard in view.shards.values() {
        let prefix = view.pools[&shard.pool].block_prefix(shard.range);
        for (net, claim) in shard.claims(prefix).filter(|(net, _)| of_family(net)) {
            let mut entries = config.status.entries();
            let out = entries.all(|(_, entry)| entry.name != claim.id);
            // Claims of former configs of the name are moved before anything is shared.
            let theirs = claim.holder.node == config.name;
            if claim.state == ClaimState::Held && theirs && out {
                pending += size(net);
            }
        }
    }
    (published, published + pending)
}

/// I21: while a node lacks addresses for existing pods, no node gets any for future pods.
pub(crate) fn check(view: &View, writes: &[Write]) -> Result<(), Violation> {
    let claims = |write: &Write| match write {
        Write::Shard { changes, .. } => changes
            .iter()
            .any(|change| matches!(change, ClaimChange::Claimed(..))),
        _ => false,
    };
    if !writes.iter().any(claims) {
        return Ok(());
    }
    for pool in view.pools.values() {
        let PoolSource::Ranges(ranges) = &pool.source else {
            continue;
        };
        let served: Vec<&NodeConfig> = (view.configs.values())
            .filter(|config| {
                let node = view.nodes.get(&config.name);
                let node = node.filter(|node| Some(&node.uid) == config.owner.as_ref());
                let serving = node.and_then(|node| view.pool_of(node));
                !config.deleting && serving.is_some_and(|serving| serving.name == pool.name)
            })
            .collect();
        for family in IpFamily::ALL {
            if ranges
                .iter()
                .all(|range| IpFamily::of(range.addr()) != family)
            {
                continue;
            }
            let claimed = claimed(writes, pool, family);
            let needs = |config: &NodeConfig| {
                let wanted = config
                    .spec
                    .requested
                    .min(pool.scaler.max_ip_count.unwrap_or(250));
                let needed = config.spec.demand.unwrap_or(wanted).min(wanted);
                u64::try_from(needed).unwrap_or_default()
            };
            let gets = |config: &NodeConfig| claimed.get(&config.uid).copied().unwrap_or_default();
            let lacks = served.iter().find(|config| {
                let (_, has) = kept(view, config, family);
                needs(config) > has + gets(config)
            });
            let hoards = served.iter().find(|config| {
                let (published, _) = kept(view, config, family);
                gets(config) > needs(config).saturating_sub(published)
            });
            if let (Some(lacks), Some(hoards)) = (lacks, hoards) {
                return Err(format!(
                    "I21: {} gets a buffer while {} lacks addresses for its pods",
                    hoards.name, lacks.name
                ));
            }
        }
    }
    Ok(())
}
