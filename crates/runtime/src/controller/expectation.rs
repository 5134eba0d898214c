//! Read-your-writes: delays a key until its stores show what it wrote.
//!
//! [`TrackedApi`] notes the version of every write; a worker puts a key back while a store lags
//! behind.

use std::{collections::HashMap, sync::Arc, time::Duration};

use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, timeout_at};
use weft_model::ObjectKey;

use super::{context::QueueRun, scope::Stores};
use crate::{Kind, Kinded, QueueKey};

/// Writes of each key that its stores have not shown yet.
pub(super) struct Expectations<Q> {
    /// Longest lag before the key is reconciled anyway; `None` disables the check.
    patience: Option<Duration>,
    written: Mutex<HashMap<Q, Vec<Write>>>,
}

struct Write {
    kind: Kind,
    key: ObjectKey,
    version: String,
    until: Instant,
}

impl<Q: QueueKey> Expectations<Q> {
    pub(super) fn new(patience: Option<Duration>) -> Self {
        Self {
            patience,
            written: Mutex::new(HashMap::new()),
        }
    }

    pub(super) fn expect(&self, cause: &Q, kind: Kind, key: ObjectKey, version: &str) {
        let Some(patience) = self.patience else {
            return;
        };
        let write = Write {
            kind,
            key,
            version: version.to_owned(),
            until: Instant::now() + patience,
        };
        let mut written = self.written.lock();
        written.entry(cause.clone()).or_default().push(write);
    }

    /// Time that a key still has to wait for its own writes, if any.
    pub(super) fn unseen(&self, cause: &Q, stores: &Stores) -> Option<Duration> {
        let now = Instant::now();
        let mut written = self.written.lock();
        let writes = written.get_mut(cause)?;
        // The latest first: the others are almost certainly older, so that a check costs no
        // more than one look where thousands of writes wait.
        while let Some(write) = writes.last() {
            let over = write.until <= now;
            if !over && !stores.has_reached(&write.kind, &write.key, &write.version) {
                return Some(write.until - now);
            }
            writes.pop();
        }
        written.remove(cause);
        None
    }
}

/// An [`Api`] that notes its writes for read-your-writes. Writes of a controller that needs
/// leadership are dropped when the lease ends.
pub struct TrackedApi<K, Q: QueueKey> {
    api: Api<K>,
    cause: Q,
    run: Arc<QueueRun<Q>>,
}

impl<K, Q: QueueKey> TrackedApi<K, Q> {
    pub(super) fn new(api: Api<K>, cause: Q, run: Arc<QueueRun<Q>>) -> Self {
        Self { api, cause, run }
    }
}

impl<K, Q> TrackedApi<K, Q>
where
    K: Resource<DynamicType = ()> + Kinded + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
    Q: QueueKey,
{
    /// Creates an object.
    pub async fn create(&self, params: &PostParams, object: &K) -> kube::Result<K> {
        self.fenced(self.api.create(params, object)).await
    }

    /// Replaces an object.
    pub async fn replace(&self, name: &str, params: &PostParams, object: &K) -> kube::Result<K> {
        self.fenced(self.api.replace(name, params, object)).await
    }

    /// Patches an object.
    pub async fn patch<P: Serialize + std::fmt::Debug>(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> kube::Result<K> {
        self.fenced(self.api.patch(name, params, patch)).await
    }

    /// Patches the status of an object.
    pub async fn patch_status<P: Serialize + std::fmt::Debug>(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> kube::Result<K> {
        self.fenced(self.api.patch_status(name, params, patch))
            .await
    }

    /// Deletes an object.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> kube::Result<()> {
        self.within_lease(self.api.delete(name, params))
            .await
            .map(drop)
    }

    /// Runs a write within the lease and notes its version.
    async fn fenced(&self, write: impl Future<Output = kube::Result<K>>) -> kube::Result<K> {
        let written = self.within_lease(write).await;
        written.inspect(|written| self.note(written))
    }

    /// Drops a write that is not done when the lease ends.
    async fn within_lease<T>(
        &self,
        write: impl Future<Output = kube::Result<T>>,
    ) -> kube::Result<T> {
        let Some(deadline) = self.run.scope.deadline() else {
            return write.await;
        };
        let late = |_| {
            Err(kube::Error::Service(
                "the lease ended before the write did".into(),
            ))
        };
        timeout_at(deadline, write).await.unwrap_or_else(late)
    }

    fn note(&self, written: &K) {
        let version = written.resource_version();
        self.run
            .expectations
            .expect(&self.cause, K::resource_kind(), written.key(), version);
    }
}
