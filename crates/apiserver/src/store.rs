//! In-memory versioned store: collections of objects, one version counter, and a change log.
//!
//! [`Store::write`] serialises writers: while a [`Writer`] exists the state cannot change, so no write
//! is ever retried. Readers hold the inner lock only to copy references.

mod change;
mod collection;
mod filter;
mod object;
mod watcher;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

pub(crate) use change::{Change, EventKind, event_frame};
use collection::Collection;
pub(crate) use collection::{ListError, Page, PageRequest};
pub(crate) use filter::Filter;
pub(crate) use object::{Object, Stored, encode, object_key};
use parking_lot::{Mutex, MutexGuard};
pub(crate) use watcher::{Delivery, Subscription};
use weft_model::SharedStr;

use crate::{
    kind::StorageId,
    persistence::{Journal, Record},
};

/// All objects of the server.
#[derive(Debug)]
pub(crate) struct Store {
    state: Mutex<State>,
    writer: Mutex<()>,
    journal: Option<Journal>,
}

#[derive(Debug)]
struct State {
    /// The version of the newest write.
    version: u64,
    /// Versions below this have no history left.
    compacted: u64,
    /// Continue tokens of this version and older are refused.
    tokens_expired: u64,
    /// Changes kept per collection.
    history: usize,
    collections: HashMap<StorageId, Collection>,
    /// Objects by the UID of an owner they name.
    dependents: HashMap<SharedStr, BTreeSet<(StorageId, Arc<str>)>>,
    next_watcher: u64,
}

impl State {
    fn collection(&mut self, storage: &StorageId) -> &mut Collection {
        let (compacted, history) = (self.compacted, self.history);
        self.collections
            .entry(storage.clone())
            .or_insert_with(|| Collection::new(compacted, history))
    }
}

/// Start of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchStart {
    /// The current objects, then changes.
    Present,
    /// Changes after a version.
    After(u64),
    /// Changes from now on.
    Now,
}

/// A watch from a version older than the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooOld {
    /// The oldest version a watch can begin at.
    pub(crate) oldest: u64,
}

/// The changes of a collection since a reader's version.
#[derive(Debug)]
pub(crate) struct Delta {
    /// The version of the newest change, to pass to the next call.
    pub(crate) newest: u64,
    pub(crate) content: DeltaContent,
}

#[derive(Debug)]
pub(crate) enum DeltaContent {
    /// All changes since then, oldest first.
    Changes(Vec<Arc<Change>>),
    /// All objects, since the history does not reach back far enough.
    All(Vec<Arc<Stored>>),
}

impl Store {
    /// An empty store that keeps `history` changes per collection for watches to start from.
    pub(crate) fn new(history: usize, journal: Option<Journal>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                version: 1,
                compacted: 0,
                tokens_expired: 0,
                history,
                collections: HashMap::new(),
                dependents: HashMap::new(),
                next_watcher: 0,
            }),
            writer: Mutex::new(()),
            journal,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave a partial change that a reader could see: every change is one
        // insertion or removal.
        self.state.lock()
    }

    /// Waits for the writer lock, which is held until the writer is dropped.
    pub(crate) fn write(&self) -> Writer<'_> {
        let guard = self.writer.lock();
        Writer {
            store: self,
            _guard: guard,
        }
    }

    /// The version of the newest write.
    pub(crate) fn version(&self) -> u64 {
        self.state().version
    }

    /// Sets the version after a restart; older versions have no history.
    pub(crate) fn resume_at(&self, version: u64) {
        let mut state = self.state();
        state.version = state.version.max(version);
        drop(state);
        self.compact();
    }

    /// Loads an object of an earlier run, without an event.
    pub(crate) fn restore(&self, storage: &StorageId, object: Arc<Stored>) {
        let mut state = self.state();
        let key = object.key.clone();
        state.collection(storage).insert(object.clone());
        state.reindex(
            storage,
            &key,
            &Change::new(object.version, None, Some(object)),
        );
    }

    /// False when the journal has failed and writes cannot be persisted.
    pub(crate) fn keeps_writes(&self) -> bool {
        !self.journal.as_ref().is_some_and(Journal::is_broken)
    }

    /// Waits until all writes so far are on disk; false when the journal has failed.
    pub(crate) async fn durable(&self) -> bool {
        match &self.journal {
            Some(journal) => journal.wait(self.version()).await,
            None => true,
        }
    }

    fn record(&self, storage: &StorageId, key: &Arc<str>, change: &Change) {
        if let Some(journal) = &self.journal {
            journal.record(Record {
                storage: storage.clone(),
                key: key.clone(),
                version: change.version,
                bytes: change.new.as_ref().map(|object| object.bytes.clone()),
            });
        }
    }

    pub(crate) fn get(&self, storage: &StorageId, key: &str) -> Option<Arc<Stored>> {
        self.state().collections.get(storage)?.get(key)
    }

    /// True when a collection has objects.
    pub(crate) fn has_any(&self, storage: &StorageId) -> bool {
        let state = self.state();
        let collection = state.collections.get(storage);
        collection.is_some_and(|collection| collection.len() > 0)
    }

    /// One page of a collection, with its version.
    pub(crate) fn page(
        &self,
        storage: &StorageId,
        request: &PageRequest<'_>,
    ) -> Result<Page, ListError> {
        let mut state = self.state();
        let (version, tokens_expired) = (state.version, state.tokens_expired);
        let collection = state.collection(storage);
        if request.continued && request.at.is_some_and(|at| at <= tokens_expired) {
            return Err(ListError::Expired);
        }
        collection.page(version, request)
    }

    /// All matching objects of a collection, and their version.
    pub(crate) fn all(&self, storage: &StorageId, filter: &Filter) -> (Vec<Arc<Stored>>, u64) {
        let mut state = self.state();
        let version = state.version;
        let items = state
            .collection(storage)
            .matching(filter)
            .cloned()
            .collect();
        (items, version)
    }

    /// The versions of the newest changes of some collections; 0 where nothing was written.
    pub(crate) fn newest<const N: usize>(&self, storages: &[StorageId; N]) -> [u64; N] {
        let state = self.state();
        let newest = |storage| state.collections.get(storage).map_or(0, Collection::newest);
        storages.each_ref().map(newest)
    }

    /// The changes since a version; all objects for `None`.
    pub(crate) fn delta_since(&self, storage: &StorageId, seen: Option<u64>) -> Delta {
        let mut state = self.state();
        let collection = state.collection(storage);
        let changes = seen.and_then(|version| collection.changes_after(version));
        let content = match changes {
            Some(changes) => DeltaContent::Changes(changes),
            None => DeltaContent::All(collection.matching(&Filter::default()).cloned().collect()),
        };
        Delta {
            newest: collection.newest(),
            content,
        }
    }

    /// Starts a watch: the initial state or missed changes first, then every matching change.
    pub(crate) fn watch(
        self: &Arc<Self>,
        storage: &StorageId,
        filter: Filter,
        start: WatchStart,
    ) -> Result<Subscription, TooOld> {
        let mut state = self.state();
        state.next_watcher += 1;
        let (id, version) = (state.next_watcher, state.version);
        let collection = state.collection(storage);
        let initial = collection.since(&filter, start)?;
        let after = match start {
            WatchStart::After(asked) => asked.max(version),
            WatchStart::Present | WatchStart::Now => version,
        };
        let (key, receiver) = collection.watchers.register(id, filter, after);
        Ok(Subscription::new(
            self.clone(),
            storage.clone(),
            key,
            id,
            initial,
            receiver,
            version,
        ))
    }

    /// The current version if the subscription's queue is empty, that is, has been read up to it.
    fn idle_version(&self, receiver_is_empty: impl FnOnce() -> bool) -> Option<u64> {
        let state = self.state();
        receiver_is_empty().then_some(state.version)
    }

    fn forget_watcher(&self, storage: &StorageId, key: &watcher::IndexKey, id: u64) {
        if let Some(collection) = self.state().collections.get_mut(storage) {
            collection.watchers.remove(key, id);
        }
    }

    /// Ends every watch of a collection cleanly.
    pub(crate) fn close_watches(&self, storage: &StorageId) {
        if let Some(collection) = self.state().collections.get_mut(storage) {
            collection.watchers.clear();
        }
    }

    /// Drops all history: watches and pages of earlier versions are too old afterwards.
    pub(crate) fn compact(&self) {
        let mut state = self.state();
        let version = state.version;
        state.compacted = version;
        state.tokens_expired = version;
        for collection in state.collections.values_mut() {
            collection.compact(version);
        }
    }

    /// Expires the continue tokens of all lists so far.
    pub(crate) fn expire_tokens(&self) {
        let mut state = self.state();
        state.tokens_expired = state.version;
    }

    /// Collections with objects in a namespace.
    pub(crate) fn occupied(&self, namespace: &str) -> Vec<StorageId> {
        let filter = Filter::in_namespace(Some(namespace));
        let state = self.state();
        let occupied = |(storage, collection): (&StorageId, &Collection)| {
            collection.matching(&filter).next().map(|_| storage.clone())
        };
        state.collections.iter().filter_map(occupied).collect()
    }

    /// Objects with an owner reference to this UID.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<(StorageId, Arc<Stored>)> {
        let state = self.state();
        let Some(keys) = state.dependents.get(uid) else {
            return Vec::new();
        };
        let find = |(storage, key): &(StorageId, Arc<str>)| {
            let stored = state.collections.get(storage)?.get(key)?;
            Some((storage.clone(), stored))
        };
        keys.iter().filter_map(find).collect()
    }

    /// True when an object has an owner reference to this UID.
    pub(crate) fn has_dependents(&self, uid: &str) -> bool {
        self.state().dependents.contains_key(uid)
    }

    /// Number of objects per collection, for metrics.
    pub(crate) fn counts(&self) -> BTreeMap<StorageId, usize> {
        let state = self.state();
        state
            .collections
            .iter()
            .map(|(storage, c)| (storage.clone(), c.len()))
            .collect()
    }
}

/// Exclusive write access: what it reads cannot change until it is dropped.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    store: &'a Store,
    _guard: MutexGuard<'a, ()>,
}

impl Writer<'_> {
    /// The version of the next write.
    pub(crate) fn next_version(&self) -> u64 {
        self.store.version() + 1
    }

    pub(crate) fn get(&self, storage: &StorageId, key: &str) -> Option<Arc<Stored>> {
        self.store.get(storage, key)
    }

    /// Stores an object whose version is [`Writer::next_version`], and notifies the watchers.
    pub(crate) fn put(&self, storage: &StorageId, object: Arc<Stored>) -> Arc<Change> {
        let mut state = self.store.state();
        debug_assert_eq!(object.version, state.version + 1);
        state.version = object.version;
        let key = object.key.clone();
        let collection = state.collection(storage);
        let old = collection.insert(object.clone());
        let change = collection.publish(Change::new(object.version, old, Some(object)));
        state.reindex(storage, &key, &change);
        self.store.record(storage, &key, &change);
        change
    }

    /// Removes an object and notifies the watchers; `None` when it does not exist.
    pub(crate) fn remove(&self, storage: &StorageId, key: &str) -> Option<Arc<Change>> {
        let mut state = self.store.state();
        let version = state.version + 1;
        let collection = state.collection(storage);
        let old = collection.remove(key)?;
        let key = old.key.clone();
        let change = collection.publish(Change::new(version, Some(old), None));
        state.version = version;
        state.reindex(storage, &key, &change);
        self.store.record(storage, &key, &change);
        Some(change)
    }
}

impl State {
    fn reindex(&mut self, storage: &StorageId, key: &Arc<str>, change: &Change) {
        let entry = || (storage.clone(), key.clone());
        for owner in change.old.iter().flat_map(|old| &old.owners) {
            if let Some(keys) = self.dependents.get_mut(owner) {
                keys.remove(&entry());
                if keys.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
        for owner in change.new.iter().flat_map(|new| &new.owners) {
            self.dependents
                .entry(owner.clone())
                .or_default()
                .insert(entry());
        }
    }
}

#[cfg(test)]
mod tests;
