//! All addresses of a node, with indexes for the queries of every ADD.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, btree_map},
    net::IpAddr,
};

use weft_model::{IpFamily, Moment};

use super::{AddressCounts, State};
use crate::GrantName;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    pub(super) state: State,
    pub(super) grant: Option<GrantName>,
}

impl Slot {
    pub(super) fn loose(state: State) -> Self {
        Self { state, grant: None }
    }
}

/// Addresses and their slots. They change only through [`Slots::change`] and its siblings, which
/// keep the indexes consistent: a node can have thousands of addresses, and an ADD must not iterate
/// over them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Slots {
    all: BTreeMap<IpAddr, Slot>,
    index: Index,
}

impl Slots {
    pub(super) fn get(&self, address: &IpAddr) -> Option<&Slot> {
        self.all.get(address)
    }

    pub(super) fn iter(&self) -> btree_map::Iter<'_, IpAddr, Slot> {
        self.all.iter()
    }

    /// Changes an existing slot.
    pub(super) fn change<T>(
        &mut self,
        address: IpAddr,
        change: impl FnOnce(&mut Slot) -> T,
    ) -> Option<T> {
        let slot = self.all.get_mut(&address)?;
        self.index.leave(address, slot);
        let result = change(slot);
        self.index.enter(address, slot);
        Some(result)
    }

    pub(super) fn insert(&mut self, address: IpAddr, slot: Slot) {
        self.remove(&address);
        self.index.enter(address, &slot);
        self.all.insert(address, slot);
    }

    pub(super) fn remove(&mut self, address: &IpAddr) {
        if let Some(slot) = self.all.remove(address) {
            self.index.leave(*address, &slot);
        }
    }

    /// Changes every slot, and keeps those for which the closure returns true.
    pub(super) fn retain(&mut self, mut change: impl FnMut(IpAddr, &mut Slot) -> bool) {
        self.all.retain(|address, slot| change(*address, slot));
        self.index = Index::default();
        for (address, slot) in &self.all {
            self.index.enter(*address, slot);
        }
    }

    /// Number of addresses of a family in each state.
    pub(super) fn address_counts(&self, family: IpFamily) -> AddressCounts {
        self.index.families[place(family)].address_counts
    }

    /// True if a family has an address that came with a grant.
    pub(super) fn has_granted(&self, family: IpFamily) -> bool {
        let blocks = &self.index.families[place(family)].blocks;
        // No grant sorts before any.
        blocks
            .last_key_value()
            .is_some_and(|(grant, _)| grant.is_some())
    }

    /// The address to assign next: from the fullest block, so that others become empty and can be
    /// released; within it the one unused for the longest time.
    pub(super) fn best(&self, family: IpFamily) -> Option<IpAddr> {
        let order = &self.index.families[place(family)].order;
        order.first().map(|(_, _, address)| *address)
    }

    /// Time at which the first cooldown ends.
    pub(super) fn cooled_at(&self) -> Option<Moment> {
        self.index.cooling.first().map(|(until, _)| *until)
    }

    /// An address whose cooldown has ended.
    pub(super) fn cooled(&self, now: Moment) -> Option<IpAddr> {
        let first = self.index.cooling.first();
        first
            .filter(|(until, _)| *until <= now)
            .map(|(_, address)| *address)
    }
}

/// Indexes derived from the slots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Index {
    families: [Family; 2],
    cooling: BTreeSet<(Moment, IpAddr)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Family {
    address_counts: AddressCounts,
    blocks: BTreeMap<Option<GrantName>, Block>,
    /// The next address to choose of each block that has one.
    order: BTreeSet<(Reverse<u32>, Moment, IpAddr)>,
}

/// Addresses of one grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Block {
    slots: u32,
    used: u32,
    free: BTreeSet<(Moment, IpAddr)>,
}

impl Block {
    /// Its rank in the order. Addresses without a grant are in no block that could become empty.
    fn rank(&self, grant: Option<&GrantName>) -> Option<(Reverse<u32>, Moment, IpAddr)> {
        let used = grant.map_or(0, |_| self.used);
        let (since, address) = self.free.first()?;
        Some((Reverse(used), *since, *address))
    }
}

impl Index {
    fn enter(&mut self, address: IpAddr, slot: &Slot) {
        self.count(address, slot, |number| *number += 1);
        if let State::Cooldown { until } = slot.state {
            self.cooling.insert((until, address));
        }
        self.block(address, slot, |block| {
            block.slots += 1;
            match slot.state {
                State::Assigned { .. } => block.used += 1,
                State::Available { since } => {
                    block.free.insert((since, address));
                }
                _ => {}
            }
        });
    }

    fn leave(&mut self, address: IpAddr, slot: &Slot) {
        self.count(address, slot, |number| *number -= 1);
        if let State::Cooldown { until } = slot.state {
            self.cooling.remove(&(until, address));
        }
        self.block(address, slot, |block| {
            block.slots -= 1;
            match slot.state {
                State::Assigned { .. } => block.used -= 1,
                State::Available { since } => {
                    block.free.remove(&(since, address));
                }
                _ => {}
            }
        });
    }

    fn count(&mut self, address: IpAddr, slot: &Slot, change: impl FnOnce(&mut u32)) {
        let address_counts = &mut self.families[place(IpFamily::of(address))].address_counts;
        change(match slot.state {
            State::Programming => &mut address_counts.programming,
            State::Available { .. } => &mut address_counts.available,
            State::Assigned { .. } => &mut address_counts.assigned,
            State::Cooldown { .. } => &mut address_counts.cooling,
            State::Releasing { .. } => &mut address_counts.releasing,
            State::Quarantined { .. } => &mut address_counts.quarantined,
        });
    }

    fn block(&mut self, address: IpAddr, slot: &Slot, change: impl FnOnce(&mut Block)) {
        let Family { blocks, order, .. } = &mut self.families[place(IpFamily::of(address))];
        let grant = slot.grant.as_ref();
        let block = blocks.entry(slot.grant.clone()).or_default();
        let before = block.rank(grant);
        change(block);
        let after = block.rank(grant);
        if block.slots == 0 {
            blocks.remove(&slot.grant);
        }
        if before != after {
            before.map(|rank| order.remove(&rank));
            order.extend(after);
        }
    }
}

fn place(family: IpFamily) -> usize {
    match family {
        IpFamily::V4 => 0,
        IpFamily::V6 => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pool::Key;

    fn at(seconds: u64) -> Moment {
        Moment::START + Duration::from_secs(seconds)
    }

    /// The choice by iterating over all slots, which the index must agree with.
    fn best_by_walking(slots: &Slots, family: IpFamily) -> Option<IpAddr> {
        let of = |slot: &Slot| {
            let Some(grant) = &slot.grant else { return 0 };
            let same = slots.iter().filter(|(address, other)| {
                IpFamily::of(**address) == family && other.grant.as_ref() == Some(grant)
            });
            same.filter(|(_, other)| matches!(other.state, State::Assigned { .. }))
                .count()
        };
        let free = slots.iter().filter_map(|(address, slot)| match slot.state {
            State::Available { since } if IpFamily::of(*address) == family => {
                Some((Reverse(of(slot)), since, *address))
            }
            _ => None,
        });
        free.min().map(|(_, _, address)| address)
    }

    #[test]
    fn the_indexes_agree_with_an_iteration() {
        let mut random = Random(7);
        let mut slots = Slots::default();
        for step in 0..3000 {
            let number = u8::try_from(random.below(40)).unwrap();
            let address: IpAddr = if number < 20 {
                [10, 0, 0, number].into()
            } else {
                IpAddr::from([0, 0, 0, 0, 0, 0, 0, u16::from(number)])
            };
            let state = match random.below(6) {
                0 => State::Programming,
                1 => State::Available {
                    since: at(random.below(9)),
                },
                2 => State::Assigned {
                    owner: Key::adopted(&"uid".into()),
                },
                3 => State::Cooldown {
                    until: at(random.below(9)),
                },
                4 => State::Releasing { until: None },
                _ => State::Quarantined {
                    owner: Key::adopted(&"uid".into()),
                },
            };
            let grant = (random.below(4) > 0).then(|| GrantName::from(format!("b{}", number / 8)));
            match random.below(20) {
                0 => slots.remove(&address),
                1 => slots.retain(|kept, _| kept != address),
                2..8 => {
                    slots.change(address, |slot| slot.state = state);
                }
                _ => slots.insert(address, Slot { state, grant }),
            }
            for family in IpFamily::ALL {
                let expected = best_by_walking(&slots, family);
                assert_eq!(slots.best(family), expected, "step {step}");
                let granted = slots
                    .iter()
                    .any(|(kept, slot)| IpFamily::of(*kept) == family && slot.grant.is_some());
                assert_eq!(slots.has_granted(family), granted, "step {step}");
            }
            let cooling = slots.iter().filter_map(|(_, slot)| match slot.state {
                State::Cooldown { until } => Some(until),
                _ => None,
            });
            assert_eq!(slots.cooled_at(), cooling.min(), "step {step}");
            let mut counted = slots.clone();
            counted.retain(|_, _| true);
            assert_eq!(counted, slots, "step {step}");
        }
    }

    /// A deterministic pseudo-random generator.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 33) % limit
        }
    }
}
