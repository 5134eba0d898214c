//! Sources: move the changes of an informer to a controller.

use std::{any::Any, collections::HashMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::Instant};
use weft_model::ObjectKey;

use super::scope::RunScope;
use crate::{
    Change, Cluster, Informer, InformerState, Kind, KindState, Lister, Object, StopReason,
    WatchSpec,
};

/// Identifies one watch of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(pub(super) u32);

/// Message of a source to its controller.
#[derive(Debug)]
pub(super) enum Report {
    Synced(WatchId),
    Closed(WatchId, StopReason),
    Stale(WatchId, String),
    Fresh(WatchId),
}

/// A source without its object type.
pub(super) trait AnySource: Send + Sync {
    fn id(&self) -> WatchId;
    fn describe(&self) -> String;
    fn is_optional(&self) -> bool;
    fn kind(&self) -> &Kind;
    /// Holds the informer without following it, so that a later start finds it synced.
    fn warm(&self, cluster: &Cluster) -> Box<dyn Any + Send>;
    /// Follows the informer from now on; the future runs until dropped or the informer ends.
    fn open(self: Arc<Self>, feed: Feed) -> BoxFuture<'static, ()>;
    /// Called before a stop: keeps what a later start needs.
    fn remember(&self, scope: &RunScope);
}

/// A source's way to its controller while it runs.
#[derive(Clone)]
pub(super) struct Feed {
    pub(super) cluster: Cluster,
    pub(super) scope: Arc<RunScope>,
    pub(super) reports: mpsc::UnboundedSender<Report>,
}

/// Receiver of a source's changes: a queue of keys, or the inbox of a machine.
pub(super) trait Sink<K: Object>: Send + Sync + 'static {
    /// Takes a change. Meanwhile the informer coalesces later ones.
    fn deliver(&self, change: Change<K>) -> impl Future<Output = ()> + Send;
}

/// A source of one kind.
pub(super) struct Source<K: Object, S> {
    pub(super) id: WatchId,
    pub(super) kind: Kind,
    pub(super) spec: WatchSpec,
    pub(super) sink: S,
    pub(super) optional: bool,
    pub(super) resync: Option<Duration>,
    pub(super) replay_deletes: bool,
    pub(super) known_at_stop: Mutex<HashMap<ObjectKey, Arc<K>>>,
}

impl<K: Object, S: Sink<K>> AnySource for Source<K, S> {
    fn id(&self) -> WatchId {
        self.id
    }

    fn describe(&self) -> String {
        self.kind.to_string()
    }

    fn is_optional(&self) -> bool {
        self.optional
    }

    fn kind(&self) -> &Kind {
        &self.kind
    }

    fn warm(&self, cluster: &Cluster) -> Box<dyn Any + Send> {
        Box::new(cluster.cache().informer_of::<K>(&self.kind, &self.spec))
    }

    fn open(self: Arc<Self>, feed: Feed) -> BoxFuture<'static, ()> {
        if self.optional {
            return Box::pin(self.follow_while_served(feed));
        }
        let pump = self.connect(feed);
        Box::pin(async move {
            let (reason, pump) = pump.run().await;
            pump.report(Report::Closed(pump.source.id, reason));
        })
    }

    fn remember(&self, scope: &RunScope) {
        if !self.replay_deletes {
            return;
        }
        let lister = scope.stores.lister_of_source::<K>(self.id);
        let objects = lister.and_then(|lister| lister.list().ok());
        if let Some(objects) = objects {
            let known = objects
                .into_iter()
                .map(|object| (object.key(), object))
                .collect();
            *self.known_at_stop.lock() = known;
        }
    }
}

impl<K: Object, S: Sink<K>> Source<K, S> {
    /// Subscribes to the kind and offers its store to the run.
    fn connect(self: Arc<Self>, feed: Feed) -> Pump<K, S> {
        let cache = feed.cluster.cache();
        let informer = cache.informer_of::<K>(&self.kind, &self.spec);
        let stores = &feed.scope.stores;
        stores.add(self.id, self.kind.clone(), Arc::new(informer.lister()));
        Pump::new(self, feed, informer)
    }

    /// An optional source follows its kind while that is served and holds nothing up while it is
    /// not.
    async fn follow_while_served(self: Arc<Self>, feed: Feed) {
        let mut served = feed.cluster.kind(&self.kind);
        loop {
            if served
                .wait_for(|state| *state == KindState::Present)
                .await
                .is_err()
            {
                return;
            }
            let (reason, pump) = self.clone().connect(feed.clone()).run().await;
            feed.scope.stores.remove(self.id);
            if reason != StopReason::KindRemoved {
                // Evicted while its kind is served: a failure, optional or not.
                return pump.report(Report::Closed(self.id, reason));
            }
            pump.report(Report::Fresh(self.id));
            drop(pump);
            tracing::info!(source = %self.kind, "optional source left with its kind");
            // The kind may be back before its absence was noticed.
            let gone = served.wait_for(|state| *state != KindState::Present);
            if let Ok(Err(_)) = tokio::time::timeout(Duration::from_secs(1), gone).await {
                return;
            }
        }
    }
}

/// Moves changes of one informer to the sink.
struct Pump<K: Object, S> {
    source: Arc<Source<K, S>>,
    feed: Feed,
    informer: Informer<K>,
}

impl<K: Object, S: Sink<K>> Pump<K, S> {
    fn new(source: Arc<Source<K, S>>, feed: Feed, informer: Informer<K>) -> Self {
        Self {
            source,
            feed,
            informer,
        }
    }

    fn report(&self, report: Report) {
        // Fails while the controller is being torn down, when no task receives reports.
        let _ = self.feed.reports.send(report);
    }

    async fn run(self) -> (StopReason, Self) {
        let mut changes = self.informer.subscribe();
        let mut state = self.informer.state();
        let mut stale = self.note_state(&state.borrow_and_update(), false);
        let mut resync_at = self.next_resync();
        loop {
            let due = async {
                match resync_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                change = changes.next() => match change {
                    Some(Change::Closed(reason)) => {
                        self.deliver(Change::Closed(reason.clone())).await;
                        return (reason, self);
                    }
                    None => return (StopReason::Released, self),
                    Some(Change::Synced) => {
                        self.replay_deletes().await;
                        self.deliver(Change::Synced).await;
                        self.report(Report::Synced(self.source.id));
                    }
                    Some(change) => self.deliver(change).await,
                },
                Ok(()) = state.changed() => {
                    stale = self.note_state(&state.borrow_and_update(), stale);
                }
                () = due => {
                    self.resync(&self.informer.lister()).await;
                    resync_at = self.next_resync();
                }
            }
        }
    }

    /// Reports when the informer stops following the server and when it follows again.
    fn note_state(&self, state: &InformerState, was_stale: bool) -> bool {
        let error = match state {
            InformerState::Retrying { error, .. } => Some(error.to_string()),
            InformerState::Waiting(reason) => Some(reason.name().to_owned()),
            _ => None,
        };
        match error {
            Some(error) => {
                self.report(Report::Stale(self.source.id, error));
                true
            }
            None if was_stale && matches!(state, InformerState::Synced) => {
                self.report(Report::Fresh(self.source.id));
                false
            }
            None => was_stale,
        }
    }

    /// Spread by a tenth, so that the sources of many controllers do not re-sync together.
    fn next_resync(&self) -> Option<Instant> {
        let period = self.source.resync?;
        Some(Instant::now() + period.mul_f64(0.9 + 0.2 * fastrand::f64()))
    }

    async fn deliver(&self, change: Change<K>) {
        self.source.sink.deliver(change).await;
    }

    async fn resync(&self, lister: &Lister<K>) {
        for object in lister.list().unwrap_or_default() {
            let change = Change::Updated {
                old: object.clone(),
                new: object,
                resync: true,
            };
            self.deliver(change).await;
        }
    }

    async fn replay_deletes(&self) {
        let known = std::mem::take(&mut *self.source.known_at_stop.lock());
        let lister = self.informer.lister();
        for (key, last) in known {
            let now = lister.get(&key).ok().flatten();
            if now.is_none_or(|object| object.uid() != last.uid()) {
                let change = Change::Deleted {
                    last,
                    final_state_unknown: true,
                };
                self.deliver(change).await;
            }
        }
    }
}
