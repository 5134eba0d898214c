//! Watchers of a collection, indexed by the most selective equality of their filter.
//!
//! The index key is a name, a label, a field or a namespace. A change visits only the keys of its old
//! and new object, so a thousand watchers of other nodes cost a write nothing.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::mpsc;
use weft_model::SharedStr;

use super::{Change, EventKind, Filter, Store, object::Stored};
use crate::kind::{FieldCondition, FieldRef, StorageId};

/// Queue length of a watcher. A watcher whose queue is full is closed; its client resumes from its
/// last version.
const BACKLOG: usize = 4096;

/// The equality that a watcher is indexed by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum IndexKey {
    Everything,
    Namespace(SharedStr),
    Name(SharedStr),
    Label(SharedStr, SharedStr),
    Field(usize, SharedStr),
}

impl IndexKey {
    fn of_filter(filter: &Filter) -> Self {
        if let Some(name) = filter.pinned_name() {
            return Self::Name(SharedStr::new(name));
        }
        let mut fields = filter.fields.iter().filter_map(FieldCondition::pinned);
        let stored = fields.find_map(|(field, value)| match field {
            FieldRef::Stored(position) => Some(Self::Field(position, SharedStr::new(value))),
            FieldRef::Name | FieldRef::Namespace => None,
        });
        let label = || {
            filter.labels.requirements().iter().find_map(|requirement| {
                let value = requirement.single_value()?;
                Some(Self::Label(
                    SharedStr::new(requirement.key()),
                    SharedStr::new(value),
                ))
            })
        };
        let namespace = || {
            filter
                .namespace
                .as_deref()
                .map(|n| Self::Namespace(SharedStr::new(n)))
        };
        stored
            .or_else(label)
            .or_else(namespace)
            .unwrap_or(Self::Everything)
    }

    fn of_object(object: &Stored, keys: &mut Vec<Self>) {
        keys.push(Self::Name(object.name.clone()));
        keys.push(Self::Namespace(object.namespace.clone()));
        for (key, value) in &object.labels {
            keys.push(Self::Label(key.clone(), value.clone()));
        }
        for (position, value) in object.fields.iter().enumerate() {
            keys.push(Self::Field(position, value.clone()));
        }
    }
}

/// One item of a watch.
#[derive(Debug, Clone)]
pub(crate) enum Delivery {
    /// An object of the initial state.
    Present(Arc<Stored>),
    Change(EventKind, Arc<Change>),
}

#[derive(Debug)]
struct Watcher {
    id: u64,
    filter: Filter,
    /// Changes up to this version are skipped: the watch started after them.
    after: u64,
    sender: mpsc::Sender<Delivery>,
}

/// The watchers of one collection.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    by_key: HashMap<IndexKey, Vec<Watcher>>,
}

impl Watchers {
    pub(super) fn register(
        &mut self,
        id: u64,
        filter: Filter,
        after: u64,
    ) -> (IndexKey, mpsc::Receiver<Delivery>) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let key = IndexKey::of_filter(&filter);
        let watcher = Watcher {
            id,
            filter,
            after,
            sender,
        };
        self.by_key.entry(key.clone()).or_default().push(watcher);
        (key, receiver)
    }

    pub(super) fn remove(&mut self, key: &IndexKey, id: u64) {
        if let Some(watchers) = self.by_key.get_mut(key) {
            watchers.retain(|watcher| watcher.id != id);
            if watchers.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    /// Ends every watch: receivers see the end of their channel.
    pub(super) fn clear(&mut self) {
        self.by_key.clear();
    }

    pub(super) fn publish(&mut self, change: &Arc<Change>) {
        if self.by_key.is_empty() {
            return;
        }
        let mut keys = vec![IndexKey::Everything];
        for object in change.old.iter().chain(&change.new) {
            IndexKey::of_object(object, &mut keys);
        }
        let unchanged = keys.len();
        for position in 0..unchanged {
            // Old and new object mostly have the same keys; each key is visited once.
            if keys[..position].contains(&keys[position]) {
                continue;
            }
            if let Some(watchers) = self.by_key.get_mut(&keys[position]) {
                watchers.retain(|watcher| watcher.send(change));
            }
        }
    }
}

impl Watcher {
    /// Queues the change if it matches; false when the watcher is closed or its queue is full.
    fn send(&self, change: &Arc<Change>) -> bool {
        if change.version <= self.after {
            return true;
        }
        match change.seen_through(&self.filter) {
            Some(kind) => self
                .sender
                .try_send(Delivery::Change(kind, change.clone()))
                .is_ok(),
            None => true,
        }
    }
}

/// An open watch on the store, ended on drop.
#[derive(Debug)]
pub(crate) struct Subscription {
    store: Arc<Store>,
    storage: StorageId,
    key: IndexKey,
    id: u64,
    initial: std::vec::IntoIter<Delivery>,
    receiver: mpsc::Receiver<Delivery>,
    /// The store's version when the watch started, which the initial state shows.
    pub(crate) started_at: u64,
}

impl Subscription {
    pub(super) fn new(
        store: Arc<Store>,
        storage: StorageId,
        key: IndexKey,
        id: u64,
        initial: Vec<Delivery>,
        receiver: mpsc::Receiver<Delivery>,
        started_at: u64,
    ) -> Self {
        Self {
            store,
            storage,
            key,
            id,
            initial: initial.into_iter(),
            receiver,
            started_at,
        }
    }

    /// The next item before live changes.
    pub(crate) fn next_initial(&mut self) -> Option<Delivery> {
        self.initial.next()
    }

    /// The next live change; `None` when the store closed the watch.
    pub(crate) async fn next_live(&mut self) -> Option<Delivery> {
        self.receiver.recv().await
    }

    /// The current version if every change has been delivered; `None` while some are queued.
    pub(crate) fn idle_version(&self) -> Option<u64> {
        self.store.idle_version(|| self.receiver.is_empty())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.store.forget_watcher(&self.storage, &self.key, self.id);
    }
}
