//! Usage figures of a pool, for status and metrics.

use super::{
    View,
    object::{Block, Claim, ClaimState, IpPool, PoolSource, WallTime},
    space::Space,
};

/// Figures of the family with fewer addresses, because it runs out first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Addresses that can be assigned.
    pub total: u64,
    /// Addresses claimed by nodes.
    pub claimed: u64,
    /// Addresses in cooldown.
    pub cooldown: u64,
}

impl Usage {
    /// Addresses that are neither claimed nor in cooldown.
    pub fn free(&self) -> u64 {
        self.total.saturating_sub(self.claimed + self.cooldown)
    }
}

impl View {
    /// Usage of a pool. None for a pool of the nodes' own CIDRs: it has no addresses itself.
    pub fn usage(&self, pool: &IpPool, wall: WallTime) -> Option<Usage> {
        let PoolSource::Ranges(ranges) = &pool.source else {
            return None;
        };
        let shards = self.shards.values().filter(|shard| shard.pool == pool.name);
        let space = Space::new(pool, ranges, &pool.reserved, shards.cloned(), wall);
        let families = space.families().into_iter();
        let scarce = families.min_by_key(|family| space.total(*family));
        let usage = scarce.map(|family| {
            let (claimed, cooldown) = space.used(family);
            Usage {
                total: space.total(family),
                claimed,
                cooldown,
            }
        });
        Some(usage.unwrap_or_default())
    }

    /// Time at which the next cooldown ends.
    pub fn next_cooldown_end(&self, wall: WallTime) -> Option<WallTime> {
        let blocks = self.shards.values().flat_map(|shard| shard.blocks.values());
        let until = |claim: &Claim| match claim.state {
            ClaimState::Cooldown(until) if until > wall => Some(until),
            _ => None,
        };
        blocks
            .filter_map(|block| match block {
                Block::Whole(claim) => until(claim),
                Block::Split(claims) => claims.values().filter_map(until).min(),
            })
            .min()
    }
}
