//! Validation of all pools together: no two may contain the same addresses.

use std::collections::BTreeMap;

use ipnet::IpNet;
use weft_model::LabelSelector;

use super::{IpPool, IpPoolShard, POD_CIDR_POOL, PoolFlaw, ip_pool::overlap};
use crate::{
    PoolName, allocator,
    allocator::{Block, Claim, ClaimState, ClusterCidr, PoolSource, Shard, WallTime, cidr_pool},
};

/// All pools, as far as they can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// Every pool; one with a fatal error is disabled.
    pub pools: BTreeMap<PoolName, allocator::IpPool>,
    /// Every readable shard.
    pub shards: BTreeMap<(PoolName, IpNet), Shard>,
    /// Errors by pool.
    pub flaws: BTreeMap<PoolName, Vec<PoolFlaw>>,
}

/// Shards with the prefix length of their blocks.
type Claims = BTreeMap<(PoolName, IpNet), (Shard, u8)>;

/// Reads pools and their claims.
///
/// Of two pools that overlap, the one with claims there keeps its ranges, or else the older one. A
/// pool with a fatal error stays in the result, disabled: without it its nodes would match another
/// pool. If it never served and selects all nodes, it gets none: its name alone would take the
/// nodes of other pools.
pub fn read_pools<'a>(
    pools: impl IntoIterator<Item = &'a IpPool>,
    shards: impl IntoIterator<Item = &'a IpPoolShard>,
    wall: WallTime,
) -> Pools {
    let mut flaws: BTreeMap<PoolName, Vec<PoolFlaw>> = BTreeMap::new();
    let mut claims = Claims::new();
    for object in shards {
        let pool = object.spec.pool.clone();
        match object.to_shard() {
            Ok(shard) => {
                let prefix = object.spec.block_prefix;
                claims.insert((pool, shard.range), (shard, prefix));
            }
            Err(flaw) => flaws.entry(pool).or_default().push(flaw.into()),
        }
    }
    let mut objects: Vec<&IpPool> = pools.into_iter().collect();
    objects.sort_by_key(|object| {
        let made = object.metadata.creation_timestamp.clone();
        (
            made.unwrap_or_default().to_string(),
            object.metadata.name.to_string(),
        )
    });
    let mut read: BTreeMap<PoolName, allocator::IpPool> = BTreeMap::new();
    for object in objects {
        let (mut pool, found) = object.to_pool();
        let known = flaws.entry(pool.name.clone()).or_default();
        known.extend(found);
        if let PoolSource::Ranges(ranges) = pool.source.clone() {
            known.extend(misplaced(&pool, &ranges, &claims, wall));
            let (kept, taken) = untaken(&pool.name, &ranges, &claims, &read, wall);
            known.extend(taken);
            pool.source = PoolSource::Ranges(kept);
        }
        if known.iter().any(PoolFlaw::is_fatal) {
            pool.disabled = true;
            if pool.nodes.is_empty() && !may_have_served(&pool, known, &claims, wall) {
                pool.nodes = no_node();
            }
        }
        read.insert(pool.name.clone(), pool);
    }
    flaws.retain(|name, flaws| !flaws.is_empty() && read.contains_key(name));
    let shards = claims
        .into_iter()
        .map(|(key, (shard, _))| (key, shard))
        .collect();
    Pools {
        pools: read,
        shards,
        flaws,
    }
}

/// True if nodes may have addresses of a pool. A pool of nodes' own CIDRs makes no claims.
fn may_have_served(
    pool: &allocator::IpPool,
    flaws: &[PoolFlaw],
    claims: &Claims,
    wall: WallTime,
) -> bool {
    let unknown = |flaw: &PoolFlaw| matches!(flaw, PoolFlaw::Shard(_) | PoolFlaw::Geometry(_));
    let mut own = claims.values().filter(|(shard, _)| shard.pool == pool.name);
    matches!(pool.source, PoolSource::NodeCidrs)
        || flaws.iter().any(unknown)
        || own.any(|(shard, _)| claims_anything(shard, wall))
}

/// A selector that matches no labels.
fn no_node() -> LabelSelector {
    let label = "ipam.weft.dev/node";
    LabelSelector::equalities([(label, "one"), (label, "another")])
}

/// Reads the claims of pod CIDRs; other shards are ignored. An unreadable shard is an error, and so
/// is one created for other ranges or another mask: its block numbers would mean other CIDRs now.
pub fn read_cidr_shards<'a>(
    shards: impl IntoIterator<Item = &'a IpPoolShard>,
    cluster: &[ClusterCidr],
    wall: WallTime,
) -> Result<BTreeMap<(PoolName, IpNet), Shard>, PoolFlaw> {
    let name = PoolName::from(POD_CIDR_POOL);
    let mut claims = Claims::new();
    for object in shards.into_iter().filter(|shard| shard.spec.pool == name) {
        let shard = object.to_shard()?;
        let key = (name.clone(), shard.range);
        claims.insert(key, (shard, object.spec.block_prefix));
    }
    let ranges: Vec<IpNet> = cluster.iter().map(|cidr| cidr.range).collect();
    let pool = cidr_pool(&name, cluster, &ranges);
    if let Some(flaw) = misplaced(&pool, &ranges, &claims, wall).into_iter().next() {
        return Err(flaw);
    }
    let shards = claims.into_iter();
    Ok(shards.map(|(key, (shard, _))| (key, shard)).collect())
}

/// Shards with claims whose block numbers would mean other addresses now.
fn misplaced(
    pool: &allocator::IpPool,
    ranges: &[IpNet],
    claims: &Claims,
    wall: WallTime,
) -> Vec<PoolFlaw> {
    let own = claims.values().filter(|(shard, _)| shard.pool == pool.name);
    let misplaced = own.filter(|(shard, prefix)| {
        let mut within = ranges.iter().filter(|range| overlap(**range, shard.range));
        claims_anything(shard, wall)
            && within.any(|range| {
                pool.block_prefix(*range) != *prefix
                    || pool.shard_prefix(*range) != shard.range.prefix_len()
            })
    });
    misplaced
        .map(|(shard, _)| PoolFlaw::Geometry(shard.range))
        .collect()
}

/// The ranges that do not overlap another pool, and the errors of the others.
fn untaken(
    name: &PoolName,
    ranges: &[IpNet],
    claims: &Claims,
    earlier: &BTreeMap<PoolName, allocator::IpPool>,
    wall: WallTime,
) -> (Vec<IpNet>, Vec<PoolFlaw>) {
    let mut kept = Vec::new();
    let mut flaws = Vec::new();
    for range in ranges {
        let claimed = claims.values().map(|(shard, _)| shard).find(|shard| {
            shard.pool != *name && overlap(*range, shard.range) && claims_anything(shard, wall)
        });
        let claimed = claimed.map(|shard| (shard.range, shard.pool.clone()));
        match claimed.or_else(|| holder_of(*range, earlier)) {
            Some((other, pool)) => flaws.push(PoolFlaw::Overlap {
                range: *range,
                other,
                pool,
            }),
            None => kept.push(*range),
        }
    }
    (kept, flaws)
}

fn holder_of(
    range: IpNet,
    pools: &BTreeMap<PoolName, allocator::IpPool>,
) -> Option<(IpNet, PoolName)> {
    pools.values().find_map(|pool| match &pool.source {
        PoolSource::NodeCidrs => None,
        PoolSource::Ranges(ranges) => {
            let other = ranges.iter().find(|other| overlap(range, **other))?;
            Some((*other, pool.name.clone()))
        }
    })
}

fn claims_anything(shard: &Shard, wall: WallTime) -> bool {
    let counts = |claim: &Claim| match claim.state {
        ClaimState::Held => true,
        ClaimState::Cooldown(until) => until > wall,
    };
    shard.blocks.values().any(|block| match block {
        Block::Whole(claim) => counts(claim),
        Block::Split(claims) => claims.values().any(counts),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{IpPoolSpec, Meta, ShardSpec};

    fn pool(name: &str, made: &str, cidrs: &[&str]) -> IpPool {
        IpPool {
            metadata: Meta {
                name: name.into(),
                creation_timestamp: Some(made.into()),
                ..Meta::default()
            },
            spec: IpPoolSpec {
                cidrs: cidrs.iter().map(|cidr| (*cidr).into()).collect(),
                ..IpPoolSpec::default()
            },
            ..IpPool::default()
        }
    }

    /// A shard with one claim.
    fn shard(pool: &str, range: &str, block_prefix: u8) -> IpPoolShard {
        let json = format!(
            r#"{{"metadata":{{"name":"s","resourceVersion":"1"}},"spec":{{"pool":"{pool}",
            "range":"{range}","blockPrefix":{block_prefix},"sequence":1,"blocks":{{"0":{{"whole":
            {{"id":"i","node":"n","nodeUID":"u","configUID":"c","version":0}}}}}}}}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    fn read(pools: &[IpPool], shards: &[IpPoolShard]) -> BTreeMap<String, (bool, Vec<String>)> {
        let Pools { pools, flaws, .. } = read_pools(pools, shards, WallTime(1));
        pools
            .values()
            .map(|pool| {
                let flaws = flaws.get(&pool.name).into_iter().flatten();
                let flaws = flaws.map(ToString::to_string).collect();
                (pool.name.to_string(), (!pool.disabled, flaws))
            })
            .collect()
    }

    #[test]
    fn an_invalid_pool_is_reported_and_the_others_are_served() {
        let mut negative = pool("negative", "1", &["10.2.0.0/16"]);
        negative.spec.cooldown_seconds = Some(-1);
        let read = read(
            &[
                pool("good", "1", &["10.0.0.0/16"]),
                pool("hosts", "1", &["10.1.0.1/16"]),
                pool("none", "1", &[]),
                pool("twice", "1", &["10.3.0.0/16", "10.3.1.0/24"]),
                negative,
            ],
            &[],
        );
        assert_eq!(read["good"], (true, vec![]));
        assert_eq!(
            read["hosts"],
            (
                false,
                vec!["cidrs: \"10.1.0.1/16\" is not a CIDR".to_owned()]
            )
        );
        assert!(!read["none"].0 && !read["twice"].0 && !read["negative"].0);
        assert!(read["negative"].1[0].contains("-1 is not between 0 and"));
    }

    #[test]
    fn a_batch_of_zero_is_reported_and_replaced() {
        let mut zero = pool("zero", "1", &["10.0.0.0/16"]);
        zero.spec.scaler = serde_json::from_str(r#"{"batchSize":0}"#).unwrap();
        let (served, named) = read(&[zero], &[])["zero"].clone();
        assert!(served && named[0].contains("batchSize 0"), "{named:?}");
    }

    #[test]
    fn of_two_pools_that_overlap_the_older_is_served() {
        let read = read(
            &[
                pool("a", "2026-01-02", &["10.0.0.0/8"]),
                pool("b", "2026-01-01", &["10.1.0.0/16"]),
            ],
            &[],
        );
        assert!(read["b"].0);
        assert_eq!(
            read["a"],
            (
                false,
                vec!["10.0.0.0/8 overlaps 10.1.0.0/16 of pool b".to_owned()]
            )
        );
    }

    #[test]
    fn of_two_pools_that_overlap_the_one_with_claims_is_served() {
        let pools = [
            pool("old", "2026-01-01", &["10.0.0.0/16", "10.1.0.0/16"]),
            pool("new", "2026-01-02", &["10.1.0.0/16"]),
        ];
        let read = read(&pools, &[shard("new", "10.1.0.0/20", 28)]);
        assert!(read["new"].0 && !read["old"].0, "{read:?}");
    }

    #[test]
    fn claims_of_blocks_of_another_size_or_place_stop_a_pool() {
        for (range, block) in [("10.0.0.0/20", 27), ("10.0.0.0/24", 28)] {
            let read = read(
                &[pool("a", "1", &["10.0.0.0/16"])],
                &[shard("a", range, block)],
            );
            assert!(!read["a"].0, "{range} {block}");
        }
        let read = read(
            &[pool("a", "1", &["10.0.0.0/16"])],
            &[shard("a", "10.0.0.0/20", 28)],
        );
        assert!(read["a"].0, "{read:?}");
    }

    #[test]
    fn claims_of_pod_cidrs_of_another_mask_or_range_stop_everything() {
        let shards = [
            shard(POD_CIDR_POOL, "10.244.0.0/16", 24),
            shard("other", "10.0.0.0/20", 28),
        ];
        let read = |range: &str, node_prefix| {
            let range = range.parse().unwrap();
            let cluster = [ClusterCidr { range, node_prefix }];
            read_cidr_shards(&shards, &cluster, WallTime(1)).map(|shards| shards.len())
        };
        assert_eq!(read("10.244.0.0/16", 24), Ok(1));
        assert_eq!(
            read("10.240.0.0/12", 24),
            Ok(1),
            "the same shards, and more"
        );
        assert_eq!(read("10.9.0.0/16", 25), Ok(1), "elsewhere");
        let shard = PoolFlaw::Geometry("10.244.0.0/16".parse().unwrap());
        assert_eq!(read("10.244.0.0/16", 25), Err(shard.clone()));
        assert_eq!(read("10.244.0.0/17", 24), Err(shard));
    }

    #[test]
    fn a_shard_survives_a_round_trip() {
        let object = shard("a", "10.0.0.0/20", 28);
        let shard = object.to_shard().unwrap();
        assert_eq!(ShardSpec::of(&shard, 28), object.spec);
    }
}
