//! One followed kind: an informer that is opened again after its removal.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use weft_runtime::{
    Cache, Change, Cluster, Informer, InformerState, KindState, Kinded, Lister, Subscription,
    WaitReason, WatchSpec,
};

use super::{Source, SyncState};

/// Pause before an informer that was removed is opened again.
const RETURN: Duration = Duration::from_secs(1);

/// A kind that is followed until this is dropped, through removal of its informer and of the kind
/// itself.
pub(super) struct Followed<K: Kinded> {
    what: &'static str,
    cache: Cache,
    /// Availability, for a kind that not every server has.
    kind: Option<watch::Receiver<KindState>>,
    open: Option<Open<K>>,
    /// Time of the next attempt.
    again: Instant,
    /// True for two states of an object that the page shows alike.
    shows_the_same: fn(&K, &K) -> bool,
}

struct Open<K: Kinded> {
    objects: Lister<K>,
    changes: Subscription<K>,
    states: watch::Receiver<InformerState>,
}

impl<K: Kinded> Followed<K> {
    /// A kind that every server has.
    pub(super) fn new(cluster: &Cluster, what: &'static str) -> Self {
        Self {
            what,
            cache: cluster.cache().clone(),
            kind: None,
            open: None,
            again: Instant::now(),
            shows_the_same: |_, _| false,
        }
    }

    /// Ignores updates between states that the page shows alike.
    pub(super) fn unless(mut self, shows_the_same: fn(&K, &K) -> bool) -> Self {
        self.shows_the_same = shows_the_same;
        self
    }

    /// A kind that comes and goes with its definition.
    pub(super) fn if_served(cluster: &Cluster, what: &'static str) -> Self {
        Self {
            kind: Some(cluster.kind(&K::resource_kind())),
            ..Self::new(cluster, what)
        }
    }

    /// Resolves when there may be something new. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        if !self.is_served() {
            self.open = None;
            return kind_changed(&mut self.kind).await;
        }
        let Some(open) = &mut self.open else {
            sleep_until(self.again).await;
            self.open = Some(Open::new(&self.cache));
            return;
        };
        loop {
            tokio::select! {
                change = open.changes.next() => match change {
                    Some(Change::Updated { old, new, .. }) if (self.shows_the_same)(&old, &new) => {
                        continue;
                    }
                    None | Some(Change::Closed(_)) => {
                        self.open = None;
                        self.again = Instant::now() + RETURN;
                    }
                    Some(_) => {}
                },
                Ok(()) = open.states.changed() => {}
                () = kind_changed(&mut self.kind) => {}
            }
            return;
        }
    }

    fn is_served(&self) -> bool {
        let kind = self.kind.as_ref();
        kind.is_none_or(|kind| *kind.borrow() == KindState::Present)
    }

    pub(super) fn objects(&self) -> Vec<Arc<K>> {
        // Empty for an informer that has stopped; `source` reports it as missing.
        let open = self.open.as_ref();
        open.and_then(|open| open.objects.list().ok())
            .unwrap_or_default()
    }

    pub(super) fn source(&self) -> Source {
        let sync = match &self.open {
            _ if !self.is_served() => SyncState::NotServed,
            None => SyncState::Listing,
            Some(open) => open.sync(),
        };
        Source {
            what: self.what,
            sync,
        }
    }
}

/// Never resolves for a kind that every server has.
async fn kind_changed(kind: &mut Option<watch::Receiver<KindState>>) {
    if let Some(kind) = kind
        && kind.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

impl<K: Kinded> Open<K> {
    fn new(cache: &Cache) -> Self {
        let informer: Informer<K> = cache.informer(&WatchSpec::all());
        Self {
            objects: informer.lister(),
            changes: informer.subscribe(),
            states: informer.state(),
        }
    }

    fn sync(&self) -> SyncState {
        match &*self.states.borrow() {
            InformerState::Synced | InformerState::Listing { relist: true } => SyncState::Followed,
            InformerState::Listing { relist: false } => SyncState::Listing,
            InformerState::Waiting(WaitReason::Unreachable) | InformerState::Retrying { .. } => {
                SyncState::Unreachable
            }
            InformerState::Waiting(WaitReason::KindMissing) | InformerState::Stopped(_) => {
                SyncState::NotServed
            }
            InformerState::Waiting(reason) => SyncState::Refused(reason.name()),
        }
    }
}
