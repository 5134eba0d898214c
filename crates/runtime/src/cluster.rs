//! A cluster that the process watches: its client, cache and kinds, which come and go together.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use kube::Client;
use parking_lot::{Mutex, MutexGuard};
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Cache, CacheBuilder, Kind, KindMonitor, KindState, StopReason};

/// One cluster. Cloning is cheap.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    cache: Cache,
    kinds: OnceLock<KindMonitor>,
    left: CancellationToken,
    /// Controllers that run.
    running: watch::Sender<usize>,
}

impl Cluster {
    /// A cluster by name with default cache options. Must be called within a tokio runtime.
    pub fn new(name: &str, client: Client) -> Self {
        Self::with_cache(Cache::builder(client).cluster(name))
    }

    /// A cluster with cache options.
    pub fn with_cache(cache: CacheBuilder) -> Self {
        let inner = Inner {
            cache: cache.build(),
            kinds: OnceLock::new(),
            left: CancellationToken::new(),
            running: watch::Sender::new(0),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Name of the cluster.
    pub fn name(&self) -> &str {
        self.inner.cache.cluster()
    }

    /// Its informers.
    pub fn cache(&self) -> &Cache {
        &self.inner.cache
    }

    /// Its client.
    pub fn client(&self) -> &Client {
        self.inner.cache.client()
    }

    /// Follows whether a kind is served. The first call begins to watch definitions.
    pub fn kind(&self, kind: &Kind) -> watch::Receiver<KindState> {
        self.inner
            .kinds
            .get_or_init(|| KindMonitor::new(&self.inner.cache))
            .kind(kind)
    }

    /// Cancelled when the cluster has left.
    pub fn left(&self) -> &CancellationToken {
        &self.inner.left
    }

    /// Counts a controller that runs on this cluster until the returned guard is dropped.
    pub(crate) fn enter(&self) -> Presence {
        self.inner.running.send_modify(|count| *count += 1);
        Presence(self.inner.clone())
    }

    /// Ends every controller and informer of this cluster, and resolves when they have ended: no
    /// reconcile is alive, all connections of informers are closed, none can be opened.
    pub async fn leave(&self) {
        self.inner.left.cancel();
        let mut running = self.inner.running.subscribe();
        let _ended = running.wait_for(|count| *count == 0).await;
        self.inner.cache.close(&StopReason::ClusterLeft).await;
    }
}

/// Guard of a running controller; `Cluster::leave` waits for its drop.
pub(crate) struct Presence(Arc<Inner>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.running.send_modify(|count| *count -= 1);
    }
}

/// The clusters of a process, which may join and leave at run time.
#[derive(Clone, Default)]
pub struct Clusters {
    members: Arc<Mutex<BTreeMap<String, Cluster>>>,
}

/// A cluster of that name is already a member.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("cluster {0:?} has already joined")]
pub struct AlreadyJoined(pub String);

impl Clusters {
    fn members(&self) -> MutexGuard<'_, BTreeMap<String, Cluster>> {
        self.members.lock()
    }

    /// Adds a cluster.
    pub fn join(&self, cluster: Cluster) -> Result<(), AlreadyJoined> {
        let mut members = self.members();
        if members.contains_key(cluster.name()) {
            return Err(AlreadyJoined(cluster.name().to_owned()));
        }
        tracing::info!(cluster = cluster.name(), "cluster joined");
        members.insert(cluster.name().to_owned(), cluster);
        Ok(())
    }

    /// Removes a cluster with its controllers and informers. Returns whether it was a member.
    pub async fn leave(&self, name: &str) -> bool {
        let Some(cluster) = self.members().remove(name) else {
            return false;
        };
        cluster.leave().await;
        tracing::info!(cluster = name, "cluster left");
        true
    }

    /// One cluster.
    pub fn get(&self, name: &str) -> Option<Cluster> {
        self.members().get(name).cloned()
    }

    /// All clusters by name.
    pub fn list(&self) -> Vec<Cluster> {
        self.members().values().cloned().collect()
    }
}
