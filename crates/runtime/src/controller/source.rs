//! Sources: move the changes of an informer into a controller's queue.

use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::{sync::mpsc, time::Instant};
use weft_model::ObjectKey;

use super::{Reasons, context::RunContext, worker::Inbox};
use crate::{
    Change, Cluster, Informer, InformerState, Kind, KindState, Lister, Mapper, Object, Predicate,
    Priority, QueueKey, StopReason, WatchSpec,
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
pub(super) trait AnySource<Q: QueueKey>: Send + Sync {
    fn id(&self) -> WatchId;
    fn describe(&self) -> String;
    fn is_optional(&self) -> bool;
    fn kind(&self) -> &Kind;
    /// Holds the informer without following it, so that a later start finds it synced.
    fn warm(&self, cluster: &Cluster) -> Box<dyn Any + Send>;
    /// Follows the informer from now on; the future runs until dropped or the informer ends.
    fn open(self: Arc<Self>, feed: Feed<Q>) -> BoxFuture<'static, ()>;
    /// Called before a stop: keeps what a later start needs.
    fn remember(&self, run: &RunContext<Q>);
}

/// A source's way to its controller while it runs.
pub(super) struct Feed<Q: QueueKey> {
    pub(super) cluster: Cluster,
    pub(super) inbox: Arc<Inbox<Q>>,
    pub(super) run: Arc<RunContext<Q>>,
    pub(super) reports: mpsc::UnboundedSender<Report>,
}

/// A source of one kind.
pub(super) struct Source<K: Object, Q: QueueKey> {
    pub(super) id: WatchId,
    pub(super) kind: Kind,
    pub(super) spec: WatchSpec,
    pub(super) predicate: Option<Predicate<K>>,
    pub(super) mapper: Mapper<K, Q>,
    pub(super) optional: bool,
    pub(super) resync: Option<Duration>,
    pub(super) replay_deletes: bool,
    pub(super) known_at_stop: Mutex<HashMap<ObjectKey, Arc<K>>>,
}

impl<K: Object, Q: QueueKey> AnySource<Q> for Source<K, Q> {
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

    fn open(self: Arc<Self>, feed: Feed<Q>) -> BoxFuture<'static, ()> {
        if self.optional {
            return Box::pin(self.follow_while_served(feed));
        }
        let informer = feed
            .cluster
            .cache()
            .informer_of::<K>(&self.kind, &self.spec);
        feed.run
            .stores
            .add(self.id, self.kind.clone(), Arc::new(informer.lister()));
        let pump = Pump::new(self, feed, informer);
        Box::pin(async move {
            let (reason, pump) = pump.run().await;
            pump.report(Report::Closed(pump.source.id, reason));
        })
    }

    fn remember(&self, run: &RunContext<Q>) {
        if !self.replay_deletes {
            return;
        }
        let lister = run.stores.lister_of_source::<K>(self.id);
        let objects = lister.and_then(|lister| lister.list().ok());
        if let Some(objects) = objects {
            let known = objects
                .into_iter()
                .map(|object| (object.key(), object))
                .collect();
            *self
                .known_at_stop
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = known;
        }
    }
}

impl<K: Object, Q: QueueKey> Source<K, Q> {
    /// An optional source follows its kind while that is served and holds nothing up while it is
    /// not.
    async fn follow_while_served(self: Arc<Self>, feed: Feed<Q>) {
        let mut served = feed.cluster.kind(&self.kind);
        loop {
            if served
                .wait_for(|state| *state == KindState::Present)
                .await
                .is_err()
            {
                return;
            }
            let informer = feed
                .cluster
                .cache()
                .informer_of::<K>(&self.kind, &self.spec);
            feed.run
                .stores
                .add(self.id, self.kind.clone(), Arc::new(informer.lister()));
            let again = Feed {
                cluster: feed.cluster.clone(),
                inbox: feed.inbox.clone(),
                run: feed.run.clone(),
                reports: feed.reports.clone(),
            };
            let (reason, pump) = Pump::new(self.clone(), again, informer).run().await;
            feed.run.stores.remove(self.id);
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

/// Moves changes of one informer into the queue.
struct Pump<K: Object, Q: QueueKey> {
    source: Arc<Source<K, Q>>,
    feed: Feed<Q>,
    informer: Informer<K>,
}

impl<K: Object, Q: QueueKey> Pump<K, Q> {
    fn new(source: Arc<Source<K, Q>>, feed: Feed<Q>, informer: Informer<K>) -> Self {
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
                    Some(Change::Closed(reason)) => return (reason, self),
                    None => return (StopReason::Released, self),
                    Some(Change::Synced) => {
                        self.replay_deletes();
                        self.report(Report::Synced(self.source.id));
                    }
                    Some(change) => self.deliver(&change),
                },
                Ok(()) = state.changed() => {
                    stale = self.note_state(&state.borrow_and_update(), stale);
                }
                () = due => {
                    self.resync(&self.informer.lister());
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

    fn resync(&self, lister: &Lister<K>) {
        for object in lister.list().unwrap_or_default() {
            self.deliver(&Change::Updated {
                old: object.clone(),
                new: object,
                resync: true,
            });
        }
    }

    fn replay_deletes(&self) {
        let known = std::mem::take(
            &mut *self
                .source
                .known_at_stop
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        let lister = self.informer.lister();
        for (key, last) in known {
            let now = lister.get(&key).ok().flatten();
            if now.is_none_or(|object| object.uid() != last.uid()) {
                self.deliver(&Change::Deleted {
                    last,
                    final_state_unknown: true,
                });
            }
        }
    }

    /// Predicates and mappings are the user's code: a panic costs one change, not the source.
    fn deliver(&self, change: &Change<K>) {
        let delivered = catch_unwind(AssertUnwindSafe(|| self.enqueue(change)));
        if delivered.is_err() {
            tracing::error!(source = %self.source.kind, key = ?change.key(),
                "predicate or mapping panicked; change skipped");
        }
    }

    fn enqueue(&self, change: &Change<K>) {
        if self
            .source
            .predicate
            .as_ref()
            .is_some_and(|predicate| !predicate.allows(change))
        {
            return;
        }
        let (reason, priority) = match change {
            Change::Added { initial: true, .. } => (Reasons::INITIAL, Priority::LOW),
            Change::Added { .. } => (Reasons::ADDED, Priority::NORMAL),
            Change::Updated { resync: true, .. } => (Reasons::RESYNC, Priority::LOW),
            Change::Updated { .. } => (Reasons::UPDATED, Priority::NORMAL),
            Change::Deleted { .. } => (Reasons::DELETED, Priority::NORMAL),
            Change::Undecodable(_) => (Reasons::UNDECODABLE, Priority::NORMAL),
            Change::Synced | Change::Closed(_) => return,
        };
        for key in self.keys(change) {
            self.feed.inbox.add(key, reason, priority);
        }
    }

    fn keys(&self, change: &Change<K>) -> Vec<Q> {
        let mapper = &self.source.mapper;
        match change {
            Change::Updated {
                old,
                new,
                resync: false,
            } => {
                let mut keys = mapper.keys(new);
                // A panic on the old state must not lose the new one.
                let of_old = catch_unwind(AssertUnwindSafe(|| mapper.keys(old)));
                for key in of_old.unwrap_or_default() {
                    if !keys.contains(&key) {
                        keys.push(key);
                    }
                }
                keys
            }
            Change::Undecodable(object) => mapper.bare_key(&object.key).into_iter().collect(),
            _ => change
                .object()
                .map(|object| mapper.keys(object))
                .unwrap_or_default(),
        }
    }
}
