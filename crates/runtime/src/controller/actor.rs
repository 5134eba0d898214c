//! The task that starts, drains and stops a controller.
//!
//! Everything that bears on it arrives as an event: commands of its handles, its kinds, its gate,
//! reports of its sources, the end of its workers. After each event `settle` compares the desired
//! state with the actual one and takes one step.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet, HashMap},
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures::{FutureExt, future::select_all};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinHandle, JoinSet},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    ControllerState, DegradedReason, Gate, GateState, PendingReason, Reconciler, StopReport,
    WatchId,
    context::{RunContext, Stores},
    expectation::Expectations,
    source::{AnySource, Feed, Report},
    statistics::ControllerStatistics,
    worker::{Inbox, Worker},
};
use crate::{Cluster, Kind, KindState, QueueKey, StopReason, cluster::Presence};

/// Requests of a controller's handles.
pub(super) enum Command<Q: QueueKey> {
    Start,
    Stop {
        grace: Option<Duration>,
        done: oneshot::Sender<StopReport>,
    },
    Restart {
        done: oneshot::Sender<StopReport>,
    },
    AddWatch(Arc<dyn AnySource<Q>>),
    RemoveWatch {
        id: WatchId,
        done: oneshot::Sender<bool>,
    },
    SetGate(Gate),
}

/// Options that stay the same for all runs of a controller.
pub(super) struct Settings {
    pub(super) name: Arc<str>,
    pub(super) concurrency: usize,
    pub(super) timeout: Option<Duration>,
    pub(super) sync_timeout: Duration,
    pub(super) grace: Duration,
    pub(super) recover_panics: bool,
    pub(super) read_own_writes: Option<Duration>,
    pub(super) leader_only: bool,
    pub(super) warm: bool,
}

pub(super) struct Actor<Q: QueueKey, R> {
    pub(super) settings: Settings,
    pub(super) reconciler: Arc<R>,
    pub(super) cluster: Cluster,
    pub(super) inbox: Arc<Inbox<Q>>,
    pub(super) statistics: Arc<ControllerStatistics>,
    pub(super) state: watch::Sender<ControllerState>,
    pub(super) commands: mpsc::UnboundedReceiver<Command<Q>>,
    pub(super) sources: Vec<Arc<dyn AnySource<Q>>>,
    pub(super) kinds: Vec<(Kind, watch::Receiver<KindState>)>,
    pub(super) gate: Option<Gate>,
    pub(super) wanted: bool,
    pub(super) run: Option<Run<Q>>,
    pub(super) warm: Vec<Box<dyn Any + Send>>,
    pub(super) waiters: Vec<oneshot::Sender<StopReport>>,
    pub(super) abandoned: bool,
    /// The cancellation of the cluster's token has been handled.
    pub(super) saw_leaving: bool,
    /// Report of the last run, until the waiters for a stop have it.
    pub(super) ended: StopReport,
}

/// State of one run of the controller, from start to stop.
pub(super) struct Run<Q: QueueKey> {
    context: Arc<RunContext<Q>>,
    pumps: HashMap<WatchId, JoinHandle<()>>,
    _presence: Presence,
    workers: JoinSet<()>,
    reports: mpsc::UnboundedReceiver<Report>,
    report: mpsc::UnboundedSender<Report>,
    unsynced: BTreeSet<WatchId>,
    trouble: BTreeMap<WatchId, DegradedReason>,
    panicked: bool,
    phase: Phase,
    deadline: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Syncing,
    SyncOverdue,
    Running,
    Draining { since: Instant, aborted: usize },
}

enum Event<Q: QueueKey> {
    Command(Option<Command<Q>>),
    Report(Report),
    WorkerEnded(Result<(), JoinError>),
    Deadline,
    Outside,
}

impl<Q: QueueKey, R: Reconciler<Q>> Actor<Q, R> {
    /// Runs until every handle is gone and the work has ended.
    pub(super) async fn run(mut self) {
        loop {
            self.settle().await;
            if self.abandoned && self.run.is_none() {
                return;
            }
            match self.next_event().await {
                Event::Command(Some(command)) => self.apply(command).await,
                Event::Command(None) => {
                    self.abandoned = true;
                    self.wanted = false;
                }
                Event::Report(report) => self.note(report),
                Event::WorkerEnded(result) => {
                    if let (Err(error), Some(run)) = (result, &mut self.run) {
                        run.panicked |= error.is_panic();
                    }
                }
                Event::Deadline => self.overdue().await,
                Event::Outside => {}
            }
        }
    }

    async fn next_event(&mut self) -> Event<Q> {
        let kind_changed = kind_changed(&mut self.kinds);
        let gate = &mut self.gate;
        let gate_changed = async {
            match gate {
                Some(gate) => gate.changed().await,
                None => std::future::pending().await,
            }
        };
        let left = self.cluster.left().clone();
        tokio::select! {
            command = self.commands.recv(), if !self.abandoned => Event::Command(command),
            event = run_event(self.run.as_mut()) => event,
            () = kind_changed => Event::Outside,
            () = gate_changed => Event::Outside,
            // Does not read the token: it may be cancelled between `settle` and here.
            () = left.cancelled(), if !self.saw_leaving => Event::Outside,
        }
    }

    async fn apply(&mut self, command: Command<Q>) {
        match command {
            Command::Start => self.wanted = true,
            Command::Stop { grace, done } => {
                self.wanted = false;
                self.waiters.push(done);
                self.drain(grace);
            }
            Command::Restart { done } => {
                self.wanted = true;
                self.waiters.push(done);
                self.drain(None);
            }
            Command::AddWatch(source) => self.add_watch(source),
            Command::RemoveWatch { id, done } => {
                let removed = self.remove_watch(id).await;
                // The caller may have given up waiting.
                let _ = done.send(removed);
            }
            Command::SetGate(gate) => self.gate = Some(gate),
        }
    }

    /// The first reason that keeps the controller from running, if any.
    fn obstacle(&self) -> Option<PendingReason> {
        if self.cluster.left().is_cancelled() {
            return Some(PendingReason::ClusterLeft);
        }
        for (kind, state) in &self.kinds {
            match *state.borrow() {
                KindState::Present => {}
                KindState::Absent => return Some(PendingReason::KindMissing(kind.to_string())),
                KindState::Unknown => return Some(PendingReason::KindUnknown(kind.to_string())),
            }
        }
        let closed = self
            .gate
            .as_ref()
            .map_or(self.settings.leader_only, |gate| !gate.state().is_open());
        (self.settings.leader_only && closed).then_some(PendingReason::NotLeading)
    }

    async fn settle(&mut self) {
        loop {
            let obstacle = self.obstacle();
            self.saw_leaving |= obstacle == Some(PendingReason::ClusterLeft);
            let may_run = self.wanted && obstacle.is_none();
            let Some(run) = &mut self.run else {
                if may_run {
                    self.start();
                } else {
                    self.idle(obstacle);
                }
                // Only now: a waiter for a stop must find the state it asked for.
                self.answer_waiters();
                if may_run {
                    continue;
                }
                return;
            };
            if matches!(run.phase, Phase::Draining { .. }) {
                if !run.workers.is_empty() {
                    // Leadership may be lost while the work is being brought to an end.
                    if let Some(by) = self.lease_ends() {
                        self.shorten(by);
                    }
                    return self.publish();
                }
                self.finish().await;
                continue;
            }
            if !may_run {
                self.drain(None);
                continue;
            }
            if matches!(run.phase, Phase::Syncing | Phase::SyncOverdue) && run.unsynced.is_empty() {
                self.begin_work();
            }
            return self.publish();
        }
    }

    /// Nothing runs. While only leadership is missing, informers are kept warm.
    fn idle(&mut self, obstacle: Option<PendingReason>) {
        let standby = self.wanted && obstacle == Some(PendingReason::NotLeading);
        if standby && self.settings.warm {
            if self.warm.is_empty() {
                let required = self.sources.iter().filter(|source| !source.is_optional());
                self.warm = required.map(|source| source.warm(&self.cluster)).collect();
            }
        } else {
            self.warm = Vec::new();
        }
        match obstacle {
            Some(reason) if self.wanted => self.set_state(ControllerState::Waiting(reason)),
            _ => self.set_state(ControllerState::Stopped),
        }
    }

    fn start(&mut self) {
        self.inbox.reopen();
        self.statistics.starts.fetch_add(1, Relaxed);
        let context = Arc::new(RunContext {
            client: self.cluster.client().clone(),
            stores: Stores::default(),
            cancel: CancellationToken::new(),
            gate: self.gate.clone().filter(|_| self.settings.leader_only),
            expectations: Expectations::new(self.settings.read_own_writes),
        });
        let (report, reports) = mpsc::unbounded_channel();
        let mut run = Run {
            context,
            pumps: HashMap::new(),
            _presence: self.cluster.enter(),
            workers: JoinSet::new(),
            reports,
            report,
            unsynced: BTreeSet::new(),
            trouble: BTreeMap::new(),
            panicked: false,
            phase: Phase::Syncing,
            deadline: Some(Instant::now() + self.settings.sync_timeout),
        };
        for source in &self.sources {
            run.open(source, &self.cluster, &self.inbox);
            if !source.is_optional() {
                run.unsynced.insert(source.id());
            }
        }
        self.run = Some(run);
        // The run holds the informers now.
        self.warm = Vec::new();
        self.publish();
    }

    fn begin_work(&mut self) {
        let Some(run) = &mut self.run else { return };
        run.phase = Phase::Running;
        run.deadline = None;
        let worker = Arc::new(Worker {
            name: self.settings.name.clone(),
            reconciler: self.reconciler.clone(),
            inbox: self.inbox.clone(),
            run: run.context.clone(),
            statistics: self.statistics.clone(),
            timeout: self.settings.timeout,
            recover_panics: self.settings.recover_panics,
        });
        for _ in 0..self.settings.concurrency {
            run.workers.spawn(worker.clone().work());
        }
    }

    /// Deadline for all work that needs leadership.
    fn lease_ends(&self) -> Option<Instant> {
        match self.gate.as_ref().map(Gate::state) {
            Some(GateState::Closed { by }) if self.settings.leader_only => by,
            _ => None,
        }
    }

    fn shorten(&mut self, deadline: Instant) {
        if let Some(run) = &mut self.run {
            run.deadline = run.deadline.map(|before| before.min(deadline));
        }
    }

    /// Takes no more keys, releases the sources, lets running reconciles finish.
    fn drain(&mut self, grace: Option<Duration>) {
        let now = Instant::now();
        let lease_ends = self.lease_ends();
        let Some(run) = &mut self.run else { return };
        let mut deadline = now + grace.unwrap_or(self.settings.grace);
        deadline = lease_ends.map_or(deadline, |by| deadline.min(by));
        if matches!(run.phase, Phase::Draining { .. }) {
            // A second request can only shorten the time.
            return self.shorten(deadline);
        }
        let synced = |source: &&Arc<dyn AnySource<Q>>| !run.unsynced.contains(&source.id());
        for source in self.sources.iter().filter(synced) {
            source.remember(&run.context);
        }
        run.phase = Phase::Draining {
            since: now,
            aborted: 0,
        };
        run.deadline = Some(deadline);
        run.context.cancel.cancel();
        run.pumps.values().for_each(JoinHandle::abort);
        self.inbox.queue.discard();
        self.publish();
    }

    async fn overdue(&mut self) {
        let Some(run) = &mut self.run else { return };
        match run.phase {
            Phase::Syncing => {
                run.phase = Phase::SyncOverdue;
                run.deadline = None;
            }
            Phase::Draining { .. } => self.abort_workers().await,
            Phase::SyncOverdue | Phase::Running => run.deadline = None,
        }
    }

    /// The grace time is over: reconciles are dropped where they stand.
    async fn abort_workers(&mut self) {
        let Some(run) = &mut self.run else { return };
        run.deadline = None;
        // Workers that only wait for the queue have nothing to lose.
        let busy = self.statistics.active_workers.load(Relaxed);
        run.workers.abort_all();
        while run.workers.join_next().await.is_some() {}
        let dropped = usize::try_from(busy).unwrap_or(0);
        if let Phase::Draining { aborted, .. } = &mut run.phase {
            *aborted = dropped;
        }
    }

    /// The last worker has ended: nothing of this run is left after this.
    async fn finish(&mut self) {
        let Some(mut run) = self.run.take() else {
            return;
        };
        for (_, pump) in run.pumps.drain() {
            // Aborted, so this only waits for it to be dropped.
            let _aborted = pump.await;
        }
        // A context that outlives the run must not hold the informers.
        run.context.stores.clear();
        if let Phase::Draining { since, aborted } = run.phase {
            self.ended = StopReport {
                aborted,
                took: since.elapsed(),
            };
        }
    }

    fn answer_waiters(&mut self) {
        let report = std::mem::take(&mut self.ended);
        for waiter in self.waiters.drain(..) {
            // The caller may have given up waiting.
            let _ = waiter.send(report);
        }
    }

    fn note(&mut self, report: Report) {
        if let Report::Closed(id, StopReason::KindRemoved) = &report
            && self.requires_kind_of(*id)
        {
            // Its kind may have gone and come back between two looks at the kind's state: start
            // over.
            return self.drain(None);
        }
        let describe = |id: WatchId| {
            let source = self.sources.iter().find(|source| source.id() == id);
            source.map(|source| source.describe()).unwrap_or_default()
        };
        let Some(run) = &mut self.run else { return };
        match report {
            Report::Synced(id) => drop(run.unsynced.remove(&id)),
            Report::Fresh(id) => drop(run.trouble.remove(&id)),
            Report::Stale(id, error) => {
                let reason = DegradedReason::SourceStale {
                    source: describe(id),
                    error,
                };
                run.trouble.insert(id, reason);
            }
            Report::Closed(id, reason) => {
                let reason = DegradedReason::SourceClosed {
                    source: describe(id),
                    reason: reason.to_string(),
                };
                run.trouble.insert(id, reason);
            }
        }
    }

    fn requires_kind_of(&self, id: WatchId) -> bool {
        let source = self.sources.iter().find(|source| source.id() == id);
        source.is_some_and(|source| self.kinds.iter().any(|(kind, _)| kind == source.kind()))
    }

    fn add_watch(&mut self, source: Arc<dyn AnySource<Q>>) {
        if let Some(run) = &mut self.run
            && !matches!(run.phase, Phase::Draining { .. })
        {
            run.open(&source, &self.cluster, &self.inbox);
            if matches!(run.phase, Phase::Syncing | Phase::SyncOverdue) && !source.is_optional() {
                run.unsynced.insert(source.id());
            }
        }
        self.sources.push(source);
    }

    async fn remove_watch(&mut self, id: WatchId) -> bool {
        let before = self.sources.len();
        self.sources.retain(|source| source.id() != id);
        if let Some(run) = &mut self.run {
            if let Some(pump) = run.pumps.remove(&id) {
                pump.abort();
                // Only when it is gone does it deliver, and hold, nothing more.
                let _aborted = pump.await;
            }
            run.context.stores.remove(id);
            run.unsynced.remove(&id);
            run.trouble.remove(&id);
        }
        self.sources.len() < before
    }

    fn publish(&mut self) {
        let Some(run) = &self.run else { return };
        let state = match run.phase {
            Phase::Draining { .. } => ControllerState::Draining,
            Phase::Syncing => ControllerState::Syncing,
            Phase::SyncOverdue => {
                let missing = self
                    .sources
                    .iter()
                    .filter(|s| run.unsynced.contains(&s.id()));
                let missing = missing.map(|source| source.describe()).collect();
                ControllerState::Degraded(DegradedReason::SyncTimeout(missing))
            }
            Phase::Running if run.panicked => ControllerState::Degraded(DegradedReason::Panicked),
            Phase::Running => match run.trouble.values().next() {
                Some(reason) => ControllerState::Degraded(reason.clone()),
                None => ControllerState::Running,
            },
        };
        self.set_state(state);
    }

    fn set_state(&mut self, state: ControllerState) {
        let changed = self.state.send_if_modified(|current| {
            let changed = *current != state;
            if changed {
                tracing::info!(controller = %self.settings.name, from = %current, to = %state,
                    "controller changed state");
                current.clone_from(&state);
            }
            changed
        });
        if changed {
            self.statistics.note_state(state);
        }
    }
}

impl<Q: QueueKey> Run<Q> {
    fn open(&mut self, source: &Arc<dyn AnySource<Q>>, cluster: &Cluster, inbox: &Arc<Inbox<Q>>) {
        let feed = Feed {
            cluster: cluster.clone(),
            inbox: inbox.clone(),
            run: self.context.clone(),
            reports: self.report.clone(),
        };
        let (id, report) = (source.id(), self.report.clone());
        let pump = AssertUnwindSafe(source.clone().open(feed)).catch_unwind();
        let pump = tokio::spawn(async move {
            if pump.await.is_err() {
                // Fails while the controller is being torn down, when no task receives reports.
                let _ = report.send(Report::Closed(id, StopReason::Panicked));
            }
        });
        self.pumps.insert(id, pump);
    }
}

/// Resolves when one of the kinds changes its state; never, where there is none to follow.
async fn kind_changed(kinds: &mut [(Kind, watch::Receiver<KindState>)]) {
    if !kinds.is_empty() {
        let changes = kinds
            .iter_mut()
            .map(|(_, states)| Box::pin(states.changed()));
        if let (Ok(()), ..) = select_all(changes).await {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// The next thing that happens in a run; for ever pending without one.
async fn run_event<Q: QueueKey>(run: Option<&mut Run<Q>>) -> Event<Q> {
    let Some(run) = run else {
        return std::future::pending().await;
    };
    let deadline = async {
        match run.deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        Some(report) = run.reports.recv() => Event::Report(report),
        Some(result) = run.workers.join_next() => Event::WorkerEnded(result),
        () = deadline => Event::Deadline,
    }
}
