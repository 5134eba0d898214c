//! Positions of networks, shards and blocks within a range.

use std::net::IpAddr;

use ipnet::IpNet;
use weft_model::IpFamily;

use super::{Place, Space};
use crate::{
    allocator::object::{IpPool, net},
    range::number,
};

impl Space<'_> {
    /// Blocks of a shard that contain reserved addresses and cannot be claimed as a whole: first
    /// and last of each run.
    pub(super) fn reserved_blocks(&self, range: IpNet, shard: IpNet) -> Vec<(u64, u64)> {
        let width = IpFamily::of(range.addr()).width() - self.pool.block_prefix(range);
        let base = number(shard.network());
        let end = number(shard.broadcast());
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut touching: Vec<IpNet> = self.reserved.to_vec();
        touching.retain(|net| shard.contains(net) || net.contains(&shard));
        touching.sort_by_key(|net| number(net.network()));
        for net in touching {
            let first = number(net.network()).max(base) - base;
            let last = number(net.broadcast()).min(end) - base;
            let index = |offset: u128| u64::try_from(offset >> width).unwrap_or(u64::MAX);
            let (first, last) = (index(first), index(last));
            match runs.last_mut() {
                Some((_, until)) if first <= *until => *until = last.max(*until),
                _ => runs.push((first, last)),
            }
        }
        runs
    }

    /// The range that contains a network.
    pub(in crate::allocator) fn range_of(&self, net: IpNet) -> Option<IpNet> {
        self.ranges
            .iter()
            .copied()
            .find(|range| range.contains(&net))
    }

    pub(super) fn has_reserved(&self, net: IpNet) -> bool {
        let mut reserved = self.reserved.iter();
        reserved.any(|reserved| reserved.contains(&net) || net.contains(reserved))
    }

    pub(super) fn prefix_in(&self, shard: IpNet) -> u8 {
        self.range_of(shard)
            .map_or(shard.prefix_len(), |range| self.pool.block_prefix(range))
    }

    pub(super) fn block_net(&self, range: IpNet, shard: IpNet, index: u32) -> IpNet {
        let family = IpFamily::of(range.addr());
        let prefix = self.pool.block_prefix(range);
        let offset = u128::from(index) << (family.width() - prefix);
        net(number(shard.network()) + offset, prefix, family)
    }

    pub(super) fn place_net(&self, range: IpNet, place: Place) -> IpNet {
        let block = self.block_net(range, place.shard, place.index);
        let family = IpFamily::of(range.addr());
        match place.offset {
            None => block,
            Some(offset) => net(
                number(block.network()) + u128::from(offset),
                family.width(),
                family,
            ),
        }
    }

    pub(super) fn locate(&self, range: IpNet, address: IpAddr) -> Place {
        let family = IpFamily::of(range.addr());
        let shard = net(number(address), self.pool.shard_prefix(range), family).trunc();
        let width = family.width() - self.pool.block_prefix(range);
        let inside = number(address) - number(shard.network());
        Place {
            shard,
            index: u32::try_from(inside >> width).unwrap_or_default(),
            offset: u32::try_from(inside & ((1_u128 << width) - 1)).ok(),
        }
    }

    pub(super) fn place_of(&self, range: IpNet, entry: IpNet) -> Place {
        let place = self.locate(range, entry.network());
        let whole = entry.prefix_len() <= self.pool.block_prefix(range);
        Place {
            offset: place.offset.filter(|_| !whole),
            ..place
        }
    }
}

/// The shards of a range from a number on, in order. A large range has very many.
pub(super) fn shards_of(
    pool: &IpPool,
    range: IpNet,
    from: u64,
) -> impl Iterator<Item = IpNet> + use<> {
    let prefix = pool.shard_prefix(range);
    let family = IpFamily::of(range.addr());
    let step = 1_u128
        .checked_shl(u32::from(family.width() - prefix))
        .unwrap_or_default();
    let count = 1_u64
        .checked_shl(u32::from(prefix - range.prefix_len()))
        .unwrap_or(u64::MAX);
    let base = number(range.network());
    (from..count).map(move |index| net(base + u128::from(index) * step, prefix, family))
}
