use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use weft_runtime::{
    Cache, Change, Informer, InformerState, Kinded, Lister, Subscription, WaitReason, WatchSpec,
};

use super::{Source, Standing};

/// An informer may be removed with its kind; it is asked for again after this time.
const RETURN: Duration = Duration::from_secs(1);

/// A kind that is followed for as long as this lives, through everything that befalls informers.
pub(super) struct Followed<K: Kinded> {
    what: &'static str,
    cache: Cache,
    objects: Lister<K>,
    changes: Subscription<K>,
    states: watch::Receiver<InformerState>,
    closed: Option<Instant>,
}

impl<K: Kinded> Followed<K> {
    pub(super) fn new(cache: &Cache, what: &'static str) -> Self {
        let informer: Informer<K> = cache.informer(&WatchSpec::all());
        Self {
            what,
            cache: cache.clone(),
            objects: informer.lister(),
            changes: informer.subscribe(),
            states: informer.state(),
            closed: None,
        }
    }

    /// Resolves when there may be something new. Safe to cancel.
    pub(super) async fn changed(&mut self) {
        if let Some(closed) = self.closed {
            sleep_until(closed + RETURN).await;
            *self = Self::new(&self.cache, self.what);
            return;
        }
        tokio::select! {
            change = self.changes.next() => {
                if matches!(change, None | Some(Change::Closed(_))) {
                    self.closed = Some(Instant::now());
                }
            }
            Ok(()) = self.states.changed() => {}
        }
    }

    pub(super) fn objects(&self) -> Vec<Arc<K>> {
        // An informer that has stopped is said to be gone by `source`.
        self.objects.list().unwrap_or_default()
    }

    pub(super) fn source(&self) -> Source {
        let standing = match &*self.states.borrow() {
            InformerState::Synced | InformerState::Listing { relist: true } => Standing::Followed,
            InformerState::Listing { relist: false } => Standing::Filling,
            InformerState::Waiting(WaitReason::Unreachable) | InformerState::Retrying { .. } => {
                Standing::Unreachable
            }
            InformerState::Waiting(WaitReason::KindMissing) | InformerState::Stopped(_) => {
                Standing::NotServed
            }
            InformerState::Waiting(reason) => Standing::Refused(reason.name()),
        };
        Source {
            what: self.what,
            standing,
        }
    }
}
