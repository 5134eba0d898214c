//! Construction of a controller: its watches, workers, limits and dependencies.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use weft_model::ObjectKey;

use super::{
    Controller, Reconciler, WatchId,
    handle::NewController,
    inbox::{Inbox, KeySink},
    lifecycle::{OnFailure, Settings},
    source::{AnySource, Sink, Source},
    statistics::ControllerStatistics,
    worker::{QueueSettings, QueueWork},
};
use crate::{
    Cluster, Kind, Kinded, Mapper, Metrics, Object, OwnerFilter, Predicate, QueueKey, RateLimiter,
    WatchSpec, Workqueue,
};

/// Options of a [`Controller`]; see [`Controller::builder`].
pub struct ControllerBuilder<Q: QueueKey> {
    name: String,
    queue_name: Option<String>,
    cluster: Cluster,
    sources: Vec<Box<NewSource<Q>>>,
    requires: Vec<Kind>,
    limiter: Option<Box<dyn RateLimiter<Q>>>,
    metrics: Option<Metrics>,
    settings: Settings,
    workers: QueueSettings,
}

/// Makes a source once the queue exists.
type NewSource<Q> = dyn FnOnce(&Arc<Inbox<Q>>) -> Arc<dyn AnySource> + Send;

/// Options of one watch of a controller.
pub struct WatchOptions<K: Object> {
    predicate: Option<Predicate<K>>,
    optional: bool,
    resync: Option<Duration>,
    replay_deletes: bool,
}

impl<K: Object> Default for WatchOptions<K> {
    fn default() -> Self {
        Self {
            predicate: None,
            optional: false,
            resync: None,
            replay_deletes: false,
        }
    }
}

impl<K: Object> WatchOptions<K> {
    /// Delivers only changes that pass the predicate.
    #[must_use]
    pub fn predicate(mut self, predicate: Predicate<K>) -> Self {
        self.predicate = Some(predicate);
        self
    }

    /// The watch starts when its kind appears and ends when it goes; the controller does not wait
    /// for it to sync.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Delivers everything again from time to time, at low priority.
    #[must_use]
    pub fn resync(mut self, period: Duration) -> Self {
        self.resync = Some(period);
        self
    }

    /// Delivers objects that were deleted while the controller was stopped as deleted after its
    /// restart. Keeps the objects known at the stop in memory until then. Without it a restart
    /// reconciles only what exists.
    #[must_use]
    pub fn replay_deletes(mut self) -> Self {
        self.replay_deletes = true;
        self
    }

    pub(super) fn into_source<Q: QueueKey>(
        mut self,
        id: WatchId,
        kind: Kind,
        spec: WatchSpec,
        mapper: Mapper<K, Q>,
        inbox: &Arc<Inbox<Q>>,
    ) -> Arc<dyn AnySource> {
        let sink = KeySink {
            kind: kind.clone(),
            predicate: self.predicate.take(),
            mapper,
            inbox: inbox.clone(),
        };
        self.with_sink(id, kind, spec, sink)
    }

    pub(super) fn with_sink(
        self,
        id: WatchId,
        kind: Kind,
        spec: WatchSpec,
        sink: impl Sink<K>,
    ) -> Arc<dyn AnySource> {
        Arc::new(Source {
            id,
            kind,
            spec,
            sink,
            optional: self.optional,
            resync: self.resync,
            replay_deletes: self.replay_deletes,
            known_at_stop: Mutex::new(HashMap::new()),
        })
    }
}

impl<Q: QueueKey> Controller<Q> {
    /// Begins a controller of that name on a cluster.
    pub fn builder(name: &str, cluster: &Cluster) -> ControllerBuilder<Q> {
        ControllerBuilder {
            name: name.to_owned(),
            queue_name: None,
            cluster: cluster.clone(),
            sources: Vec::new(),
            requires: Vec::new(),
            limiter: None,
            metrics: None,
            settings: Settings::of_a_controller(name),
            workers: QueueSettings {
                concurrency: 1,
                timeout: None,
                recover_panics: true,
                read_own_writes: None,
            },
        }
    }
}

impl ControllerBuilder<ObjectKey> {
    /// Reconciles objects of this kind.
    #[must_use]
    pub fn reconciles<K: Kinded>(self, spec: WatchSpec) -> Self {
        self.watches::<K>(spec, Mapper::own_key())
    }

    /// Reconciles the owner of kind `Owner` when an object of kind `K` that it manages changes. For
    /// owners that are cluster-scoped, use [`Mapper::cluster_owners`].
    #[must_use]
    pub fn owns<K: Kinded, Owner: Kinded>(self, spec: WatchSpec) -> Self {
        self.watches::<K>(
            spec,
            Mapper::owners(Owner::resource_kind(), OwnerFilter::Controller),
        )
    }
}

impl<Q: QueueKey> ControllerBuilder<Q> {
    /// Reconciles the keys that objects of this kind map to.
    #[must_use]
    pub fn watches<K: Kinded>(self, spec: WatchSpec, mapper: Mapper<K, Q>) -> Self {
        self.watches_with(K::resource_kind(), spec, mapper, WatchOptions::default())
    }

    /// As [`ControllerBuilder::watches`]; the watch joins and leaves with its kind.
    #[must_use]
    pub fn optional_watch<K: Kinded>(self, spec: WatchSpec, mapper: Mapper<K, Q>) -> Self {
        self.watches_with(
            K::resource_kind(),
            spec,
            mapper,
            WatchOptions::default().optional(),
        )
    }

    /// As [`ControllerBuilder::watches`] for any kind and options.
    #[must_use]
    pub fn watches_with<K: Object>(
        mut self,
        kind: Kind,
        spec: WatchSpec,
        mapper: Mapper<K, Q>,
        options: WatchOptions<K>,
    ) -> Self {
        let id = WatchId(u32::try_from(self.sources.len()).unwrap_or(u32::MAX));
        self.sources.push(Box::new(move |inbox| {
            options.into_source(id, kind, spec, mapper, inbox)
        }));
        self
    }

    /// Runs only while the kind is served: follows the installation and removal of its CRD.
    #[must_use]
    pub fn requires_kind(mut self, kind: Kind) -> Self {
        self.requires.push(kind);
        self
    }

    /// Reconciles of different keys that may run at a time. One by default.
    #[must_use]
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.workers.concurrency = workers.max(1);
        self
    }

    /// A reconcile that takes longer is dropped and counts as failed. No limit by default.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.workers.timeout = Some(limit);
        self
    }

    /// Time for the sources to sync, after which the controller reports those that did not as
    /// degraded. Two minutes by default.
    #[must_use]
    pub fn sync_timeout(mut self, limit: Duration) -> Self {
        self.settings.sync_timeout = Some(limit);
        self
    }

    /// Time for running reconciles to end when the controller stops. 30 s by default.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// `true` (the default) treats a panic in a reconcile as an error; `false` leaves the
    /// controller degraded until it is restarted.
    #[must_use]
    pub fn recover_panics(mut self, recover: bool) -> Self {
        self.workers.recover_panics = recover;
        self
    }

    /// Delays the reconcile of a key while its store is older than the key's own writes through
    /// [`Context::tracked`](super::Context::tracked), for at most `patience`.
    #[must_use]
    pub fn read_own_writes(mut self, patience: Duration) -> Self {
        self.workers.read_own_writes = Some(patience);
        self
    }

    /// Runs only while this process is the leader.
    #[must_use]
    pub fn leader_only(mut self) -> Self {
        self.settings.leader_only = true;
        self
    }

    /// `true` (the default) keeps the informers of a leader-only controller while another process
    /// leads, so that taking over needs no list.
    #[must_use]
    pub fn warm(mut self, warm: bool) -> Self {
        self.settings.warm = warm;
        self
    }

    /// Rate limiter of keys that fail.
    #[must_use]
    pub fn limiter(mut self, limiter: impl RateLimiter<Q> + 'static) -> Self {
        self.limiter = Some(Box::new(limiter));
        self
    }

    /// Value of the label `name` in `workqueue_*`, if it differs from the controller's name.
    #[must_use]
    pub fn queue_name(mut self, name: &str) -> Self {
        self.queue_name = Some(name.to_owned());
        self
    }

    /// Registry of its metrics.
    #[must_use]
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// Builds the controller, stopped, on the current tokio runtime.
    pub fn build(self, reconciler: impl Reconciler<Q>) -> Controller<Q> {
        let mut queue = Workqueue::builder(self.queue_name.as_deref().unwrap_or(&self.name));
        if let Some(limiter) = self.limiter {
            queue = queue.limiter(limiter);
        }
        if let Some(metrics) = &self.metrics {
            queue = queue.metrics(metrics.workqueues());
        }
        let inbox = Arc::new(Inbox::new(queue.build()));
        inbox.queue.discard();
        let sources = self.sources.into_iter().map(|source| source(&inbox));
        let sources = sources.collect();
        let statistics = Arc::new(ControllerStatistics::new());
        let work = Arc::new(QueueWork {
            name: self.settings.name.clone(),
            reconciler,
            inbox: inbox.clone(),
            statistics: statistics.clone(),
            settings: self.workers,
        });
        let handle = NewController {
            sources,
            requires: self.requires,
            concurrency: self.workers.concurrency,
            statistics,
            ..NewController::new(&self.cluster, self.settings, work, OnFailure::Degrade)
        }
        .spawn();
        if let Some(metrics) = &self.metrics {
            metrics.observe_controller(&handle);
        }
        Controller { handle, inbox }
    }
}
