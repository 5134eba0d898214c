//! The queue of keys of a controller, and how changes become keys.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{Reasons, source::Sink};
use crate::{AddOptions, Change, Kind, Mapper, Object, Predicate, Priority, QueueKey, Workqueue};

/// A controller's queue together with the reasons for each key.
pub(super) struct Inbox<Q: QueueKey> {
    pub(super) queue: Workqueue<Q>,
    reasons: Mutex<HashMap<Q, Reasons>>,
}

impl<Q: QueueKey> Inbox<Q> {
    pub(super) fn new(queue: Workqueue<Q>) -> Self {
        Self {
            queue,
            reasons: Mutex::new(HashMap::new()),
        }
    }

    pub(super) fn add(&self, key: Q, reason: Reasons, priority: Priority) {
        if self.queue.is_closed() {
            return;
        }
        self.note(&key, reason);
        self.queue.add_with(
            key,
            AddOptions {
                priority,
                ..AddOptions::default()
            },
        );
    }

    pub(super) fn note(&self, key: &Q, reason: Reasons) {
        let mut reasons = self.reasons.lock();
        reasons.entry(key.clone()).or_default().insert(reason);
    }

    pub(super) fn take_reasons(&self, key: &Q) -> Reasons {
        let mut reasons = self.reasons.lock();
        reasons.remove(key).unwrap_or_default()
    }

    /// Opens the queue, empty, for a new run.
    pub(super) fn reopen(&self) {
        self.reasons.lock().clear();
        self.queue.reopen();
    }
}

/// Puts the keys that a change maps to into the queue.
pub(super) struct KeySink<K: Object, Q: QueueKey> {
    pub(super) kind: Kind,
    pub(super) predicate: Option<Predicate<K>>,
    pub(super) mapper: Mapper<K, Q>,
    pub(super) inbox: Arc<Inbox<Q>>,
}

impl<K: Object, Q: QueueKey> Sink<K> for KeySink<K, Q> {
    // Predicates and mappings are the user's code: a panic costs one change, not the source.
    async fn deliver(&self, change: Change<K>) {
        let delivered = catch_unwind(AssertUnwindSafe(|| self.enqueue(&change)));
        if delivered.is_err() {
            tracing::error!(source = %self.kind, key = ?change.key(),
                "predicate or mapping panicked; change skipped");
        }
    }
}

impl<K: Object, Q: QueueKey> KeySink<K, Q> {
    fn enqueue(&self, change: &Change<K>) {
        let predicate = self.predicate.as_ref();
        if predicate.is_some_and(|predicate| !predicate.allows(change)) {
            return;
        }
        let (reason, priority) = match change {
            Change::Added { initial: true, .. } => (Reasons::INITIAL, Priority::LOW),
            Change::Added { .. } => (Reasons::ADDED, Priority::NORMAL),
            Change::Updated { resync: true, .. } => (Reasons::RESYNC, Priority::LOW),
            Change::Updated { .. } => (Reasons::UPDATED, Priority::NORMAL),
            Change::Deleted { .. } => (Reasons::DELETED, Priority::NORMAL),
            Change::Undecodable(_) => (Reasons::UNDECODABLE, Priority::NORMAL),
            Change::Synced | Change::Closed(_) => return,
        };
        for key in self.keys(change) {
            self.inbox.add(key, reason, priority);
        }
    }

    fn keys(&self, change: &Change<K>) -> Vec<Q> {
        let mapper = &self.mapper;
        match change {
            Change::Updated {
                old,
                new,
                resync: false,
            } => {
                let mut keys = mapper.keys(new);
                // A panic on the old state must not lose the new one.
                let of_old = catch_unwind(AssertUnwindSafe(|| mapper.keys(old)));
                for key in of_old.unwrap_or_default() {
                    if !keys.contains(&key) {
                        keys.push(key);
                    }
                }
                keys
            }
            Change::Undecodable(object) => mapper.bare_key(&object.key).into_iter().collect(),
            _ => change
                .object()
                .map(|object| mapper.keys(object))
                .unwrap_or_default(),
        }
    }
}
