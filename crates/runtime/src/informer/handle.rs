//! Counted handles to a shared informer, and the state behind them.

use std::{
    hash::Hash,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::histogram::Histogram;
use serde::Serialize;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use weft_model::ResourceVersion;

use super::{
    Index, InformerKey, InformerState, InformerStopped, Lister, StopReason, Subscription,
    UndecodableObject,
    hub::Hub,
    index::{IndexCell, Indexed},
};
use crate::Object;

/// A counted handle to a shared informer: as long as one exists, the kind is watched.
///
/// Cloning adds a reference, dropping releases it, without blocking and outside any runtime. When
/// the last one goes (subscriptions, listers and indexes count too), the connection is closed and
/// the store freed.
pub struct Informer<K: Object> {
    pub(crate) shared: Arc<Shared<K>>,
    pub(crate) guard: Arc<Guard>,
}

/// Keeps an informer alive; the last one dropped wakes the informer's task, which then ends.
pub(crate) struct Guard {
    released: Arc<Notify>,
}

impl Guard {
    pub(crate) fn new(released: Arc<Notify>) -> Arc<Self> {
        Arc::new(Self { released })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.released.notify_one();
    }
}

impl<K: Object> Informer<K> {
    /// Reads the store.
    pub fn lister(&self) -> Lister<K> {
        Lister {
            shared: self.shared.clone(),
            guard: self.guard.clone(),
        }
    }

    /// Follows the store from its present state on.
    pub fn subscribe(&self) -> Subscription<K> {
        Subscription::new(self.shared.key.clone(), self.guard.clone(), |mailbox| {
            self.shared.write(|hub| hub.subscribe(mailbox));
        })
    }

    /// Adds an index over derived values, also while the informer runs.
    ///
    /// The function is called while the store is locked: it must not read this informer.
    pub fn add_index<V: Hash + Eq + Clone + Send + Sync + 'static>(
        &self,
        name: &str,
        extract: impl Fn(&K) -> Vec<V> + Send + Sync + 'static,
    ) -> Index<K, V> {
        let cell = IndexCell::new(name, extract);
        let erased: Arc<dyn Indexed<K>> = cell.clone();
        self.shared.write(|hub| hub.add_index(&erased));
        Index {
            cell,
            shared: self.shared.clone(),
            guard: self.guard.clone(),
        }
    }

    /// Resolves when the first list is complete.
    pub async fn synced(&self) -> Result<(), InformerStopped> {
        let mut state = self.shared.state.subscribe();
        loop {
            if self.shared.read(Hub::has_synced)? {
                return Ok(());
            }
            if state.changed().await.is_err() {
                return self.shared.read(|_| ());
            }
        }
    }

    /// Follows its state.
    pub fn state(&self) -> watch::Receiver<InformerState> {
        self.shared.state.subscribe()
    }

    /// Key in the cache.
    pub fn key(&self) -> &InformerKey {
        &self.shared.key
    }
}

impl<K: Object> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            guard: self.guard.clone(),
        }
    }
}

/// State shared by the handles, the cache and the informer's task.
pub(crate) struct Shared<K: Object> {
    pub(crate) key: InformerKey,
    hub: RwLock<Hub<K>>,
    pub(super) state: watch::Sender<InformerState>,
    statistics: Mutex<Statistics>,
    pub(crate) cancel: CancellationToken,
    pub(crate) closed: CancellationToken,
    pub(crate) recheck: Notify,
    pub(crate) latency: Histogram,
}

/// Buckets of client-go's `informer_processing_latency_seconds`.
const LATENCY_BUCKETS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

struct Statistics {
    version: ResourceVersion,
    started: Instant,
    last_event: Option<Instant>,
    lists: u64,
    watches: u64,
    events: u64,
    errors: u64,
    last_error: Option<String>,
    trouble_since: Option<Instant>,
    guard: Weak<Guard>,
}

impl<K: Object> Shared<K> {
    pub(crate) fn new(key: InformerKey, guard: &Arc<Guard>) -> Arc<Self> {
        Arc::new(Self {
            key,
            hub: RwLock::new(Hub::new()),
            state: watch::Sender::new(InformerState::Listing { relist: false }),
            statistics: Mutex::new(Statistics {
                version: ResourceVersion::default(),
                started: Instant::now(),
                last_event: None,
                lists: 0,
                watches: 0,
                events: 0,
                errors: 0,
                last_error: None,
                trouble_since: None,
                guard: Arc::downgrade(guard),
            }),
            cancel: CancellationToken::new(),
            closed: CancellationToken::new(),
            recheck: Notify::new(),
            latency: Histogram::new(LATENCY_BUCKETS),
        })
    }

    pub(super) fn read<R>(&self, look: impl FnOnce(&Hub<K>) -> R) -> Result<R, InformerStopped> {
        let hub = self.hub.read();
        match hub.stopped() {
            Some(reason) => Err(InformerStopped {
                key: Box::new(self.key.clone()),
                reason: reason.clone(),
            }),
            None => Ok(look(&hub)),
        }
    }

    pub(crate) fn write<R>(&self, change: impl FnOnce(&mut Hub<K>) -> R) -> R {
        change(&mut self.hub.write())
    }

    pub(super) fn version(&self) -> ResourceVersion {
        self.statistics(|statistics| statistics.version.clone())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.statistics(|statistics| statistics.guard.strong_count() > 0)
    }

    pub(super) fn has_synced(&self) -> bool {
        self.read(Hub::has_synced).unwrap_or(false)
    }

    pub(super) fn set_state(&self, state: InformerState) {
        self.state.send_if_modified(|current| {
            if matches!(current, InformerState::Stopped(_)) {
                return false;
            }
            *current = state;
            true
        });
    }

    pub(super) fn note_version(&self, version: &str) {
        self.statistics(|statistics| {
            statistics.last_event = Some(Instant::now());
            statistics.events += 1;
            if statistics.version.as_str() != version {
                statistics.version = ResourceVersion::from(version);
            }
        });
    }

    pub(super) fn note_list(&self) {
        self.statistics(|statistics| statistics.lists += 1);
    }

    pub(super) fn note_watch(&self) {
        self.statistics(|statistics| statistics.watches += 1);
    }

    /// Counts a failure and returns the time of the first failure in a row.
    pub(super) fn note_error(&self, error: String) -> Instant {
        self.statistics(|statistics| {
            statistics.errors += 1;
            statistics.last_error = Some(error);
            *statistics.trouble_since.get_or_insert_with(Instant::now)
        })
    }

    /// Ends a row of failures.
    pub(super) fn note_success(&self) {
        self.statistics(|statistics| statistics.trouble_since = None);
        self.set_state(InformerState::Synced);
    }

    fn statistics<R>(&self, with: impl FnOnce(&mut Statistics) -> R) -> R {
        with(&mut self.statistics.lock())
    }
}

/// An informer without its object type, as the cache's registry holds it.
pub(crate) trait AnyInformer: Send + Sync {
    fn any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync>;
    fn stop(&self, reason: &StopReason);
    fn closed(&self) -> CancellationToken;
    fn key(&self) -> &InformerKey;
    fn latency(&self) -> Histogram;
    fn info(&self) -> InformerInfo;
    fn recheck(&self);
    fn adopt(&self, guard: &Arc<Guard>);
    fn guard(&self) -> Option<Arc<Guard>>;
}

impl<K: Object> AnyInformer for Shared<K> {
    fn any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }

    fn stop(&self, reason: &StopReason) {
        self.write(|hub| hub.stop(reason));
        self.state.send_if_modified(|current| {
            let running = !matches!(current, InformerState::Stopped(_));
            if running {
                *current = InformerState::Stopped(reason.clone());
            }
            running
        });
        self.cancel.cancel();
    }

    fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    fn key(&self) -> &InformerKey {
        &self.key
    }

    fn latency(&self) -> Histogram {
        self.latency.clone()
    }

    fn recheck(&self) {
        self.recheck.notify_one();
    }

    fn adopt(&self, guard: &Arc<Guard>) {
        self.statistics(|statistics| statistics.guard = Arc::downgrade(guard));
    }

    fn guard(&self) -> Option<Arc<Guard>> {
        self.statistics(|statistics| statistics.guard.upgrade())
    }

    fn info(&self) -> InformerInfo {
        let state = self.state.borrow().clone();
        let hub = self.hub.read();
        let (backlog, subscribers) = hub.backlog();
        let mut undecodable: Vec<_> = hub.undecodable().cloned().collect();
        undecodable.sort_by(|left, right| left.key.cmp(&right.key));
        let (objects, wire_bytes, has_synced) = (hub.len(), hub.wire_bytes(), hub.has_synced());
        drop(hub);
        let now = Instant::now();
        self.statistics(|statistics| InformerInfo {
            cluster: self.key.cluster.to_string(),
            kind: self.key.kind.to_string(),
            namespace: self.key.namespace.as_ref().map(ToString::to_string),
            label_selector: self.key.labels.as_ref().map(ToString::to_string),
            field_selector: self.key.fields.as_ref().map(ToString::to_string),
            projection: self.key.projection(),
            state: state.name(),
            has_synced,
            consumers: statistics.guard.strong_count(),
            subscribers,
            backlog,
            objects,
            wire_bytes,
            undecodable,
            resource_version: statistics.version.to_string(),
            age_seconds: (now - statistics.started).as_secs_f64(),
            since_last_event_seconds: statistics.last_event.map(|last| (now - last).as_secs_f64()),
            retrying_seconds: statistics
                .trouble_since
                .map(|since| (now - since).as_secs_f64()),
            lists: statistics.lists,
            watches: statistics.watches,
            events: statistics.events,
            errors: statistics.errors,
            last_error: statistics.last_error.clone(),
        })
    }
}

/// An entry of `/debug/informers`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InformerInfo {
    /// The cluster watched.
    pub cluster: String,
    /// Resource and version.
    pub kind: String,
    /// The namespace watched, or all.
    pub namespace: Option<String>,
    /// Label selector.
    pub label_selector: Option<String>,
    /// Field selector.
    pub field_selector: Option<String>,
    /// Type that objects are decoded into.
    pub projection: &'static str,
    /// Name of the current state.
    pub state: &'static str,
    /// The first list is complete.
    pub has_synced: bool,
    /// Handles, subscriptions, listers and indexes that hold it.
    pub consumers: usize,
    /// Subscriptions among them.
    pub subscribers: usize,
    /// Keys waiting in the fullest subscription.
    pub backlog: usize,
    /// Objects in the store.
    pub objects: usize,
    /// Their size on the wire.
    pub wire_bytes: u64,
    /// Objects that exist but do not decode.
    pub undecodable: Vec<Arc<UndecodableObject>>,
    /// Newest version seen.
    pub resource_version: String,
    /// Time since the informer was created.
    pub age_seconds: f64,
    /// Time since the last event or bookmark.
    pub since_last_event_seconds: Option<f64>,
    /// Time since the first of the latest failures in a row; `None` while the server is followed.
    pub retrying_seconds: Option<f64>,
    /// Lists begun, streaming ones included.
    pub lists: u64,
    /// Watches begun.
    pub watches: u64,
    /// Events and bookmarks received.
    pub events: u64,
    /// Failed lists and watches.
    pub errors: u64,
    /// The latest failure.
    pub last_error: Option<String>,
}

impl InformerInfo {
    /// Returns whether the server could not be followed for longer than `limit`.
    pub fn is_stuck(&self, limit: Duration) -> bool {
        self.retrying_seconds
            .is_some_and(|seconds| seconds > limit.as_secs_f64())
    }
}
