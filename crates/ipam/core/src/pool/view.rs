//! Read-only queries of a pool, for status, metrics and scaling.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weft_model::{IpFamily, Moment};

use super::{Attachment, Key, Pool, State};
use crate::{ContainerId, GrantName, NodeConfig, config::Grant, range::address_count};

/// Number of addresses of a family in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressCounts {
    /// Free to be assigned.
    pub available: u32,
    /// Held by pods and granted.
    pub assigned: u32,
    /// In cooldown after a release.
    pub cooling: u32,
    /// Offered to the controller for release.
    pub releasing: u32,
    /// Not programmed by the host yet.
    pub programming: u32,
    /// Held by pods but no longer granted.
    pub quarantined: u32,
}

impl AddressCounts {
    /// Addresses the node holds and has not offered.
    pub fn kept(self) -> u32 {
        self.available + self.assigned + self.cooling + self.programming
    }

    /// All addresses the node holds.
    pub fn held(self) -> u32 {
        self.kept() + self.releasing
    }
}

/// The reason why a CNI CHECK fails.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CheckError {
    /// The attachment does not exist.
    #[error("attachment {0} does not exist")]
    Unknown(Key),
    /// The attachment has other addresses.
    #[error("address {1} is not reserved for attachment {0}")]
    NotReserved(Key, IpAddr),
}

impl Pool {
    /// Counts the addresses of a family.
    pub fn address_counts(&self, family: IpFamily) -> AddressCounts {
        self.slots.address_counts(family)
    }

    /// The families of this node's addresses; IPv4 while none is known.
    pub fn served_families(&self) -> BTreeSet<IpFamily> {
        let mut families = self.families();
        if families.is_empty() {
            families.insert(IpFamily::V4);
        }
        families
    }

    /// Number of ADDs that wait for addresses.
    pub fn waiting(&self) -> u32 {
        let keys: BTreeSet<&Key> = self.waiting.iter().map(|waiting| &waiting.key).collect();
        u32::try_from(keys.len()).unwrap_or(u32::MAX)
    }

    /// Number of attachments that hold addresses of this node.
    pub fn attached(&self) -> u32 {
        u32::try_from(self.attachments.len()).unwrap_or(u32::MAX)
    }

    /// All attachments by key.
    pub fn attachments(&self) -> &BTreeMap<Key, Attachment> {
        &self.attachments
    }

    /// Every address and its state.
    pub fn states(&self) -> impl Iterator<Item = (IpAddr, &State)> {
        self.slots
            .iter()
            .map(|(address, slot)| (*address, &slot.state))
    }

    /// The entry of the NodeNetworkConfig that granted an address, and its container.
    pub fn origin(&self, address: IpAddr) -> Option<(&GrantName, &ContainerId)> {
        let name = self.slots.get(&address)?.grant.as_ref()?;
        let grant = self.grants.get(name)?;
        Some((name, &grant.container))
    }

    /// Number of containers of the NodeNetworkConfig.
    pub fn container_count(&self) -> usize {
        self.containers.len()
    }

    /// Deleted attachments, with the time until which a late ADD is refused.
    pub fn tombstones(&self) -> &BTreeMap<Key, Moment> {
        &self.tombstones
    }

    /// Grants offered for release: the `ipsNotInUse` to write.
    pub fn offered(&self) -> BTreeSet<GrantName> {
        let names = self.offered.iter();
        names
            .filter(|name| self.grants.contains_key(*name))
            .cloned()
            .collect()
    }

    /// Number of addresses of a family that are offered and not in this list yet.
    pub fn unlisted(&self, family: IpFamily, list: &BTreeSet<GrantName>) -> u32 {
        let unlisted = self.offered.difference(list);
        let grants = unlisted.filter_map(|name| self.grants.get(name));
        grants
            .filter(|grant| grant.family() == family)
            .map(size)
            .sum()
    }

    /// True if the pool waits only for a list of the pods ([`super::Event::Sweep`]) before it
    /// assigns addresses: the store was lost, so they may be in use.
    pub fn awaits_pods(&self) -> bool {
        self.gate.config && !self.gate.pods
    }

    /// True after a store was lost, while addresses that no pod reports are held back.
    pub fn holds_back(&self) -> bool {
        self.lost
    }

    /// True if new attachments can be made, provided that addresses are free.
    pub fn is_ready(&self) -> bool {
        self.gate.is_open()
    }

    /// Checks that these addresses are reserved for the attachment, for CNI CHECK.
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

    /// Whole grants that can be offered so that every family keeps at least the target: those not
    /// usable yet first, then the newest; none that is cooling down.
    pub fn surplus(&self, target: u32) -> Vec<GrantName> {
        let mut chosen = Vec::new();
        for family in self.served_families() {
            let mut left = self.address_counts(family).kept().saturating_sub(target);
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

    /// True if a grant that could be offered is usable; `None` if it cannot be offered.
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

    /// Offers to withdraw in order to keep this many addresses, oldest first. They count only once
    /// a write without them was accepted.
    pub fn reclaimable(&self, target: u32, config: &NodeConfig) -> Vec<GrantName> {
        let mut chosen = Vec::new();
        for family in self.served_families() {
            let kept = self.address_counts(family).kept();
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
