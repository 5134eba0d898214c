//! Handles of a controller: start, stop, restart, and change its watches while it runs.

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

/// A controller with its key type.
///
/// Cloning is cheap. When the last clone and the last [`ControllerHandle`] is dropped, the
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

/// Triggers reconciles without keeping the controller alive: for tasks that follow something other
/// than the API server. Does nothing while the controller does not run.
#[derive(Clone)]
pub struct Trigger<Q: QueueKey>(Arc<Inbox<Q>>);

impl<Q: QueueKey> Trigger<Q> {
    /// Queues a key with reason [`Reasons::TRIGGERED`].
    pub fn fire(&self, key: Q) {
        self.0.add(key, Reasons::TRIGGERED, Priority::NORMAL);
    }
}

/// Outcome of a stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// Reconciles that did not end within the grace time and were dropped.
    pub aborted: usize,
    /// Time from the request to the end of the last reconcile.
    pub took: Duration,
}

impl<Q: QueueKey> Controller<Q> {
    /// Requests a start. Does nothing if it runs.
    pub fn start(&self) {
        self.wanted.store(true, Relaxed);
        self.send(Command::Start);
    }

    /// Requests a stop, and resolves when no reconcile is alive, its subscriptions are released and
    /// its queue is empty. Does nothing if it is stopped.
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

    /// Stops and starts again; resolves when the former run has ended.
    pub async fn restart(&self) -> StopReport {
        let (done, answer) = oneshot::channel();
        self.wanted.store(true, Relaxed);
        self.send(Command::Restart { done });
        answer.await.unwrap_or_default()
    }

    /// Follows its state.
    pub fn state(&self) -> watch::Receiver<ControllerState> {
        self.state.clone()
    }

    /// Name in logs, metrics and commands.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Queues a key with reason [`Reasons::TRIGGERED`].
    pub fn trigger(&self, key: Q) {
        self.inbox.add(key, Reasons::TRIGGERED, Priority::NORMAL);
    }

    /// A trigger that does not keep the controller alive.
    pub fn trigger_handle(&self) -> Trigger<Q> {
        Trigger(self.inbox.clone())
    }

    /// Adds a watch to this and every later run.
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

    /// Removes a watch. Returns whether there was one.
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

/// A controller without its key type, as managers hold it.
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

    /// Name of its cluster.
    pub fn cluster(&self) -> &str {
        self.inner.cluster()
    }

    /// Returns whether it runs only while this process is the leader.
    pub fn leader_only(&self) -> bool {
        self.inner.leader_only()
    }

    /// Replaces the gate of a leader-only controller.
    pub fn set_gate(&self, gate: Gate) {
        self.inner.set_gate(gate);
    }

    pub(crate) fn statistics(&self) -> &Arc<ControllerStatistics> {
        self.inner.statistics()
    }

    pub(crate) fn concurrency(&self) -> usize {
        self.inner.concurrency()
    }

    /// Time that the oldest running reconcile has taken so far.
    pub fn longest_reconcile(&self) -> Duration {
        self.inner.longest_reconcile()
    }

    /// Returns whether it was last asked to run.
    pub fn is_wanted(&self) -> bool {
        self.inner.is_wanted()
    }

    /// Its entry in `/debug/controllers`.
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

/// An entry of `/debug/controllers`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControllerInfo {
    /// Name in logs, metrics and commands.
    pub name: String,
    /// Name of its cluster.
    pub cluster: String,
    /// Current state.
    pub state: ControllerState,
    /// Runs only while this process is the leader.
    pub leader_only: bool,
    /// Configured number of workers.
    pub workers: usize,
    /// Workers that are reconciling.
    pub active_workers: i64,
    /// Keys ready to be worked on.
    pub queued: usize,
    /// Keys that are ready, delayed or being worked on.
    pub known: usize,
    /// Starts so far.
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
