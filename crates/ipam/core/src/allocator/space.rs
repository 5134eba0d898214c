//! Free and claimed blocks of a pool while a plan is made.

mod cover;
mod geometry;

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weft_model::IpFamily;

use self::geometry::shards_of;
use super::{
    Write,
    object::{Block, Claim, ClaimState, Holder, IpPool, Shard, WallTime, unreserved},
};
use crate::{
    GrantName, NodeName, Precondition, Uid,
    range::{address_count, number},
};

/// A change of a shard, for logs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClaimChange {
    /// Free addresses are claimed for a node.
    Claimed(IpNet, Claim),
    /// Addresses that a node publishes without a claim are claimed for it.
    Adopted(IpNet, Claim),
    /// A node or its config was created again and takes over the claim.
    Moved(IpNet, Claim),
    /// A claim ended and its addresses are in cooldown.
    Freed(IpNet, Claim),
}

/// A shard with the changes of the plan.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) shard: Shard,
    pub(super) changes: Vec<ClaimChange>,
    pub(super) gone: Vec<Holder>,
    pub(super) unchanged: Vec<(NodeName, Precondition)>,
    pub(super) present: Vec<(NodeName, Uid)>,
}

/// Position of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) shard: IpNet,
    index: u32,
    offset: Option<u32>,
}

/// A pool's ranges with the claims in them.
#[derive(Clone, Debug)]
pub(super) struct Space<'a> {
    pool: &'a IpPool,
    ranges: &'a [IpNet],
    reserved: &'a [IpNet],
    now: WallTime,
    drafts: BTreeMap<IpNet, Draft>,
    /// Lower bound of free block numbers by shard. No block becomes free while a plan is made.
    cursors: BTreeMap<IpNet, u32>,
    /// Number of leading shards of a range that have no free block.
    full: BTreeMap<IpNet, u64>,
    /// Prefix of claim names.
    label: String,
}

impl<'a> Space<'a> {
    pub(super) fn new(
        pool: &'a IpPool,
        ranges: &'a [IpNet],
        reserved: &'a [IpNet],
        shards: impl IntoIterator<Item = Shard>,
        now: WallTime,
    ) -> Self {
        let drafts = shards.into_iter().map(|mut shard| {
            drop_expired_cooldowns(&mut shard, now);
            (shard.range, Draft::new(shard))
        });
        Self {
            pool,
            ranges,
            reserved,
            now,
            drafts: drafts.collect(),
            cursors: BTreeMap::new(),
            full: BTreeMap::new(),
            label: pool.name.to_string(),
        }
    }

    /// Sets the prefix of claim names.
    pub(super) fn labelled(self, label: String) -> Self {
        Self { label, ..self }
    }

    pub(super) fn pool(&self) -> &'a IpPool {
        self.pool
    }

    pub(super) fn families(&self) -> BTreeSet<IpFamily> {
        let ranges = self.ranges.iter();
        ranges.map(|range| IpFamily::of(range.addr())).collect()
    }

    /// Number of addresses in a whole block of a family.
    pub(super) fn block_size(&self, family: IpFamily) -> u64 {
        let mut ranges = self.ranges_of(family);
        ranges.next().map_or(1, |range| {
            let width = family.width() - self.pool.block_prefix(range);
            1_u64.checked_shl(u32::from(width)).unwrap_or(u64::MAX)
        })
    }

    pub(super) fn into_drafts(self) -> impl Iterator<Item = Draft> {
        let drafts = self.drafts.into_values();
        drafts.filter(|draft| !draft.changes.is_empty())
    }

    fn ranges_of(&self, family: IpFamily) -> impl Iterator<Item = IpNet> + use<'a> {
        let ranges = self.ranges.iter().copied();
        ranges.filter(move |range| IpFamily::of(range.addr()) == family)
    }

    /// Number of addresses of a family that can be assigned.
    pub(super) fn total(&self, family: IpFamily) -> u64 {
        let totals = self
            .ranges_of(family)
            .map(|range| unreserved(range, self.reserved));
        totals.fold(0, u64::saturating_add)
    }

    /// Number of claimed addresses, and of those in cooldown.
    pub(super) fn used(&self, family: IpFamily) -> (u64, u64) {
        let (mut held, mut resting) = (0, 0);
        for (net, claim) in self.claims() {
            if IpFamily::of(net.addr()) == family {
                match claim.state {
                    ClaimState::Held => held += address_count(net),
                    ClaimState::Cooldown(_) => resting += address_count(net),
                }
            }
        }
        (held, resting)
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = (IpNet, &Claim)> {
        self.drafts.values().flat_map(|draft| {
            let prefix = self.prefix_in(draft.shard.range);
            draft.shard.claims(prefix)
        })
    }

    /// Number of whole blocks without a claim, counted no further than `enough`.
    pub(super) fn free_blocks(&self, family: IpFamily, enough: u64) -> u64 {
        let mut free = 0;
        for range in self.ranges_of(family) {
            for shard in shards_of(self.pool, range, 0) {
                let block = self.pool.block_prefix(range);
                let all = 1_u64 << (block - shard.prefix_len());
                let split = self.reserved_blocks(range, shard);
                let reserved: u64 = split.iter().map(|(first, last)| last - first + 1).sum();
                let whole = |index: &u32| {
                    let index = u64::from(*index);
                    !split
                        .iter()
                        .any(|(first, last)| (*first..=*last).contains(&index))
                };
                let blocks = self.drafts.get(&shard).map(|draft| &draft.shard.blocks);
                let taken = blocks
                    .into_iter()
                    .flat_map(BTreeMap::keys)
                    .filter(|index| whole(index));
                free += all
                    .saturating_sub(reserved)
                    .saturating_sub(taken.count() as u64);
                if free >= enough {
                    return free;
                }
            }
        }
        free
    }

    /// Claims a whole block.
    pub(super) fn claim_block(
        &mut self,
        family: IpFamily,
        holder: &Holder,
        version: impl Fn(IpNet) -> i64,
    ) -> Option<IpNet> {
        let mut ranges = self.ranges_of(family);
        let (range, shard, index) = ranges.find_map(|range| self.free_block(range))?;
        let block = self.block_net(range, shard, index);
        let claim = self.fresh(shard, holder, version(range));
        let draft = self.draft(shard);
        draft
            .shard
            .blocks
            .insert(index, Block::Whole(claim.clone()));
        draft.changes.push(ClaimChange::Claimed(block, claim));
        Some(block)
    }

    /// Takes the first free block of a range, with its shard and number. It is not found again.
    fn free_block(&mut self, range: IpNet) -> Option<(IpNet, IpNet, u32)> {
        let full = self.full.get(&range).copied().unwrap_or_default();
        for (shard, passed) in shards_of(self.pool, range, full).zip(full..) {
            if let Some(index) = self.free_index(range, shard) {
                self.full.insert(range, passed);
                return Some((range, shard, index));
            }
        }
        self.full.insert(range, u64::MAX);
        None
    }

    fn free_index(&mut self, range: IpNet, shard: IpNet) -> Option<u32> {
        let width = self.pool.block_prefix(range) - shard.prefix_len();
        let end = 1_u32 << width;
        let start = self.cursors.get(&shard).copied().unwrap_or_default();
        let draft = self.drafts.get(&shard);
        let free = |index: &u32| {
            let taken = draft.is_some_and(|draft| draft.shard.blocks.contains_key(index));
            !taken && !self.has_reserved(self.block_net(range, shard, *index))
        };
        let found = (start..end).find(free);
        self.cursors
            .insert(shard, found.map_or(end, |index| index + 1));
        found
    }

    /// Claims a single address, of a block that is split already if there is one.
    pub(super) fn claim_single(
        &mut self,
        family: IpFamily,
        holder: &Holder,
        version: impl Fn(IpNet) -> i64,
    ) -> Option<IpNet> {
        let (range, place) = self
            .split_place(family)
            .or_else(|| self.unsplit_place(family))?;
        let claim = self.fresh(place.shard, holder, version(range));
        let address = self.place_net(range, place);
        let draft = self.draft(place.shard);
        let block = draft.shard.blocks.entry(place.index);
        let block = block.or_insert_with(|| Block::Split(BTreeMap::new()));
        if let (Block::Split(claims), Some(offset)) = (block, place.offset) {
            claims.insert(offset, claim.clone());
            draft.changes.push(ClaimChange::Claimed(address, claim));
        }
        Some(address)
    }

    fn split_place(&self, family: IpFamily) -> Option<(IpNet, Place)> {
        for draft in self.drafts.values() {
            let shard = draft.shard.range;
            let Some(range) = self
                .range_of(shard)
                .filter(|_| IpFamily::of(shard.addr()) == family)
            else {
                continue;
            };
            for (index, block) in &draft.shard.blocks {
                if let Block::Split(claims) = block
                    && let Some(place) = self.free_offset(range, shard, *index, Some(claims))
                {
                    return Some((range, place));
                }
            }
        }
        None
    }

    /// Prefers a block with reserved addresses, because it can never be claimed as a whole.
    fn unsplit_place(&mut self, family: IpFamily) -> Option<(IpNet, Place)> {
        for net in self.reserved {
            let Some(range) = self
                .range_of(*net)
                .filter(|_| IpFamily::of(net.addr()) == family)
            else {
                continue;
            };
            let shard = self.locate(range, net.network()).shard;
            let index = self.locate(range, net.network()).index;
            let taken = self.drafts.get(&shard);
            if taken.is_none_or(|draft| !draft.shard.blocks.contains_key(&index))
                && let Some(place) = self.free_offset(range, shard, index, None)
            {
                return Some((range, place));
            }
        }
        let mut ranges = self.ranges_of(family);
        let (range, shard, index) = ranges.find_map(|range| self.free_block(range))?;
        Some((range, self.free_offset(range, shard, index, None)?))
    }

    fn free_offset(
        &self,
        range: IpNet,
        shard: IpNet,
        index: u32,
        claims: Option<&BTreeMap<u32, Claim>>,
    ) -> Option<Place> {
        let size = address_count(self.block_net(range, shard, index));
        let places = (0..u32::try_from(size).unwrap_or(u32::MAX)).map(|offset| Place {
            shard,
            index,
            offset: Some(offset),
        });
        places.into_iter().find(|place| {
            let taken = claims
                .zip(place.offset)
                .is_some_and(|(claims, offset)| claims.contains_key(&offset));
            !taken && !self.has_reserved(self.place_net(range, *place))
        })
    }

    /// The claim at an entry: of the same extent, or any that overlaps it.
    pub(super) fn claim_at(&self, entry: IpNet) -> Option<&Claim> {
        let range = self.range_of(entry)?;
        let place = self.place_of(range, entry);
        match self
            .drafts
            .get(&place.shard)?
            .shard
            .blocks
            .get(&place.index)?
        {
            Block::Whole(claim) => Some(claim),
            Block::Split(claims) => {
                let held = |claim: &&Claim| claim.state == ClaimState::Held;
                let any = || claims.values().find(held).or(claims.values().next());
                place.offset.map_or_else(any, |offset| claims.get(&offset))
            }
        }
    }

    /// Claims addresses that a node already publishes.
    pub(super) fn adopt(&mut self, entry: IpNet, claim: Claim) -> bool {
        let Some(range) = self.range_of(entry) else {
            return false;
        };
        let place = self.place_of(range, entry);
        let draft = self.draft(place.shard);
        match (place.offset, draft.shard.blocks.get_mut(&place.index)) {
            (None, _) => {
                draft
                    .shard
                    .blocks
                    .insert(place.index, Block::Whole(claim.clone()));
            }
            (Some(offset), Some(Block::Split(claims))) => {
                claims.insert(offset, claim.clone());
            }
            (Some(offset), _) => {
                let claims = BTreeMap::from([(offset, claim.clone())]);
                draft.shard.blocks.insert(place.index, Block::Split(claims));
            }
        }
        draft.changes.push(ClaimChange::Adopted(entry, claim));
        true
    }

    /// Puts a claim into cooldown. If `gone` is set, the writer must verify that the holder is gone
    /// for good.
    pub(super) fn free(&mut self, entry: IpNet, gone: Option<&Holder>) {
        let until = self.now.after(self.pool.cooldown);
        let freed = self.change(entry, |claim| claim.state = ClaimState::Cooldown(until));
        if let Some((draft, claim)) = freed {
            draft.gone.extend(gone.cloned());
            draft.changes.push(ClaimChange::Freed(entry, claim));
        }
    }

    fn change(
        &mut self,
        entry: IpNet,
        change: impl FnOnce(&mut Claim),
    ) -> Option<(&mut Draft, Claim)> {
        let range = self.range_of(entry)?;
        let place = self.place_of(range, entry);
        let draft = self.drafts.get_mut(&place.shard)?;
        let claim = match (draft.shard.blocks.get_mut(&place.index)?, place.offset) {
            (Block::Whole(claim), None) => claim,
            (Block::Split(claims), Some(offset)) => claims.get_mut(&offset)?,
            _ => return None,
        };
        change(claim);
        let claim = claim.clone();
        Some((draft, claim))
    }

    fn draft(&mut self, shard: IpNet) -> &mut Draft {
        let (pool, now) = (&self.pool.name, self.now);
        self.drafts
            .entry(shard)
            .or_insert_with(|| Draft::new(Shard::new(pool.clone(), shard, now)))
    }

    fn fresh(&mut self, shard: IpNet, holder: &Holder, version: i64) -> Claim {
        let label = self.label.clone();
        let draft = self.draft(shard);
        draft.shard.sequence += 1;
        let place = number(shard.network());
        Claim {
            id: GrantName::from(format!("{label}-{place:x}-{:x}", draft.shard.sequence)),
            holder: holder.clone(),
            version,
            state: ClaimState::Held,
        }
    }
}

impl Draft {
    fn new(shard: Shard) -> Self {
        Self {
            shard,
            changes: Vec::new(),
            gone: Vec::new(),
            unchanged: Vec::new(),
            present: Vec::new(),
        }
    }
}

impl From<Draft> for Write {
    fn from(draft: Draft) -> Self {
        Self::Shard {
            shard: draft.shard,
            gone: draft.gone,
            unchanged: draft.unchanged,
            present: draft.present,
            changes: draft.changes,
        }
    }
}

/// Removes claims whose cooldown has ended. This needs no write of its own.
fn drop_expired_cooldowns(shard: &mut Shard, now: WallTime) {
    let over = |claim: &Claim| matches!(claim.state, ClaimState::Cooldown(until) if until <= now);
    shard.blocks.retain(|_, block| match block {
        Block::Whole(claim) => !over(claim),
        Block::Split(claims) => {
            claims.retain(|_, claim| !over(claim));
            !claims.is_empty()
        }
    });
}
