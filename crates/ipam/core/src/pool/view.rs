//! What others may know about a pool.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weft_model::{IpFamily, Moment};

use super::{Attachment, Key, Pool, State};
use crate::{ContainerId, GrantName, NodeConfig, config::Grant, range::address_count};

/// How many addresses of a family are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Census {
    /// To be handed out.
    pub available: u32,
    /// Pods have them, and they are ours.
    pub assigned: u32,
    /// Released not long ago.
    pub cooling: u32,
    /// Offered to the controller.
    pub releasing: u32,
    /// Not usable yet.
    pub programming: u32,
    /// Pods have them, but they are not ours.
    pub quarantined: u32,
}

impl Census {
    /// What the node holds and has not offered.
    pub fn kept(self) -> u32 {
        self.available + self.assigned + self.cooling + self.programming
    }

    /// Everything the node holds.
    pub fn held(self) -> u32 {
        self.kept() + self.releasing
    }
}

/// Why CNI CHECK fails.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CheckError {
    /// Nothing is known of the attachment.
    #[error("attachment {0} is not known")]
    Unknown(Key),
    /// It has other addresses.
    #[error("address {1} is not reserved for attachment {0}")]
    NotReserved(Key, IpAddr),
}

impl Pool {
    /// Counts the addresses of a family.
    pub fn census(&self, family: IpFamily) -> Census {
        self.slots.census(family)
    }

    /// The families of this node's addresses; IPv4 as long as none is known.
    pub fn served_families(&self) -> BTreeSet<IpFamily> {
        let mut families = self.families();
        if families.is_empty() {
            families.insert(IpFamily::V4);
        }
        families
    }

    /// How many attachments want addresses and have none yet.
    pub fn waiting(&self) -> u32 {
        let keys: BTreeSet<&Key> = self.waiting.iter().map(|waiting| &waiting.key).collect();
        u32::try_from(keys.len()).unwrap_or(u32::MAX)
    }

    /// How many attachments have addresses of this node's.
    pub fn attached(&self) -> u32 {
        u32::try_from(self.attachments.len()).unwrap_or(u32::MAX)
    }

    /// Who has what.
    pub fn attachments(&self) -> &BTreeMap<Key, Attachment> {
        &self.attachments
    }

    /// Every address and its state.
    pub fn states(&self) -> impl Iterator<Item = (IpAddr, &State)> {
        self.slots
            .iter()
            .map(|(address, slot)| (*address, &slot.state))
    }

    /// The entry of the NodeNetworkConfig that an address came with, and its container.
    pub fn origin(&self, address: IpAddr) -> Option<(&GrantName, &ContainerId)> {
        let name = self.slots.get(&address)?.grant.as_ref()?;
        let grant = self.grants.get(name)?;
        Some((name, &grant.container))
    }

    /// How many containers the NodeNetworkConfig has.
    pub fn container_count(&self) -> usize {
        self.containers.len()
    }

    /// Deleted attachments, and until when a late ADD of them is refused.
    pub fn tombstones(&self) -> &BTreeMap<Key, Moment> {
        &self.tombstones
    }

    /// What is offered for release: the `ipsNotInUse` to write.
    pub fn offered(&self) -> BTreeSet<GrantName> {
        let names = self.offered.iter();
        names
            .filter(|name| self.grants.contains_key(*name))
            .cloned()
            .collect()
    }

    /// How many addresses of a family are offered and not in this list yet.
    pub fn unlisted(&self, family: IpFamily, list: &BTreeSet<GrantName>) -> u32 {
        let unlisted = self.offered.difference(list);
        let grants = unlisted.filter_map(|name| self.grants.get(name));
        grants
            .filter(|grant| grant.family() == family)
            .map(size)
            .sum()
    }

    /// Whether nothing but a look at the pods ([`super::Event::Sweep`]) is missing before addresses
    /// are handed out: the store was lost, so they may be in use.
    pub fn awaits_pods(&self) -> bool {
        self.gate.config && !self.gate.pods
    }

    /// Whether a store was lost, and addresses that no pod shows rest until all that may be in use
    /// have been shown.
    pub fn rests(&self) -> bool {
        self.lost
    }

    /// Whether new attachments can be made, addresses given.
    pub fn is_ready(&self) -> bool {
        self.gate.is_open()
    }

    /// Whether these addresses are reserved for the attachment, for CNI CHECK.
    pub fn check(&self, key: &Key, addresses: &[IpAddr]) -> Result<(), CheckError> {
        let attachment = self.attachments.get(key);
        let attachment = attachment.ok_or_else(|| CheckError::Unknown(key.clone()))?;
        let reserved = |address: &IpAddr| {
            let mut leases = attachment.leases.iter();
            leases.any(|lease| lease.address == *address)
        };
        match addresses.iter().find(|address| !reserved(address)) {
            Some(address) => Err(CheckError::NotReserved(key.clone(), *address)),
            None => Ok(()),
        }
    }

    /// Whole grants that can be offered so that no family keeps less than the target: those that
    /// are not usable yet first, then the newest; none that still cools.
    pub fn surplus(&self, target: u32) -> Vec<GrantName> {
        let mut chosen = Vec::new();
        for family in self.served_families() {
            let mut left = self.census(family).kept().saturating_sub(target);
            if left == 0 {
                continue;
            }
            let mut candidates: Vec<(bool, &GrantName, u32)> = self
                .grants
                .iter()
                .filter(|(_, grant)| grant.family() == family && self.is_dynamic(grant))
                .filter_map(|(name, grant)| Some((self.is_usable(grant)?, name, size(grant))))
                .collect();
            candidates.sort_by(|one, other| (one.0, other.1).cmp(&(other.0, one.1)));
            for (_, name, size) in candidates {
                if size <= left {
                    left -= size;
                    chosen.push(name.clone());
                }
            }
        }
        chosen
    }

    fn is_dynamic(&self, grant: &Grant) -> bool {
        let container = self.containers.get(&grant.container);
        container.is_none_or(|container| container.dynamic)
    }

    /// Whether a grant that could be offered is usable; `None` if it cannot be offered.
    fn is_usable(&self, grant: &Grant) -> Option<bool> {
        let mut usable = false;
        for address in grant.addresses() {
            match self.slots.get(&address)?.state {
                State::Available { .. } => usable = true,
                State::Programming => {}
                _ => return None,
            }
        }
        Some(usable)
    }

    /// Offers that could be taken back to keep this many, the oldest first. They count only once
    /// a write without them was accepted.
    pub fn reclaimable(&self, target: u32, config: &NodeConfig) -> Vec<GrantName> {
        let mut chosen = Vec::new();
        for family in self.served_families() {
            let kept = self.census(family).kept();
            let mut wanted = target.saturating_sub(kept);
            for name in &self.offered {
                let grant = self
                    .grants
                    .get(name)
                    .filter(|grant| grant.family() == family);
                let held = config
                    .status
                    .entries()
                    .any(|(_, entry)| entry.name == *name);
                if let Some(grant) = grant
                    && held
                    && wanted > 0
                {
                    wanted = wanted.saturating_sub(size(grant));
                    chosen.push(name.clone());
                }
            }
        }
        chosen
    }
}

fn size(grant: &Grant) -> u32 {
    u32::try_from(address_count(grant.net)).unwrap_or(u32::MAX)
}
