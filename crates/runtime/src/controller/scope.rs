//! One run of a controller, unit or machine as its tasks see it: stop, start, lease and stores.

use std::{any::Any, sync::Arc, task::Poll};

use kube::Client;
use parking_lot::RwLock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weft_model::ObjectKey;

use super::{Gate, WatchId};
use crate::{Kind, Lister, Object};

/// State that all tasks of one run share.
pub(super) struct RunScope {
    pub(super) client: Client,
    pub(super) stores: Stores,
    /// Cancelled when the run must end.
    pub(super) stop: CancellationToken,
    /// Cancelled when every required source has delivered its first list.
    pub(super) synced: CancellationToken,
    /// Cancelled by the tasks when they have begun to work.
    pub(super) ready: CancellationToken,
    gate: Option<Gate>,
}

impl RunScope {
    pub(super) fn new(client: Client, gate: Option<Gate>) -> Self {
        Self {
            client,
            stores: Stores::default(),
            stop: CancellationToken::new(),
            synced: CancellationToken::new(),
            ready: CancellationToken::new(),
            gate,
        }
    }

    /// Time after which external changes must have stopped, where there is a lease.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.gate.as_ref().and_then(Gate::deadline)
    }

    /// Runs a mutation within the lease. `None` if the lease ended first.
    ///
    /// Checks the clock before every poll of the mutation, not only at the deadline: a process that
    /// was suspended may be woken by an answer and must not go on with the next request.
    pub(super) async fn fenced<T>(&self, mutation: impl Future<Output = T>) -> Option<T> {
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
        let mut stores = self.0.write();
        stores.push(Store { source, kind, view });
    }

    pub(super) fn remove(&self, source: WatchId) {
        let mut stores = self.0.write();
        stores.retain(|store| store.source != source);
    }

    pub(super) fn clear(&self) {
        self.0.write().clear();
    }

    pub(super) fn lister<K: Object>(&self) -> Option<Lister<K>> {
        let stores = self.0.read();
        stores
            .iter()
            .find_map(|store| store.view.any().downcast_ref::<Lister<K>>().cloned())
    }

    pub(super) fn lister_of_source<K: Object>(&self, source: WatchId) -> Option<Lister<K>> {
        let stores = self.0.read();
        let store = stores.iter().find(|store| store.source == source)?;
        store.view.any().downcast_ref::<Lister<K>>().cloned()
    }

    pub(super) fn lister_of_kind<K: Object>(&self, kind: &Kind) -> Option<Lister<K>> {
        let stores = self.0.read();
        let mut stores = stores.iter().filter(|store| store.kind == *kind);
        stores.find_map(|store| store.view.any().downcast_ref::<Lister<K>>().cloned())
    }

    pub(super) fn has_reached(&self, kind: &Kind, key: &ObjectKey, version: &str) -> bool {
        let stores = self.0.read();
        let mut relevant = stores.iter().filter(|store| store.kind == *kind);
        relevant.all(|store| store.view.has_reached(key, version))
    }
}
