//! The context of a reconcile: its key, stores, client and deadline.

use std::{
    any::Any,
    fmt,
    sync::{Arc, PoisonError, RwLock},
    task::Poll,
};

use kube::{Api, Client};
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weft_model::ObjectKey;

use super::{
    Gate, WatchId,
    expectation::{Expectations, TrackedApi},
};
use crate::{InformerStopped, Kind, Lister, Object, QueueKey};

/// Argument of [`Reconciler::reconcile`](super::Reconciler::reconcile).
pub struct Context<Q: QueueKey> {
    pub(super) key: Q,
    pub(super) failures: u32,
    pub(super) reasons: Reasons,
    pub(super) run: Arc<RunContext<Q>>,
}

/// State that all reconciles of one run share.
pub(super) struct RunContext<Q: QueueKey> {
    pub(super) client: Client,
    pub(super) stores: Stores,
    pub(super) cancel: CancellationToken,
    pub(super) gate: Option<Gate>,
    pub(super) expectations: Expectations<Q>,
}

/// Stores that the controller's sources fill. Sources are added and removed while the controller
/// runs.
#[derive(Default)]
pub(super) struct Stores(RwLock<Vec<Store>>);

struct Store {
    source: WatchId,
    kind: Kind,
    view: Arc<dyn StoreView>,
}

/// A lister without its object type.
pub(super) trait StoreView: Send + Sync {
    fn any(&self) -> &dyn Any;
    fn has_reached(&self, key: &ObjectKey, version: &str) -> bool;
}

impl<K: Object> StoreView for Lister<K> {
    fn any(&self) -> &dyn Any {
        self
    }

    /// `true` for a stopped informer: it never reaches the version, and waiting would only stall
    /// the key.
    fn has_reached(&self, key: &ObjectKey, version: &str) -> bool {
        Self::has_reached(self, key, version).unwrap_or(true)
    }
}

impl Stores {
    pub(super) fn add(&self, source: WatchId, kind: Kind, view: Arc<dyn StoreView>) {
        let mut stores = self.0.write().unwrap_or_else(PoisonError::into_inner);
        stores.push(Store { source, kind, view });
    }

    pub(super) fn remove(&self, source: WatchId) {
        let mut stores = self.0.write().unwrap_or_else(PoisonError::into_inner);
        stores.retain(|store| store.source != source);
    }

    pub(super) fn clear(&self) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    pub(super) fn lister<K: Object>(&self) -> Option<Lister<K>> {
        let stores = self.0.read().unwrap_or_else(PoisonError::into_inner);
        stores
            .iter()
            .find_map(|store| store.view.any().downcast_ref::<Lister<K>>().cloned())
    }

    pub(super) fn lister_of_source<K: Object>(&self, source: WatchId) -> Option<Lister<K>> {
        let stores = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let store = stores.iter().find(|store| store.source == source)?;
        store.view.any().downcast_ref::<Lister<K>>().cloned()
    }

    fn lister_of_kind<K: Object>(&self, kind: &Kind) -> Option<Lister<K>> {
        let stores = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut stores = stores.iter().filter(|store| store.kind == *kind);
        stores.find_map(|store| store.view.any().downcast_ref::<Lister<K>>().cloned())
    }

    pub(super) fn has_reached(&self, kind: &Kind, key: &ObjectKey, version: &str) -> bool {
        let stores = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut relevant = stores.iter().filter(|store| store.kind == *kind);
        relevant.all(|store| store.view.has_reached(key, version))
    }
}

/// Failure to read an object from a controller's stores.
#[derive(Debug, Error)]
pub enum NotWatched {
    /// No source of the controller decodes into this type.
    #[error("no source of this controller holds {0}")]
    NoSource(&'static str),
    /// The source's informer has ended.
    #[error(transparent)]
    Stopped(#[from] InformerStopped),
}

impl<Q: QueueKey> Context<Q> {
    /// The key to reconcile.
    pub fn key(&self) -> &Q {
        &self.key
    }

    /// Failures since the last success: 0 on the first attempt.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Everything that happened to the key since it was last taken.
    pub fn reasons(&self) -> Reasons {
        self.reasons
    }

    /// Cancelled when the controller is asked to stop. A reconcile that notices can end early.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.run.cancel
    }

    /// Time after which external changes must have stopped: the end of the lease for controllers
    /// that need leadership.
    pub fn deadline(&self) -> Option<Instant> {
        self.run.gate.as_ref().and_then(Gate::deadline)
    }

    /// Runs a mutation within [`Context::deadline`]. `None` if the deadline passed first.
    ///
    /// Checks the clock before every poll of the mutation, not only at the deadline: a process that
    /// was suspended may be woken by an answer and must not go on with the next request.
    pub async fn fenced<T>(&self, mutation: impl Future<Output = T>) -> Option<T> {
        let Some(deadline) = self.deadline() else {
            return Some(mutation.await);
        };
        let mut mutation = std::pin::pin!(mutation);
        let guarded = std::future::poll_fn(|task| {
            if Instant::now() >= deadline {
                return Poll::Ready(None);
            }
            mutation.as_mut().poll(task).map(Some)
        });
        tokio::time::timeout_at(deadline, guarded)
            .await
            .unwrap_or_default()
    }

    /// The client of the controller's cluster.
    pub fn client(&self) -> &Client {
        &self.run.client
    }

    /// The store that a source of this kind and type fills: for controllers whose sources decode
    /// several kinds into one type.
    pub fn lister_of<K: Object>(&self, kind: &Kind) -> Result<Lister<K>, NotWatched> {
        let name = std::any::type_name::<K>();
        self.run
            .stores
            .lister_of_kind(kind)
            .ok_or(NotWatched::NoSource(name))
    }

    /// The store that a source of this type fills.
    pub fn lister<K: Object>(&self) -> Result<Lister<K>, NotWatched> {
        let name = std::any::type_name::<K>();
        self.run.stores.lister().ok_or(NotWatched::NoSource(name))
    }

    /// Writes through an API and remembers what was written: the key is not reconciled again
    /// from a store that is older, for controllers that asked to read their writes.
    pub fn tracked<K>(&self, api: Api<K>) -> TrackedApi<K, Q> {
        TrackedApi::new(api, self.key.clone(), self.run.clone())
    }
}

impl Context<ObjectKey> {
    /// The object of the key, from the store that a source of this type fills.
    pub fn object<K: Object>(&self) -> Result<Option<Arc<K>>, NotWatched> {
        Ok(self.lister::<K>()?.get(&self.key)?)
    }
}

/// Set of reasons for a reconcile: everything that happened since the key was last taken.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Reasons(u16);

impl Reasons {
    /// Part of the state found at start.
    pub const INITIAL: Self = Self(1);
    /// An object appeared.
    pub const ADDED: Self = Self(1 << 1);
    /// An object changed.
    pub const UPDATED: Self = Self(1 << 2);
    /// An object is gone.
    pub const DELETED: Self = Self(1 << 3);
    /// Periodic re-delivery.
    pub const RESYNC: Self = Self(1 << 4);
    /// An object cannot be decoded.
    pub const UNDECODABLE: Self = Self(1 << 5);
    /// [`Controller::trigger`](super::Controller::trigger) was called.
    pub const TRIGGERED: Self = Self(1 << 6);
    /// The last reconcile failed.
    pub const RETRY: Self = Self(1 << 7);
    /// The last reconcile asked to come back.
    pub const REQUEUED: Self = Self(1 << 8);

    const NAMES: [&'static str; 9] = [
        "initial",
        "added",
        "updated",
        "deleted",
        "resync",
        "undecodable",
        "triggered",
        "retry",
        "requeued",
    ];

    /// Returns whether all of `other` are in this set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.0 & (1 << bit) != 0);
        for (position, (_, name)) in names.enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
