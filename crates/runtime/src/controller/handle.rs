//! Handles of a controller: start, stop, restart, and change its watches while it runs.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    ControllerState, Gate, Reasons, WatchId,
    builder::WatchOptions,
    inbox::Inbox,
    lifecycle::{Command, Lifecycle, OnFailure, Settings, Work},
    source::AnySource,
    statistics::ControllerStatistics,
};
use crate::{Cluster, Kind, Kinded, Mapper, Priority, QueueKey, WatchSpec};

/// A controller with keys of one type: its handle, and its queue.
///
/// Cloning is cheap. When the last clone and the last [`ControllerHandle`] is dropped, the
/// controller stops for good.
pub struct Controller<Q: QueueKey> {
    pub(super) handle: ControllerHandle,
    pub(super) inbox: Arc<Inbox<Q>>,
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
    /// Queues a key with reason [`Reasons::TRIGGERED`].
    pub fn trigger(&self, key: Q) {
        self.inbox.add(key, Reasons::TRIGGERED, Priority::NORMAL);
    }

    /// Adds a watch to this and every later run.
    pub fn add_watch<K: Kinded>(&self, spec: WatchSpec, mapper: Mapper<K, Q>) -> WatchId {
        self.add_watch_with(K::resource_kind(), spec, mapper, WatchOptions::default())
    }

    /// As [`Controller::add_watch`] for a kind chosen at run time, with options.
    pub fn add_watch_with<K: crate::Object>(
        &self,
        kind: Kind,
        spec: WatchSpec,
        mapper: Mapper<K, Q>,
        options: WatchOptions<K>,
    ) -> WatchId {
        let shared = &self.handle.shared;
        let id = WatchId(shared.next_watch.fetch_add(1, Relaxed));
        let source = options.into_source(id, kind, spec, mapper, &self.inbox);
        shared.send(Command::AddWatch(source));
        id
    }

    /// Removes a watch. Returns whether there was one.
    pub async fn remove_watch(&self, id: WatchId) -> bool {
        let (done, answer) = oneshot::channel();
        let command = Command::RemoveWatch { id, done };
        self.handle.shared.send(command);
        answer.await.unwrap_or(false)
    }

    /// The same controller without its key type.
    pub fn handle(&self) -> ControllerHandle {
        self.handle.clone()
    }
}

impl<Q: QueueKey> Deref for Controller<Q> {
    type Target = ControllerHandle;
    fn deref(&self) -> &ControllerHandle {
        &self.handle
    }
}

impl<Q: QueueKey> Clone for Controller<Q> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            inbox: self.inbox.clone(),
        }
    }
}

/// A controller, unit or machine, as managers hold it.
///
/// Cloning is cheap. When the last clone is dropped, it stops for good.
#[derive(Clone)]
pub struct ControllerHandle {
    shared: Arc<Shared>,
}

struct Shared {
    name: Arc<str>,
    cluster: Arc<str>,
    leader_only: bool,
    concurrency: usize,
    commands: mpsc::UnboundedSender<Command>,
    state: watch::Receiver<ControllerState>,
    statistics: Arc<ControllerStatistics>,
    work: Arc<dyn Work>,
    next_watch: AtomicU32,
    wanted: AtomicBool,
}

impl Shared {
    fn send(&self, command: Command) {
        // The lifecycle outlives every handle; a failure means that its runtime is shutting down.
        if self.commands.send(command).is_err() {
            tracing::debug!(controller = %self.name, "the controller's runtime has ended");
        }
    }
}

/// Everything that a lifecycle starts from.
pub(super) struct NewController<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) settings: Settings,
    pub(super) work: Arc<dyn Work>,
    pub(super) on_failure: OnFailure,
    pub(super) sources: Vec<Arc<dyn AnySource>>,
    pub(super) requires: Vec<Kind>,
    pub(super) concurrency: usize,
    pub(super) statistics: Arc<ControllerStatistics>,
}

impl<'a> NewController<'a> {
    /// One task, without sources and required kinds.
    pub(super) fn new(
        cluster: &'a Cluster,
        settings: Settings,
        work: Arc<dyn Work>,
        on_failure: OnFailure,
    ) -> Self {
        Self {
            cluster,
            settings,
            work,
            on_failure,
            sources: Vec::new(),
            requires: Vec::new(),
            concurrency: 1,
            statistics: Arc::new(ControllerStatistics::new()),
        }
    }

    /// Spawns the lifecycle, stopped, on the current tokio runtime.
    pub(super) fn spawn(self) -> ControllerHandle {
        let (commands, received) = mpsc::unbounded_channel();
        let state = watch::Sender::new(ControllerState::Stopped);
        let shared = Shared {
            name: self.settings.name.clone(),
            cluster: self.cluster.name().into(),
            leader_only: self.settings.leader_only,
            concurrency: self.concurrency,
            commands,
            state: state.subscribe(),
            statistics: self.statistics.clone(),
            work: self.work.clone(),
            next_watch: AtomicU32::new(u32::try_from(self.sources.len()).unwrap_or(u32::MAX)),
            wanted: AtomicBool::new(false),
        };
        let kinds = self.requires.into_iter().map(|kind| {
            let states = self.cluster.kind(&kind);
            (kind, states)
        });
        let lifecycle = Lifecycle {
            kinds: kinds.collect(),
            settings: self.settings,
            work: self.work,
            on_failure: self.on_failure,
            cluster: self.cluster.clone(),
            statistics: self.statistics,
            state,
            commands: received,
            sources: self.sources,
            gate: None,
            wanted: false,
            run: None,
            warm: Vec::new(),
            waiters: Vec::new(),
            abandoned: false,
            saw_leaving: false,
            failed: None,
            failures: 0,
            ended: StopReport::default(),
        };
        tokio::spawn(lifecycle.run());
        ControllerHandle {
            shared: Arc::new(shared),
        }
    }
}

impl ControllerHandle {
    /// Requests a start. Does nothing if it runs.
    pub fn start(&self) {
        self.shared.wanted.store(true, Relaxed);
        self.shared.send(Command::Start);
    }

    /// Requests a stop, and resolves when no reconcile is alive, its subscriptions are released and
    /// its queue is empty. Does nothing if it is stopped.
    pub async fn stop(&self) -> StopReport {
        self.stop_command(None).await
    }

    /// As [`ControllerHandle::stop`], with a grace time other than the controller's own.
    pub async fn stop_within(&self, grace: Duration) -> StopReport {
        self.stop_command(Some(grace)).await
    }

    async fn stop_command(&self, grace: Option<Duration>) -> StopReport {
        let (done, answer) = oneshot::channel();
        self.shared.wanted.store(false, Relaxed);
        self.shared.send(Command::Stop { grace, done });
        answer.await.unwrap_or_default()
    }

    /// Stops and starts again; resolves when the former run has ended.
    pub async fn restart(&self) -> StopReport {
        let (done, answer) = oneshot::channel();
        self.shared.wanted.store(true, Relaxed);
        self.shared.send(Command::Restart { done });
        answer.await.unwrap_or_default()
    }

    /// Follows its state.
    pub fn state(&self) -> watch::Receiver<ControllerState> {
        self.shared.state.clone()
    }

    /// Name in logs, metrics and commands.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Name of its cluster.
    pub fn cluster(&self) -> &str {
        &self.shared.cluster
    }

    /// Returns whether it runs only while this process is the leader.
    pub fn leader_only(&self) -> bool {
        self.shared.leader_only
    }

    /// Replaces the gate of a leader-only controller.
    pub fn set_gate(&self, gate: Gate) {
        self.shared.send(Command::SetGate(gate));
    }

    pub(crate) fn statistics(&self) -> &Arc<ControllerStatistics> {
        &self.shared.statistics
    }

    pub(crate) fn concurrency(&self) -> usize {
        self.shared.concurrency
    }

    /// Time that the oldest running reconcile has taken so far.
    pub fn longest_reconcile(&self) -> Duration {
        self.shared.work.load().longest
    }

    /// Returns whether it was last asked to run.
    pub fn is_wanted(&self) -> bool {
        self.shared.wanted.load(Relaxed)
    }

    /// Its entry in `/debug/controllers`.
    pub fn info(&self) -> ControllerInfo {
        let statistics = self.statistics();
        let load = self.shared.work.load();
        ControllerInfo {
            name: self.name().to_owned(),
            cluster: self.cluster().to_owned(),
            state: self.shared.state.borrow().clone(),
            leader_only: self.leader_only(),
            workers: self.concurrency(),
            active_workers: statistics.active_workers.load(Relaxed),
            queued: load.queued,
            known: load.known,
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
