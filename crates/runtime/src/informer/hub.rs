//! The store of an informer together with its subscribers and indexes.
//!
//! Store and subscribers change under one lock, so a late subscriber gets an exact cut: the state,
//! then every change after it.

use std::{
    collections::{HashMap, hash_map},
    sync::{Arc, Weak},
};

use weft_model::{ObjectKey, is_older_version};

use super::{
    Change, StopReason, UndecodableObject, index::Indexed, pending::Pending, subscription::Mailbox,
};
use crate::Object;

pub(crate) struct Hub<K: Object> {
    objects: HashMap<ObjectKey, Slot<K>>,
    undecodable: HashMap<ObjectKey, (Arc<UndecodableObject>, Generation)>,
    mailboxes: Vec<Weak<Mailbox<K>>>,
    indexes: Vec<Weak<dyn Indexed<K>>>,
    generation: Generation,
    wire_bytes: u64,
    has_synced: bool,
    accept_older: bool,
    stopped: Option<StopReason>,
}

struct Slot<K> {
    object: Arc<K>,
    wire_bytes: u32,
    generation: Generation,
}

/// Counts lists. An entry that a list did not touch has an older generation and is swept.
type Generation = u32;

/// Outcome of applying an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    Changed,
    Unchanged,
    /// The object is older than the one held: a late answer of a lagging server.
    Stale,
}

impl<K: Object> Hub<K> {
    pub(super) fn new() -> Self {
        Self {
            objects: HashMap::new(),
            undecodable: HashMap::new(),
            mailboxes: Vec::new(),
            indexes: Vec::new(),
            generation: 0,
            wire_bytes: 0,
            has_synced: false,
            accept_older: false,
            stopped: None,
        }
    }

    pub(super) fn stopped(&self) -> Option<&StopReason> {
        self.stopped.as_ref()
    }

    pub(super) fn has_synced(&self) -> bool {
        self.has_synced
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        self.objects.get(key).map(|slot| &slot.object)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<K>)> {
        self.objects.iter().map(|(key, slot)| (key, &slot.object))
    }

    pub(super) fn undecodable(&self) -> impl Iterator<Item = &Arc<UndecodableObject>> {
        self.undecodable.values().map(|(object, _)| object)
    }

    pub(super) fn undecodable_at(&self, key: &ObjectKey) -> Option<&Arc<UndecodableObject>> {
        self.undecodable.get(key).map(|(object, _)| object)
    }

    /// Keys waiting in the fullest mailbox, and the number of subscribers.
    pub(super) fn backlog(&self) -> (usize, usize) {
        let live = self.mailboxes.iter().filter_map(Weak::upgrade);
        live.fold((0, 0), |(most, count), mailbox| {
            (most.max(mailbox.len()), count + 1)
        })
    }

    /// Starts a list: everything applied from here on belongs to it.
    pub(crate) fn begin_list(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// `true` lets older versions replace newer ones: the server's storage was restored to an
    /// earlier state.
    pub(crate) fn accept_older_versions(&mut self, accept: bool) {
        self.accept_older = accept;
    }

    /// Returns whether a key is held, decodable or not.
    pub(crate) fn knows(&self, key: &ObjectKey) -> bool {
        self.objects.contains_key(key) || self.undecodable.contains_key(key)
    }

    /// Completes a list: everything that it did not contain is gone.
    pub(crate) fn finish_list(&mut self) {
        let generation = self.generation;
        let gone = self
            .objects
            .iter()
            .filter(|(_, slot)| slot.generation != generation);
        let gone: Vec<ObjectKey> = gone.map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.delete(&key, None);
        }
        let gone = self
            .undecodable
            .iter()
            .filter(|(_, (_, seen))| *seen != generation);
        let gone: Vec<ObjectKey> = gone.map(|(key, _)| key.clone()).collect();
        for key in gone {
            if let Some((object, _)) = self.undecodable.remove(&key) {
                self.notify_gone(&object);
            }
        }
        if !self.has_synced {
            self.has_synced = true;
            self.notify(&ObjectKey::cluster(""), &Change::Synced);
        }
    }

    pub(crate) fn apply(&mut self, object: K, wire_bytes: usize) -> Applied {
        let key = object.key();
        if !self.undecodable.is_empty() {
            self.undecodable.remove(&key);
        }
        let wire_bytes = u32::try_from(wire_bytes).unwrap_or(u32::MAX);
        let initial = !self.has_synced;
        let generation = self.generation;
        let entry = match self.objects.entry(key.clone()) {
            hash_map::Entry::Vacant(entry) => {
                let new = Arc::new(object);
                self.wire_bytes += u64::from(wire_bytes);
                entry.insert(Slot {
                    object: new.clone(),
                    wire_bytes,
                    generation,
                });
                self.reindex(&key, Some(&new));
                self.notify(&key, &Change::Added { new, initial });
                return Applied::Changed;
            }
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
        };
        let same_object = entry.object.uid() == object.uid();
        let older = is_older_version(object.resource_version(), entry.object.resource_version());
        if older && !self.accept_older {
            entry.generation = generation;
            return Applied::Stale;
        }
        entry.generation = generation;
        if same_object && entry.object.resource_version() == object.resource_version() {
            return Applied::Unchanged;
        }
        let new = Arc::new(object);
        let old = std::mem::replace(&mut entry.object, new.clone());
        self.wire_bytes += u64::from(wire_bytes);
        self.wire_bytes -= u64::from(std::mem::replace(&mut entry.wire_bytes, wire_bytes));
        self.reindex(&key, Some(&new));
        if same_object {
            self.notify(
                &key,
                &Change::Updated {
                    old,
                    new,
                    resync: false,
                },
            );
        } else {
            // Deleted and created again between two states seen: two objects, hence two changes.
            self.notify(
                &key,
                &Change::Deleted {
                    last: old,
                    final_state_unknown: true,
                },
            );
            self.notify(&key, &Change::Added { new, initial });
        }
        Applied::Changed
    }

    pub(crate) fn mark_undecodable(&mut self, object: UndecodableObject) {
        let key = object.key.clone();
        let object = Arc::new(object);
        if let Some(slot) = self.objects.get_mut(&key) {
            slot.generation = self.generation;
        }
        let known = self
            .undecodable
            .insert(key.clone(), (object.clone(), self.generation));
        if known.is_none_or(|(known, _)| known.resource_version != object.resource_version) {
            self.notify(&key, &Change::Undecodable(object));
        }
    }

    /// Without a final state, subscribers get the last known one, marked as such.
    pub(crate) fn delete(&mut self, key: &ObjectKey, final_state: Option<K>) {
        let undecodable = self.undecodable.remove(key);
        let Some(slot) = self.objects.remove(key) else {
            if let Some((object, _)) = undecodable {
                self.notify_gone(&object);
            }
            return;
        };
        self.wire_bytes -= u64::from(slot.wire_bytes);
        self.reindex(key, None);
        let final_state_unknown = final_state.is_none();
        let last = final_state.map_or(slot.object, Arc::new);
        self.notify(
            key,
            &Change::Deleted {
                last,
                final_state_unknown,
            },
        );
    }

    /// An object that never decoded is gone: there is no last state to send, so subscribers get its
    /// key.
    fn notify_gone(&mut self, object: &UndecodableObject) {
        let gone = UndecodableObject {
            deleted: true,
            ..object.clone()
        };
        self.notify(&object.key, &Change::Undecodable(Arc::new(gone)));
    }

    /// Registers a mailbox and puts the present state into it.
    pub(super) fn subscribe(&mut self, mailbox: &Arc<Mailbox<K>>) {
        let mut pending = Pending::new();
        if let Some(reason) = &self.stopped {
            pending.push(&ObjectKey::cluster(""), Change::Closed(reason.clone()));
        }
        for (key, slot) in &self.objects {
            pending.push(
                key,
                Change::Added {
                    new: slot.object.clone(),
                    initial: true,
                },
            );
        }
        for (key, (object, _)) in &self.undecodable {
            pending.push(key, Change::Undecodable(object.clone()));
        }
        if self.has_synced {
            pending.push(&ObjectKey::cluster(""), Change::Synced);
        }
        mailbox.fill(pending);
        // Dropped mailboxes are pruned here, and otherwise only on a change: in a store that never
        // changes they would pile up, one for each start of a controller.
        self.mailboxes.retain(|known| known.strong_count() > 0);
        self.mailboxes.push(Arc::downgrade(mailbox));
    }

    pub(super) fn add_index(&mut self, index: &Arc<dyn Indexed<K>>) {
        for (key, slot) in &self.objects {
            index.set(key, &slot.object);
        }
        self.indexes.retain(|known| known.strong_count() > 0);
        self.indexes.push(Arc::downgrade(index));
    }

    /// Frees the store and notifies every subscriber.
    pub(super) fn stop(&mut self, reason: &StopReason) {
        if self.stopped.is_some() {
            return;
        }
        self.stopped = Some(reason.clone());
        self.notify(&ObjectKey::cluster(""), &Change::Closed(reason.clone()));
        for index in self.indexes.drain(..).filter_map(|index| index.upgrade()) {
            index.clear();
        }
        self.objects = HashMap::new();
        self.undecodable = HashMap::new();
        self.mailboxes = Vec::new();
        self.wire_bytes = 0;
    }

    fn notify(&mut self, key: &ObjectKey, change: &Change<K>) {
        self.mailboxes.retain(|mailbox| {
            let Some(mailbox) = mailbox.upgrade() else {
                return false;
            };
            mailbox.push(key, change.clone());
            true
        });
    }

    fn reindex(&mut self, key: &ObjectKey, object: Option<&K>) {
        self.indexes.retain(|index| {
            let Some(index) = index.upgrade() else {
                return false;
            };
            match object {
                Some(object) => index.set(key, object),
                None => index.remove(key),
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn dropped_subscribers_are_pruned_while_nothing_changes() {
        let mut hub: Hub<Pod> = Hub::new();
        let stays = Mailbox::new();
        hub.subscribe(&stays);
        for _ in 0..100 {
            hub.subscribe(&Mailbox::new());
        }
        // The last one is noticed at the next subscription.
        assert_eq!(hub.mailboxes.len(), 2);
        assert_eq!(hub.backlog().1, 1);
    }
}
