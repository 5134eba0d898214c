use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    ControllerState, Gate, Reasons, WatchId, actor::Command, builder::WatchOptions,
    source::AnySource, statistics::ControllerStatistics, worker::Inbox,
};
use crate::{Kinded, Mapper, Priority, QueueKey, WatchSpec};

/// A controller: starts, stops, restarts, and changes what it watches while it runs.
///
/// Cloning is cheap. When the last clone, and the last [`ControllerHandle`], is dropped, the
/// controller stops for good.
pub struct Controller<Q: QueueKey> {
    pub(super) commands: mpsc::UnboundedSender<Command<Q>>,
    pub(super) state: watch::Receiver<ControllerState>,
    pub(super) inbox: Arc<Inbox<Q>>,
    pub(super) statistics: Arc<ControllerStatistics>,
    pub(super) name: Arc<str>,
    pub(super) cluster: Arc<str>,
    pub(super) next_watch: Arc<AtomicU32>,
    pub(super) leader_only: bool,
    pub(super) concurrency: usize,
    pub(super) wanted: Arc<AtomicBool>,
}

/// Rings for a controller without keeping it alive: for tasks that follow something other than
/// the API server. A controller that does not run hears nothing.
#[derive(Clone)]
pub struct Bell<Q: QueueKey>(Arc<Inbox<Q>>);

impl<Q: QueueKey> Bell<Q> {
    /// Reconciles a key soon.
    pub fn ring(&self, key: Q) {
        self.0.add(key, Reasons::TRIGGERED, Priority::NORMAL);
    }
}

/// How a stop went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// Reconciles that did not end within the grace time and were dropped.
    pub aborted: usize,
    /// How long it took.
    pub took: Duration,
}

impl<Q: QueueKey> Controller<Q> {
    /// Asks it to run. Does nothing if it runs.
    pub fn start(&self) {
        self.wanted.store(true, Relaxed);
        self.send(Command::Start);
    }

    /// Asks it to stop, and resolves when it has: no reconcile of it is alive, its subscriptions
    /// are released, its queue is empty. Does nothing if it is stopped.
    pub async fn stop(&self) -> StopReport {
        self.stop_command(None).await
    }

    /// As [`Controller::stop`], with a grace time other than the controller's own.
    pub async fn stop_within(&self, grace: Duration) -> StopReport {
        self.stop_command(Some(grace)).await
    }

    async fn stop_command(&self, grace: Option<Duration>) -> StopReport {
        let (done, answer) = oneshot::channel();
        self.wanted.store(false, Relaxed);
        self.send(Command::Stop { grace, done });
        answer.await.unwrap_or_default()
    }

    /// Stops and starts again, and resolves when the former life has ended.
    pub async fn restart(&self) -> StopReport {
        let (done, answer) = oneshot::channel();
        self.wanted.store(true, Relaxed);
        self.send(Command::Restart { done });
        answer.await.unwrap_or_default()
    }

    /// What it is doing.
    pub fn state(&self) -> watch::Receiver<ControllerState> {
        self.state.clone()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reconciles a key soon.
    pub fn trigger(&self, key: Q) {
        self.inbox.add(key, Reasons::TRIGGERED, Priority::NORMAL);
    }

    /// Something that reconciles keys soon and does not keep the controller alive.
    pub fn bell(&self) -> Bell<Q> {
        Bell(self.inbox.clone())
    }

    /// Watches another kind from now on, and in every later life.
    pub fn add_watch<K: Kinded>(&self, spec: WatchSpec, mapper: Mapper<K, Q>) -> WatchId {
        self.add_watch_with(K::resource_kind(), spec, mapper, WatchOptions::default())
    }

    /// As [`Controller::add_watch`] for a kind chosen at run time, with options.
    pub fn add_watch_with<K: crate::Object>(
        &self,
        kind: crate::Kind,
        spec: WatchSpec,
        mapper: Mapper<K, Q>,
        options: WatchOptions<K>,
    ) -> WatchId {
        let id = WatchId(self.next_watch.fetch_add(1, Relaxed));
        let source: Arc<dyn AnySource<Q>> = Arc::new(options.into_source(id, kind, spec, mapper));
        self.send(Command::AddWatch(source));
        id
    }

    /// Watches something no more. Returns whether it was watched.
    pub async fn remove_watch(&self, id: WatchId) -> bool {
        let (done, answer) = oneshot::channel();
        self.send(Command::RemoveWatch { id, done });
        answer.await.unwrap_or(false)
    }

    /// The same controller without its key type.
    pub fn handle(&self) -> ControllerHandle {
        ControllerHandle {
            inner: Arc::new(self.clone()),
        }
    }

    fn send(&self, command: Command<Q>) {
        // The actor outlives every handle; a failure means that its runtime is shutting down.
        if self.commands.send(command).is_err() {
            tracing::debug!(controller = %self.name, "the controller's runtime has ended");
        }
    }
}

impl<Q: QueueKey> Clone for Controller<Q> {
    fn clone(&self) -> Self {
        Self {
            commands: self.commands.clone(),
            state: self.state.clone(),
            inbox: self.inbox.clone(),
            statistics: self.statistics.clone(),
            name: self.name.clone(),
            cluster: self.cluster.clone(),
            next_watch: self.next_watch.clone(),
            leader_only: self.leader_only,
            concurrency: self.concurrency,
            wanted: self.wanted.clone(),
        }
    }
}

/// A controller of any key type, as managers hold it.
#[derive(Clone)]
pub struct ControllerHandle {
    pub(super) inner: Arc<dyn AnyController>,
}

pub(super) trait AnyController: Send + Sync {
    fn start(&self);
    fn stop(&self, grace: Option<Duration>) -> futures::future::BoxFuture<'_, StopReport>;
    fn restart(&self) -> futures::future::BoxFuture<'_, StopReport>;
    fn state(&self) -> watch::Receiver<ControllerState>;
    fn name(&self) -> &Arc<str>;
    fn cluster(&self) -> &Arc<str>;
    fn set_gate(&self, gate: Gate);
    fn leader_only(&self) -> bool;
    fn concurrency(&self) -> usize;
    fn queue_length(&self) -> usize;
    fn known_keys(&self) -> usize;
    fn longest_reconcile(&self) -> Duration;
    fn is_wanted(&self) -> bool;
    fn statistics(&self) -> &Arc<ControllerStatistics>;
}

impl<Q: QueueKey> AnyController for Controller<Q> {
    fn start(&self) {
        self.start();
    }
    fn stop(&self, grace: Option<Duration>) -> futures::future::BoxFuture<'_, StopReport> {
        Box::pin(self.stop_command(grace))
    }
    fn restart(&self) -> futures::future::BoxFuture<'_, StopReport> {
        Box::pin(self.restart())
    }
    fn state(&self) -> watch::Receiver<ControllerState> {
        self.state()
    }
    fn name(&self) -> &Arc<str> {
        &self.name
    }
    fn cluster(&self) -> &Arc<str> {
        &self.cluster
    }
    fn set_gate(&self, gate: Gate) {
        self.send(Command::SetGate(gate));
    }
    fn leader_only(&self) -> bool {
        self.leader_only
    }
    fn concurrency(&self) -> usize {
        self.concurrency
    }
    fn queue_length(&self) -> usize {
        self.inbox.queue.len()
    }
    fn known_keys(&self) -> usize {
        self.inbox.queue.total()
    }
    fn longest_reconcile(&self) -> Duration {
        self.inbox.queue.longest_running()
    }
    fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }
    fn statistics(&self) -> &Arc<ControllerStatistics> {
        &self.statistics
    }
}

impl ControllerHandle {
    /// See [`Controller::start`].
    pub fn start(&self) {
        self.inner.start();
    }

    /// See [`Controller::stop`].
    pub async fn stop(&self) -> StopReport {
        self.inner.stop(None).await
    }

    /// See [`Controller::stop_within`].
    pub async fn stop_within(&self, grace: Duration) -> StopReport {
        self.inner.stop(Some(grace)).await
    }

    /// See [`Controller::restart`].
    pub async fn restart(&self) -> StopReport {
        self.inner.restart().await
    }

    /// See [`Controller::state`].
    pub fn state(&self) -> watch::Receiver<ControllerState> {
        self.inner.state()
    }

    /// See [`Controller::name`].
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Name of the cluster it works on.
    pub fn cluster(&self) -> &str {
        self.inner.cluster()
    }

    /// Whether it runs only where this process leads.
    pub fn leader_only(&self) -> bool {
        self.inner.leader_only()
    }

    /// Decides from now on whether a leader-only controller may run.
    pub fn set_gate(&self, gate: Gate) {
        self.inner.set_gate(gate);
    }

    pub(crate) fn statistics(&self) -> &Arc<ControllerStatistics> {
        self.inner.statistics()
    }

    pub(crate) fn concurrency(&self) -> usize {
        self.inner.concurrency()
    }

    /// How long the oldest of its reconciles has been running.
    pub fn longest_reconcile(&self) -> Duration {
        self.inner.longest_reconcile()
    }

    /// Whether it was asked to run, last.
    pub fn is_wanted(&self) -> bool {
        self.inner.is_wanted()
    }

    /// What diagnostics show of it.
    pub fn info(&self) -> ControllerInfo {
        let statistics = self.inner.statistics();
        ControllerInfo {
            name: self.name().to_owned(),
            cluster: self.inner.cluster().to_string(),
            state: self.inner.state().borrow().clone(),
            leader_only: self.leader_only(),
            workers: self.concurrency(),
            active_workers: statistics.active_workers.load(Relaxed),
            queued: self.inner.queue_length(),
            known: self.inner.known_keys(),
            starts: statistics.starts.load(Relaxed),
            succeeded: statistics.success.load(Relaxed) + statistics.requeue_after.load(Relaxed),
            failed: statistics.error.load(Relaxed),
            panicked: statistics.panics.load(Relaxed),
            last_error: statistics.last_error(),
        }
    }
}

impl<Q: QueueKey> From<&Controller<Q>> for ControllerHandle {
    fn from(controller: &Controller<Q>) -> Self {
        controller.handle()
    }
}

impl<Q: QueueKey> From<Controller<Q>> for ControllerHandle {
    fn from(controller: Controller<Q>) -> Self {
        controller.handle()
    }
}

/// What `/debug/controllers` shows of a controller.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControllerInfo {
    /// Its name.
    pub name: String,
    /// The cluster it works on.
    pub cluster: String,
    /// What it is doing.
    pub state: ControllerState,
    /// Whether it runs only where this process leads.
    pub leader_only: bool,
    /// Workers it may use.
    pub workers: usize,
    /// Workers that reconcile now.
    pub active_workers: i64,
    /// Keys ready to be worked on.
    pub queued: usize,
    /// Keys of any kind: ready, delayed or being worked on.
    pub known: usize,
    /// How often it was started.
    pub starts: u64,
    /// Reconciles that succeeded.
    pub succeeded: u64,
    /// Reconciles that failed.
    pub failed: u64,
    /// Reconciles that panicked.
    pub panicked: u64,
    /// The latest failure.
    pub last_error: Option<String>,
}
