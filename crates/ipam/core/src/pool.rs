//! The address pool of a node: assignment of addresses to pods.
//!
//! [`Pool::handle`] takes an [`Event`] and returns a [`Step`]: records to make durable, then
//! replies. The pool is ahead of the store: nothing it returns may leave the process before the
//! records are durable. After a crash [`Pool::restore`] rebuilds the same pool from the records.

mod attachment;
mod choice;
mod event;
mod observe;
mod record;
mod slots;
mod state;
mod sweep;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    time::Duration,
};

use weft_model::Moment;

pub use attachment::{Attachment, Key, Lease, PodIdentity};
pub use event::{AddRequest, Event, Notice, Refusal, Reply, RequestId, Step};
pub use record::{Identity, Journal, Record, Restored};
pub use state::{IllegalTransition, State};
pub use view::{AddressCounts, CheckError};

use crate::{ContainerId, GrantName, NetworkContainer, ResourceVersion, Uid, config::Grant};
use slots::{Slot, Slots};

/// Settings of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// UID of this machine's Node: a NodeNetworkConfig of another Node is ignored, even if it has
    /// our name.
    pub node: Uid,
    /// Time before a released address is assigned again.
    pub cooldown: Duration,
    /// Time for which an ADD that arrives after its DEL is refused.
    pub tombstone: Duration,
    /// Maximum time an ADD waits.
    pub wait: Duration,
    /// Time a pod must be gone before its addresses are released.
    pub sweep_after: Duration,
    /// A pod must be missing in more consecutive sweeps than this.
    pub sweeps: u32,
    /// Minimum age of an attachment that CNI GC releases: kubelet may not know a younger one yet.
    pub collect_after: Duration,
    /// Time for which addresses are held back after the store was lost. It is the longest a sandbox
    /// takes to be created, so one that kubelet has not reported yet is known by then.
    pub hold_after_loss: Duration,
    /// True if addresses are usable only after [`Event::Programmed`].
    pub programmed_by_host: bool,
}

impl Settings {
    /// The default settings for a node.
    pub fn new(node: Uid) -> Self {
        Self {
            node,
            cooldown: Duration::from_secs(30),
            tombstone: Duration::from_secs(600),
            wait: Duration::from_secs(25),
            sweep_after: Duration::from_secs(300),
            sweeps: 2,
            collect_after: Duration::from_secs(240),
            hold_after_loss: Duration::from_secs(240),
            programmed_by_host: false,
        }
    }
}

/// Observations required before new attachments are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Gate {
    config: bool,
    pods: bool,
    store: bool,
}

impl Gate {
    fn is_open(self) -> bool {
        self.config && self.pods && self.store
    }
}

/// The addresses of a node and their owners.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    settings: Settings,
    identity: Identity,
    gate: Gate,
    /// True after a store was lost, until all addresses were held back since the first sweep.
    lost: bool,
    /// Time at which that ends.
    held_until: Option<Moment>,
    epoch: Option<Uid>,
    /// UID of an earlier or deleted NodeNetworkConfig, which is ignored from then on.
    ended: Option<Uid>,
    seen: Option<ResourceVersion>,
    /// Names that the spec lists as not in use, by any writer.
    listed: BTreeSet<GrantName>,
    containers: BTreeMap<ContainerId, NetworkContainer>,
    programmed: BTreeMap<ContainerId, i64>,
    grants: BTreeMap<GrantName, Grant>,
    slots: Slots,
    attachments: BTreeMap<Key, Attachment>,
    tombstones: BTreeMap<Key, Moment>,
    /// Names that are or were offered and are not known to be gone or reclaimed, also before their
    /// grant is observed.
    offered: BTreeSet<GrantName>,
    waiting: VecDeque<AddRequest>,
    missing: BTreeMap<Key, (Moment, u32)>,
}

impl Pool {
    fn empty(settings: Settings, identity: Identity) -> Self {
        Self {
            settings,
            identity,
            gate: Gate {
                config: false,
                pods: false,
                store: true,
            },
            lost: false,
            held_until: None,
            epoch: None,
            ended: None,
            seen: None,
            listed: BTreeSet::new(),
            containers: BTreeMap::new(),
            programmed: BTreeMap::new(),
            grants: BTreeMap::new(),
            slots: Slots::default(),
            attachments: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            offered: BTreeSet::new(),
            waiting: VecDeque::new(),
            missing: BTreeMap::new(),
        }
    }

    /// Handles an event; returns the records, replies and notices that follow.
    pub fn handle(&mut self, event: Event, now: Moment) -> Step {
        let mut step = Step::default();
        self.expire(now, &mut step);
        match event {
            Event::Add(request) => self.add(request, now, &mut step),
            Event::Cancel(id) => self.waiting.retain(|waiting| waiting.id != id),
            Event::Delete(id, key) => self.delete(id, &key, now, &mut step),
            Event::Observed(config) => self.observed(&config, now, &mut step),
            Event::Accepted(config) => self.accepted(&config, now, &mut step),
            Event::Programmed(container, version) => self.programmed(&container, version, now),
            Event::Abandon(key) => self.detach(&key, now, &mut step),
            Event::Offer(names) => self.offer(names, &mut step),
            Event::Sweep(pods) => self.sweep(&pods, now, &mut step),
            Event::Collect { network, valid } => self.collect(&network, &valid, now, &mut step),
            Event::StoreFailed(keys) => self.store_failed(&keys, now, &mut step),
            Event::StoreRecovered => self.gate.store = true,
            Event::Tick => {}
        }
        self.serve(now, &mut step);
        step
    }

    /// Sets the UID of the Node, known only after the API server was reached; replays and deletions
    /// of attachments work before. Addresses of an earlier Node of this name are not assigned.
    pub fn set_node(&mut self, node: Uid) {
        if self.settings.node != node {
            self.settings.node = node;
            self.gate.config = false;
        }
    }

    /// Time at which the next [`Event::Tick`] is due.
    pub fn wake(&self) -> Option<Moment> {
        let cooled = self.slots.cooled_at().into_iter();
        cooled
            .chain(self.tombstones.values().copied())
            .chain(self.waiting.iter().map(|waiting| waiting.deadline))
            .min()
    }

    fn expire(&mut self, now: Moment, step: &mut Step) {
        self.cool(now, step);
        self.tombstones.retain(|key, until| {
            let stays = *until > now;
            if !stays {
                step.records.push(Record::Tombstone(key.clone(), None));
            }
            stays
        });
        let late: Vec<AddRequest> = take(&mut self.waiting, |waiting| waiting.deadline <= now);
        for waiting in late {
            let refusal = self
                .exhausted_family()
                .map_or(Refusal::NotReady, Refusal::Exhausted);
            step.refuse(waiting.id, refusal);
        }
    }

    fn add(&mut self, mut request: AddRequest, now: Moment, step: &mut Step) {
        request.deadline = request.deadline.min(now + self.settings.wait);
        if !self.gate.store {
            step.refuse(request.id, Refusal::Closed);
        } else if let Some(attachment) = self.attachments.get(&request.key) {
            step.replies
                .push((request.id, self.again(attachment, &request.pod)));
        } else if self.tombstones.contains_key(&request.key) {
            step.notices.push(Notice::LateAdd(request.key));
            step.refuse(request.id, Refusal::Deleted);
        } else {
            self.waiting.push_back(request);
        }
    }

    /// The reply to a repeated ADD: the same addresses.
    fn again(&self, attachment: &Attachment, pod: &PodIdentity) -> Reply {
        if (self.epoch.as_ref()).is_some_and(|epoch| *epoch != attachment.epoch) {
            return Reply::Refused(Refusal::FormerNode);
        }
        match (&attachment.pod.uid, &pod.uid) {
            (Some(held), Some(asked)) if held != asked => Reply::Refused(Refusal::OtherPod),
            _ => Reply::Assigned(attachment.leases.clone()),
        }
    }

    fn delete(&mut self, id: RequestId, key: &Key, now: Moment, step: &mut Step) {
        for waiting in take(&mut self.waiting, |waiting| waiting.key == *key) {
            step.refuse(waiting.id, Refusal::DeletedWhileWaiting);
        }
        self.detach(key, now, step);
        if !self.tombstones.contains_key(key) {
            let until = now + self.settings.tombstone;
            self.tombstones.insert(key.clone(), until);
            step.records
                .push(Record::Tombstone(key.clone(), Some(until)));
        }
        step.replies.push((id, Reply::Released));
    }

    /// Releases all addresses of an attachment.
    fn detach(&mut self, key: &Key, now: Moment, step: &mut Step) {
        let Some(attachment) = self.attachments.remove(key) else {
            return;
        };
        self.missing.remove(key);
        step.records.push(Record::Attachment(key.clone(), None));
        let until = now + self.settings.cooldown;
        for Lease { address, .. } in attachment.leases {
            let Some(slot) = self.slots.get(&address) else {
                continue;
            };
            if slot.state.owner() != Some(key) {
                continue;
            }
            // Only a store that was tampered with has two owners of an address; the other keeps it.
            if let Some(other) = holder(&self.attachments, address) {
                let owner = other.clone();
                let assigned = State::Assigned { owner };
                self.slots.change(address, |slot| slot.state = assigned);
                continue;
            }
            match slot.state.clone().release(until) {
                Ok(Some(state)) => {
                    self.slots.change(address, |slot| slot.state = state);
                    step.records.push(Record::Cooldown(address, Some(until)));
                }
                Ok(None) | Err(_) => {
                    self.slots.remove(&address);
                }
            }
        }
    }

    fn cool(&mut self, now: Moment, step: &mut Step) {
        while let Some(address) = self.slots.cooled(now) {
            self.slots
                .change(address, |slot| slot.state = slot.state.clone().cool(now));
            step.records.push(Record::Cooldown(address, None));
        }
    }

    fn offer(&mut self, names: Vec<GrantName>, step: &mut Step) {
        for name in names {
            if self.is_idle(&name) {
                self.release_grant(&name);
                if self.offered.insert(name.clone()) {
                    step.records.push(Record::Releasing(name, true));
                }
            }
        }
    }

    /// True if none of its addresses is assigned to a pod.
    fn is_idle(&self, name: &GrantName) -> bool {
        let Some(grant) = self.grants.get(name) else {
            return false;
        };
        let mut slots = grant
            .addresses()
            .filter_map(|address| self.slots.get(&address));
        slots.all(|slot| slot.state.owner().is_none())
    }

    fn release_grant(&mut self, name: &GrantName) {
        let Some(grant) = self.grants.get(name) else {
            return;
        };
        for address in grant.addresses() {
            if let Some(slot) = self.slots.get(&address)
                && let Ok(state) = slot.state.clone().offer()
            {
                self.slots.change(address, |slot| slot.state = state);
            }
        }
    }

    fn store_failed(&mut self, keys: &[Key], now: Moment, step: &mut Step) {
        self.gate.store = false;
        for key in keys {
            self.detach(key, now, step);
        }
        for waiting in std::mem::take(&mut self.waiting) {
            step.refuse(waiting.id, Refusal::Closed);
        }
    }
}

impl Step {
    fn refuse(&mut self, id: RequestId, refusal: Refusal) {
        self.replies.push((id, Reply::Refused(refusal)));
    }
}

fn take<T>(queue: &mut VecDeque<T>, mut wanted: impl FnMut(&T) -> bool) -> Vec<T> {
    let (taken, left): (VecDeque<T>, VecDeque<T>) = std::mem::take(queue)
        .into_iter()
        .partition(|item| wanted(item));
    *queue = left;
    taken.into()
}

fn holder(attachments: &BTreeMap<Key, Attachment>, address: IpAddr) -> Option<&Key> {
    let holds = |held: &Attachment| held.leases.iter().any(|lease| lease.address == address);
    attachments
        .iter()
        .find(|(_, held)| holds(held))
        .map(|(key, _)| key)
}
