//! The registry of shared informers of one cluster.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use kube::Client;
use parking_lot::{Mutex, MutexGuard};
use tokio::{runtime::Handle, sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;
use weft_model::SharedStr;

use crate::{
    Kind, Kinded, Object, WatchError,
    informer::{
        AnyInformer, Guard, Informer, InformerInfo, InformerKey, Reflector, ServerTraits, Shared,
        StopReason, WatchErrorHook, WatchSpec,
    },
};

/// Hands out shared informers: for each combination of kind, scope, selectors and projection one
/// LIST/WATCH loop and one store, however many consumers there are.
///
/// Cloning is cheap. The tasks of the informers belong to the cache, not to a consumer.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    cluster: SharedStr,
    client: Client,
    runtime: Handle,
    linger: Duration,
    hook: Option<WatchErrorHook>,
    server: Arc<ServerTraits>,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    running: HashMap<InformerKey, Entry>,
    /// Set once the cache is closed: no informer starts any more.
    closed: Option<StopReason>,
    /// Informers that were removed and whose connection may still be open for a moment.
    closing: Vec<(InformerKey, CancellationToken)>,
}

impl Registry {
    /// Takes an informer out of the registry; its connection may stay open for a moment.
    ///
    /// With `only`, takes it only if it is that very informer: another one of the same key may have
    /// replaced it.
    fn take(&mut self, key: &InformerKey, only: Option<*const ()>) -> Option<Arc<dyn AnyInformer>> {
        let found = self.running.get(key)?;
        if only.is_some_and(|only| only != identity(&found.informer)) {
            return None;
        }
        let informer = self.running.remove(key)?.informer;
        self.closing.push((key.clone(), informer.closed()));
        Some(informer)
    }
}

/// Identity of an informer, which differs between two informers of the same key.
fn identity<T: ?Sized>(informer: &Arc<T>) -> *const () {
    Arc::as_ptr(informer).cast()
}

struct Entry {
    informer: Arc<dyn AnyInformer>,
    released: Arc<Notify>,
}

/// Options of a [`Cache`].
pub struct CacheBuilder {
    client: Client,
    cluster: SharedStr,
    linger: Duration,
    hook: Option<WatchErrorHook>,
}

impl CacheBuilder {
    /// Name of the cluster in diagnostics and metrics.
    #[must_use]
    pub fn cluster(mut self, name: &str) -> Self {
        self.cluster = SharedStr::new(name);
        self
    }

    /// Time that an informer outlives its last handle, so that consumers that come and go do not
    /// make it list again. Zero by default.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Calls a function with every failure of a list or watch.
    #[must_use]
    pub fn on_watch_error(
        mut self,
        hook: impl Fn(&InformerKey, &WatchError) + Send + Sync + 'static,
    ) -> Self {
        self.hook = Some(Arc::new(hook));
        self
    }

    /// Builds the cache on the current tokio runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn build(self) -> Cache {
        Cache {
            inner: Arc::new(Inner {
                cluster: self.cluster,
                client: self.client,
                runtime: Handle::current(),
                linger: self.linger,
                hook: self.hook,
                server: Arc::default(),
                registry: Mutex::default(),
            }),
        }
    }
}

impl Cache {
    /// A cache with default options. Must be called within a tokio runtime.
    pub fn new(client: Client) -> Self {
        Self::builder(client).build()
    }

    /// A cache with options.
    pub fn builder(client: Client) -> CacheBuilder {
        CacheBuilder {
            client,
            cluster: SharedStr::new("default"),
            linger: Duration::ZERO,
            hook: None,
        }
    }

    /// The client that the informers use.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// Name of the cluster.
    pub fn cluster(&self) -> &SharedStr {
        &self.inner.cluster
    }

    /// Acquires the informer of a type's own kind. Does not wait and does not fail: what goes
    /// wrong shows in the informer's state.
    pub fn informer<K: Kinded>(&self, spec: &WatchSpec) -> Informer<K> {
        self.informer_of(&K::resource_kind(), spec)
    }

    /// Acquires the informer of a kind chosen at run time, decoded into `K`.
    pub fn informer_of<K: Object>(&self, kind: &Kind, spec: &WatchSpec) -> Informer<K> {
        let key = InformerKey::new::<K>(&self.inner.cluster, kind, spec);
        let mut registry = self.inner.registry();
        if let Some(entry) = registry.running.get(&key) {
            let guard = entry.informer.guard().unwrap_or_else(|| {
                // The last handle is gone, but the informer lingers: take it up again.
                let guard = Guard::new(entry.released.clone());
                entry.informer.adopt(&guard);
                guard
            });
            let any = entry.informer.clone().any();
            if let Ok(shared) = any.downcast::<Shared<K>>() {
                return Informer { shared, guard };
            }
            unreachable!("the projection's type is part of the key");
        }
        self.start(&mut registry, key, spec)
    }

    fn start<K: Object>(
        &self,
        registry: &mut Registry,
        key: InformerKey,
        spec: &WatchSpec,
    ) -> Informer<K> {
        let released = Arc::new(Notify::new());
        let guard = Guard::new(released.clone());
        let shared = Shared::<K>::new(key.clone(), &guard);
        if let Some(reason) = &registry.closed {
            shared.stop(reason);
            shared.closed.cancel();
            return Informer { shared, guard };
        }
        let predecessors: Vec<CancellationToken> = registry
            .closing
            .iter()
            .filter(|(closing, _)| *closing == key)
            .map(|(_, closed)| closed.clone())
            .collect();
        let entry = Entry {
            informer: shared.clone(),
            released: released.clone(),
        };
        registry.running.insert(key, entry);
        let reflector = Reflector::new(
            shared.clone(),
            self.inner.client.clone(),
            spec.clone(),
            self.inner.server.clone(),
            self.inner.hook.clone(),
        );
        let inner = self.inner.clone();
        let task = shared.clone();
        self.inner.runtime.spawn(async move {
            let run = async {
                for predecessor in predecessors {
                    predecessor.cancelled().await;
                }
                reflector.run().await;
            };
            tokio::select! {
                () = task.cancel.cancelled() => {}
                () = inner.released(&task, &released) => {}
                outcome = AssertUnwindSafe(run).catch_unwind() => {
                    debug_assert!(outcome.is_err(), "the loop never ends by itself");
                    tracing::error!(informer = %task.key, "informer panicked");
                    inner.remove(&task.key, Some(identity(&task)), &StopReason::Panicked);
                }
            }
            inner.finished(&task.closed);
        });
        Informer { shared, guard }
    }

    /// Removes an informer by force. Every dependent is notified: subscriptions end with
    /// [`Change::Closed`](crate::Change::Closed), readers fail, controllers degrade.
    ///
    /// Returns whether there was one.
    pub fn evict(&self, key: &InformerKey, reason: &StopReason) -> bool {
        self.inner.remove(key, None, reason)
    }

    /// Removes every informer that matches.
    pub fn evict_matching(&self, reason: &StopReason, matches: impl Fn(&InformerKey) -> bool) {
        // The caller's function is not called under the lock.
        let keys: Vec<InformerKey> = self.inner.registry().running.keys().cloned().collect();
        let keys: Vec<InformerKey> = keys.into_iter().filter(|key| matches(key)).collect();
        for key in keys {
            self.inner.remove(&key, None, reason);
        }
    }

    /// Removes every informer and lets none start again. Resolves when all connections are closed.
    pub async fn close(&self, reason: &StopReason) {
        self.inner.registry().closed = Some(reason.clone());
        self.evict_matching(reason, |_| true);
        let closing: Vec<CancellationToken> = self
            .inner
            .registry()
            .closing
            .iter()
            .map(|(_, closed)| closed.clone())
            .collect();
        for closed in closing {
            closed.cancelled().await;
        }
    }

    /// Lets informers of a kind that wait or back off try again at once.
    pub fn recheck(&self, kind: &Kind) {
        for (key, entry) in &self.inner.registry().running {
            if key.kind == *kind {
                entry.informer.recheck();
            }
        }
    }

    /// Resolves when no informer of this key runs any more and its connection is closed.
    pub async fn closed(&self, key: &InformerKey) {
        let tokens: Vec<CancellationToken> = {
            let registry = self.inner.registry();
            let running = registry
                .running
                .get(key)
                .map(|entry| entry.informer.closed());
            let closing = registry
                .closing
                .iter()
                .filter(|(closing, _)| closing == key);
            running
                .into_iter()
                .chain(closing.map(|(_, closed)| closed.clone()))
                .collect()
        };
        for token in tokens {
            token.cancelled().await;
        }
    }

    /// Every informer as diagnostics show it, sorted.
    pub fn snapshot(&self) -> Vec<InformerInfo> {
        let informers = self.informers();
        let mut infos: Vec<InformerInfo> =
            informers.iter().map(|informer| informer.info()).collect();
        infos.sort_by(|left, right| {
            (
                &left.kind,
                &left.namespace,
                &left.label_selector,
                &left.field_selector,
                left.projection,
            )
                .cmp(&(
                    &right.kind,
                    &right.namespace,
                    &right.label_selector,
                    &right.field_selector,
                    right.projection,
                ))
        });
        infos
    }

    pub(crate) fn informers(&self) -> Vec<Arc<dyn AnyInformer>> {
        self.inner
            .registry()
            .running
            .values()
            .map(|entry| entry.informer.clone())
            .collect()
    }
}

impl Inner {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock()
    }

    /// Resolves once the informer has had no handle for the linger time and is out of the registry.
    async fn released<K: Object>(&self, shared: &Arc<Shared<K>>, released: &Notify) {
        loop {
            released.notified().await;
            if shared.is_held() {
                continue;
            }
            if !self.linger.is_zero() {
                sleep(self.linger).await;
                if released.notified().now_or_never().is_some() {
                    // Acquired and released again meanwhile: the linger time starts over.
                    released.notify_one();
                    continue;
                }
            }
            let mut registry = self.registry();
            // Checked under the lock that acquiring takes: a later caller starts a new informer.
            if shared.is_held() {
                continue;
            }
            // Another informer of the same key may have taken the place of one that was evicted.
            if registry.take(&shared.key, Some(identity(shared))).is_some() {
                drop(registry);
                shared.stop(&StopReason::Released);
            }
            return;
        }
    }

    fn remove(&self, key: &InformerKey, only: Option<*const ()>, reason: &StopReason) -> bool {
        let removed = self.registry().take(key, only);
        if let Some(informer) = &removed {
            tracing::info!(informer = %key, %reason, "informer removed");
            informer.stop(reason);
        }
        removed.is_some()
    }

    /// The informer's task is over and its connection closed.
    fn finished(&self, closed: &CancellationToken) {
        closed.cancel();
        self.registry()
            .closing
            .retain(|(_, token)| !token.is_cancelled());
    }
}
