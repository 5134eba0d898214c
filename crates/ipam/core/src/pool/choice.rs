//! Choice of the addresses for an ADD.

use std::{
    collections::{BTreeSet, VecDeque},
    net::IpAddr,
};

use weft_model::{IpFamily, Moment};

use super::{AddRequest, Attachment, Lease, Pool, Record, Refusal, Reply, State, Step};

impl Pool {
    /// Serves waiting ADDs in the order of arrival.
    pub(super) fn serve(&mut self, now: Moment, step: &mut Step) {
        // A cooldown of zero ends at once, not at the next event.
        self.cool(now, step);
        if !self.gate.is_open() {
            return;
        }
        let mut left = VecDeque::new();
        let mut empty = false;
        while let Some(request) = self.waiting.pop_front() {
            if let Some(attachment) = self.attachments.get(&request.key) {
                step.replies
                    .push((request.id, self.again(attachment, &request.pod)));
                continue;
            }
            let chosen = if request.desired.is_empty() {
                if empty { None } else { self.choose() }
            } else {
                match self.desired(&request.desired) {
                    Ok(chosen) => Some(chosen),
                    Err(address) => {
                        step.refuse(request.id, Refusal::Desired(address));
                        continue;
                    }
                }
            };
            if let Some(addresses) = chosen {
                self.attach(request, &addresses, now, step);
            } else {
                empty = true;
                left.push_back(request);
            }
        }
        self.waiting = left;
    }

    /// The families of which every pod gets an address.
    pub(super) fn families(&self) -> BTreeSet<IpFamily> {
        let subnets = self
            .containers
            .values()
            .flat_map(|container| &container.subnets);
        let mut families: BTreeSet<IpFamily> =
            subnets.map(|net| IpFamily::of(net.addr())).collect();
        let granted = |family: &IpFamily| self.slots.has_granted(*family);
        families.extend(IpFamily::ALL.into_iter().filter(granted));
        families
    }

    /// The address family that has run out, IPv4 if none has; `None` while the pool is not ready.
    pub(super) fn exhausted_family(&self) -> Option<IpFamily> {
        if !self.gate.is_open() {
            return None;
        }
        let missing = |family: &IpFamily| self.slots.best(*family).is_none();
        let families = self.families();
        families
            .iter()
            .copied()
            .find(missing)
            .or(Some(IpFamily::V4))
    }

    fn choose(&self) -> Option<Vec<IpAddr>> {
        let families = self.families();
        let chosen: Option<Vec<IpAddr>> = families
            .into_iter()
            .map(|family| self.slots.best(family))
            .collect();
        chosen.filter(|addresses| !addresses.is_empty())
    }

    fn desired(&self, addresses: &[IpAddr]) -> Result<Vec<IpAddr>, IpAddr> {
        let usable = |address: &IpAddr| {
            let slot = self.slots.get(address).filter(|slot| slot.grant.is_some());
            slot.is_some_and(|slot| match slot.state {
                State::Available { .. } => true,
                State::Programming => !self.lost,
                _ => false,
            })
        };
        let unique: BTreeSet<IpAddr> = addresses.iter().copied().collect();
        match unique.iter().find(|address| !usable(address)) {
            Some(address) => Err(*address),
            None => Ok(unique.into_iter().collect()),
        }
    }

    fn attach(&mut self, request: AddRequest, addresses: &[IpAddr], now: Moment, step: &mut Step) {
        let mut leases = Vec::with_capacity(addresses.len());
        for address in addresses {
            let Some(slot) = self.slots.get(address) else {
                continue;
            };
            if let Ok(state) = slot.state.clone().assign(request.key.clone()) {
                self.slots.change(*address, |slot| slot.state = state);
                leases.push(self.lease(*address));
            }
        }
        let attachment = Attachment {
            pod: request.pod,
            leases: leases.clone(),
            epoch: self.epoch.clone().unwrap_or_default(),
            at: now,
        };
        step.records.push(Record::Attachment(
            request.key.clone(),
            Some(attachment.clone()),
        ));
        self.attachments.insert(request.key, attachment);
        step.replies.push((request.id, Reply::Assigned(leases)));
    }

    pub(super) fn lease(&self, address: IpAddr) -> Lease {
        let family = IpFamily::of(address);
        let grant = self
            .slots
            .get(&address)
            .and_then(|slot| slot.grant.as_ref());
        let id = grant
            .and_then(|name| self.grants.get(name))
            .map(|grant| grant.container.clone())
            .unwrap_or_default();
        let container = self.containers.get(&id);
        Lease {
            address,
            prefix: container.map_or(family.width(), |container| container.prefix(family)),
            gateway: container.and_then(|container| container.gateway(family)),
            container: id,
        }
    }
}
