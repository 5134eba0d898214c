//! Subscriptions: the change stream of one consumer of an informer.

use std::sync::Arc;

use futures::{Stream, stream};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use weft_model::ObjectKey;

use super::{Change, Guard, InformerKey, pending::Pending};
use crate::Object;

/// Pending changes of one subscriber, shared between the store and the subscription.
#[derive(Debug)]
pub(super) struct Mailbox<K> {
    pending: Mutex<Pending<K>>,
    arrived: Notify,
}

impl<K: Object> Mailbox<K> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            pending: Mutex::new(Pending::new()),
            arrived: Notify::new(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn fill(&self, pending: Pending<K>) {
        *self.lock() = pending;
        self.arrived.notify_one();
    }

    pub(super) fn push(&self, key: &ObjectKey, change: Change<K>) {
        self.lock().push(key, change);
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Pending<K>> {
        self.pending.lock()
    }
}

/// A consumer's view of an informer: the state at the time of subscribing, then every change.
///
/// Delivery is as fast as the subscriber takes it; what it has not taken coalesces per key. The
/// subscription holds the informer; dropping it releases.
pub struct Subscription<K: Object> {
    mailbox: Arc<Mailbox<K>>,
    synced: watch::Sender<bool>,
    key: InformerKey,
    ended: bool,
    _guard: Arc<Guard>,
}

impl<K: Object> Subscription<K> {
    pub(super) fn new(
        key: InformerKey,
        guard: Arc<Guard>,
        register: impl FnOnce(&Arc<Mailbox<K>>),
    ) -> Self {
        let mailbox = Mailbox::new();
        register(&mailbox);
        let synced = watch::Sender::new(false);
        Self {
            mailbox,
            synced,
            key,
            ended: false,
            _guard: guard,
        }
    }

    /// The next change. After [`Change::Closed`] there is nothing more.
    ///
    /// Asking for the next change says that the previous one has been handled. Safe to cancel.
    pub async fn next(&mut self) -> Option<Change<K>> {
        if self.ended {
            return None;
        }
        loop {
            let change = self.mailbox.lock().pop();
            match change {
                Some(change) => {
                    match change {
                        Change::Synced => drop(self.synced.send_replace(true)),
                        Change::Closed(_) => self.ended = true,
                        _ => {}
                    }
                    return Some(change);
                }
                None => self.mailbox.arrived.notified().await,
            }
        }
    }

    /// Key of the informer.
    pub fn informer(&self) -> &InformerKey {
        &self.key
    }

    /// Changes that wait to be taken, after coalescing.
    pub fn backlog(&self) -> usize {
        self.mailbox.len()
    }

    /// Resolves to `true` once everything that existed at the time of subscribing was handled:
    /// taken from this subscription, and the next change asked for.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    /// The changes as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Change<K>> {
        stream::unfold(self, |mut subscription| async {
            let change = subscription.next().await?;
            Some((change, subscription))
        })
    }
}
