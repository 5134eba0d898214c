//! The context of a reconcile: its key, stores, client and deadline.

use std::{fmt, sync::Arc};

use kube::{Api, Client};
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weft_model::ObjectKey;

use super::{
    expectation::{Expectations, TrackedApi},
    scope::RunScope,
};
use crate::{InformerStopped, Kind, Lister, Object, QueueKey};

/// Argument of [`Reconciler::reconcile`](super::Reconciler::reconcile).
pub struct Context<Q: QueueKey> {
    pub(super) key: Q,
    pub(super) failures: u32,
    pub(super) reasons: Reasons,
    pub(super) run: Arc<QueueRun<Q>>,
}

/// State that all reconciles of one run share.
pub(super) struct QueueRun<Q> {
    pub(super) scope: Arc<RunScope>,
    pub(super) expectations: Expectations<Q>,
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
        &self.run.scope.stop
    }

    /// Time after which external changes must have stopped: the end of the lease for controllers
    /// that need leadership.
    pub fn deadline(&self) -> Option<Instant> {
        self.run.scope.deadline()
    }

    /// Runs a mutation within [`Context::deadline`]. `None` if the deadline passed first.
    pub async fn fenced<T>(&self, mutation: impl Future<Output = T>) -> Option<T> {
        self.run.scope.fenced(mutation).await
    }

    /// The client of the controller's cluster.
    pub fn client(&self) -> &Client {
        &self.run.scope.client
    }

    /// The store that a source of this kind and type fills: for controllers whose sources decode
    /// several kinds into one type.
    pub fn lister_of<K: Object>(&self, kind: &Kind) -> Result<Lister<K>, NotWatched> {
        let name = std::any::type_name::<K>();
        self.run
            .scope
            .stores
            .lister_of_kind(kind)
            .ok_or(NotWatched::NoSource(name))
    }

    /// The store that a source of this type fills.
    pub fn lister<K: Object>(&self) -> Result<Lister<K>, NotWatched> {
        let name = std::any::type_name::<K>();
        self.run
            .scope
            .stores
            .lister()
            .ok_or(NotWatched::NoSource(name))
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
