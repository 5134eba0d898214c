//! The lifecycle of controllers, units and machines: the task that starts, drains and stops them.
//!
//! Everything that bears on it arrives as an event: commands of its handles, its kinds, its gate,
//! reports of its sources, the end of its tasks. After each event `settle` compares the desired
//! state with the actual one and takes one step. The kinds of work differ only in the tasks that
//! they spawn and in what the end of a task means.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet, HashMap},
    error::Error,
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
use weft_model::{ExponentialDelay, error_text};

use super::{
    ControllerState, DegradedReason, Gate, GateState, PendingReason, StopReport, WatchId,
    scope::RunScope,
    source::{AnySource, Feed, Report},
    statistics::ControllerStatistics,
};
use crate::{Cluster, Kind, KindState, StopReason, cluster::Presence};

/// First and longest wait before a failed run is followed by another.
const RETRY: ExponentialDelay =
    ExponentialDelay::new(Duration::from_secs(1), Duration::from_secs(60));
/// A run of at least this length resets the back-off.
const STABLE_RUN: Duration = Duration::from_secs(120);

/// The error with which a run ended.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The tasks of one run.
pub(super) type Tasks = JoinSet<Result<(), Failure>>;

/// The work of a controller, a unit or a machine.
pub(super) trait Work: Send + Sync + 'static {
    /// Opens the inputs of a new run, before its sources deliver.
    fn open(&self) {}

    /// Spawns the tasks of a run. Where something has to be synced first, they wait for
    /// [`RunScope::synced`]; the run counts as running once they report [`RunScope::ready`].
    fn spawn(self: Arc<Self>, scope: &Arc<RunScope>, tasks: &mut Tasks);

    /// Discards what waits, because the run is to stop.
    fn close(&self) {}

    /// Of `tasks` that have not ended, the number that would lose something if they were aborted.
    fn busy(&self, tasks: usize) -> usize {
        tasks
    }

    /// Figures about its inputs.
    fn load(&self) -> Load {
        Load::default()
    }
}

/// Figures about the inputs of a controller.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// Inputs that wait.
    pub(super) queued: usize,
    /// Inputs that wait, are delayed or are being worked on.
    pub(super) known: usize,
    /// Age of the oldest work under way.
    pub(super) longest: Duration,
}

/// Consequence of a task that ends although the run was not asked to stop.
pub(super) enum OnFailure {
    /// The controller stays as it is, degraded, until it is restarted.
    Degrade,
    /// The run ends, and the next one starts after a back-off.
    Restart,
    /// The run ends and its error is reported; only the first one has a receiver.
    Report(Option<oneshot::Sender<Failure>>),
}

/// Requests of a controller's handles.
pub(super) enum Command {
    Start,
    Stop {
        grace: Option<Duration>,
        done: oneshot::Sender<StopReport>,
    },
    Restart {
        done: oneshot::Sender<StopReport>,
    },
    AddWatch(Arc<dyn AnySource>),
    RemoveWatch {
        id: WatchId,
        done: oneshot::Sender<bool>,
    },
    SetGate(Gate),
}

/// Options that stay the same for all runs.
pub(super) struct Settings {
    pub(super) name: Arc<str>,
    /// Time for the start to complete, after which it is reported as degraded.
    pub(super) sync_timeout: Option<Duration>,
    /// Time for the tasks to end.
    pub(super) grace: Duration,
    pub(super) leader_only: bool,
    pub(super) warm: bool,
}

impl Settings {
    /// The defaults of controllers and machines.
    pub(super) fn of_a_controller(name: &str) -> Self {
        Self {
            name: name.into(),
            sync_timeout: Some(Duration::from_mins(2)),
            grace: Duration::from_secs(30),
            leader_only: false,
            warm: true,
        }
    }
}

/// A controller, a unit or a machine as its own task keeps it.
pub(super) struct Lifecycle {
    pub(super) settings: Settings,
    pub(super) work: Arc<dyn Work>,
    pub(super) on_failure: OnFailure,
    pub(super) cluster: Cluster,
    pub(super) statistics: Arc<ControllerStatistics>,
    pub(super) state: watch::Sender<ControllerState>,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) sources: Vec<Arc<dyn AnySource>>,
    pub(super) kinds: Vec<(Kind, watch::Receiver<KindState>)>,
    pub(super) gate: Option<Gate>,
    pub(super) wanted: bool,
    pub(super) run: Option<Run>,
    pub(super) warm: Vec<Box<dyn Any + Send>>,
    pub(super) waiters: Vec<oneshot::Sender<StopReport>>,
    pub(super) abandoned: bool,
    /// The cancellation of the cluster's token has been handled.
    pub(super) saw_leaving: bool,
    /// The failure of the last run, until the next one starts.
    pub(super) failed: Option<Failed>,
    pub(super) failures: u32,
    /// Report of the last run, until the waiters for a stop have it.
    pub(super) ended: StopReport,
}

/// A run that failed.
pub(super) struct Failed {
    error: String,
    /// Time of the next run; `None` if it has to be asked for.
    again: Option<Instant>,
}

/// State of one run, from start to stop.
pub(super) struct Run {
    scope: Arc<RunScope>,
    pumps: HashMap<WatchId, JoinHandle<()>>,
    _presence: Presence,
    tasks: Tasks,
    reports: mpsc::UnboundedReceiver<Report>,
    report: mpsc::UnboundedSender<Report>,
    unsynced: BTreeSet<WatchId>,
    trouble: BTreeMap<WatchId, DegradedReason>,
    panicked: bool,
    begun: Instant,
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

/// The end of a task.
type Ended = Result<Result<(), Failure>, JoinError>;

enum Event {
    Command(Option<Command>),
    Report(Report),
    TaskEnded(Ended),
    Deadline,
    /// A kind, the gate or the cluster changed, the run is ready, or the back-off is over.
    Outside,
}

impl Lifecycle {
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
                Event::TaskEnded(ended) => self.task_ended(ended),
                Event::Deadline => self.overdue().await,
                Event::Outside => {}
            }
        }
    }

    async fn next_event(&mut self) -> Event {
        let kind_changed = kind_changed(&mut self.kinds);
        let gate = &mut self.gate;
        let gate_changed = async {
            match gate {
                Some(gate) => gate.changed().await,
                None => std::future::pending().await,
            }
        };
        let left = self.cluster.left().clone();
        let again = self.failed.as_ref().and_then(|failed| failed.again);
        tokio::select! {
            command = self.commands.recv(), if !self.abandoned => Event::Command(command),
            event = run_event(self.run.as_mut()) => event,
            () = kind_changed => Event::Outside,
            () = gate_changed => Event::Outside,
            () = until(again), if self.wanted && self.run.is_none() => Event::Outside,
            // Does not read the token: it may be cancelled between `settle` and here.
            () = left.cancelled(), if !self.saw_leaving => Event::Outside,
        }
    }

    async fn apply(&mut self, command: Command) {
        if let Command::Start | Command::Stop { .. } | Command::Restart { .. } = &command {
            self.failed = None;
        }
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
                let may_run = may_run && self.is_rested();
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
                if !run.tasks.is_empty() {
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
            if run.is_starting() && run.unsynced.is_empty() {
                run.scope.synced.cancel();
                if run.scope.ready.is_cancelled() {
                    run.phase = Phase::Running;
                    run.deadline = None;
                }
            }
            return self.publish();
        }
    }

    /// Returns whether the back-off after a failure is over.
    fn is_rested(&self) -> bool {
        let again = self.failed.as_ref().map(|failed| failed.again);
        again.is_none_or(|again| again.is_some_and(|again| again <= Instant::now()))
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
        self.set_state(match (obstacle, &self.failed) {
            (Some(reason), _) if self.wanted => ControllerState::Waiting(reason),
            (_, Some(failed)) => ControllerState::Failed(failed.error.clone()),
            _ => ControllerState::Stopped,
        });
    }

    fn start(&mut self) {
        self.failed = None;
        self.work.open();
        self.statistics.starts.fetch_add(1, Relaxed);
        let gate = self.gate.clone().filter(|_| self.settings.leader_only);
        let scope = Arc::new(RunScope::new(self.cluster.client().clone(), gate));
        let (report, reports) = mpsc::unbounded_channel();
        let now = Instant::now();
        let mut run = Run {
            scope,
            pumps: HashMap::new(),
            _presence: self.cluster.enter(),
            tasks: JoinSet::new(),
            reports,
            report,
            unsynced: BTreeSet::new(),
            trouble: BTreeMap::new(),
            panicked: false,
            begun: now,
            phase: Phase::Syncing,
            deadline: self.settings.sync_timeout.map(|limit| now + limit),
        };
        for source in &self.sources {
            run.open(source, &self.cluster);
            if !source.is_optional() {
                run.unsynced.insert(source.id());
            }
        }
        self.work.clone().spawn(&run.scope, &mut run.tasks);
        self.run = Some(run);
        // The run holds the informers now.
        self.warm = Vec::new();
        self.publish();
    }

    /// A task has ended: as asked, or with a failure.
    fn task_ended(&mut self, ended: Ended) {
        let Some(run) = &mut self.run else { return };
        let draining = matches!(run.phase, Phase::Draining { .. });
        if let OnFailure::Degrade = self.on_failure {
            run.panicked |= ended.is_err_and(|error| error.is_panic());
            return;
        }
        let failure: Failure = match ended {
            Ok(Ok(())) if draining => return,
            Ok(Ok(())) => "ended without a stop".into(),
            Ok(Err(failure)) => failure,
            Err(error) if error.is_panic() => {
                self.statistics.panics.fetch_add(1, Relaxed);
                "panicked".into()
            }
            Err(_) => return,
        };
        let error = error_text(&*failure);
        tracing::error!(controller = %self.settings.name, error, "run failed");
        self.statistics.note_error(error.clone());
        // The end of a run that was asked to stop, failed or not, causes no restart and no
        // back-off.
        if draining {
            return;
        }
        if run.begun.elapsed() >= STABLE_RUN {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        let pause = RETRY.after(self.failures);
        let again = match &mut self.on_failure {
            OnFailure::Report(receiver) => {
                if let Some(receiver) = receiver.take() {
                    // Fails if the process no longer waits for it.
                    let _ = receiver.send(failure);
                }
                None
            }
            OnFailure::Restart | OnFailure::Degrade => Some(Instant::now() + pause),
        };
        self.failed = Some(Failed { error, again });
        self.drain(None);
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

    /// Takes nothing more, releases the sources, lets work under way finish.
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
        let synced = |source: &&Arc<dyn AnySource>| !run.unsynced.contains(&source.id());
        for source in self.sources.iter().filter(synced) {
            source.remember(&run.scope);
        }
        run.phase = Phase::Draining {
            since: now,
            aborted: 0,
        };
        run.deadline = Some(deadline);
        run.scope.stop.cancel();
        run.pumps.values().for_each(JoinHandle::abort);
        self.work.close();
        self.publish();
    }

    async fn overdue(&mut self) {
        let Some(run) = &mut self.run else { return };
        match run.phase {
            Phase::Syncing => {
                run.phase = Phase::SyncOverdue;
                run.deadline = None;
            }
            Phase::Draining { .. } => self.abort_tasks().await,
            Phase::SyncOverdue | Phase::Running => run.deadline = None,
        }
    }

    /// The grace time is over: tasks are dropped where they stand.
    async fn abort_tasks(&mut self) {
        let Some(run) = &mut self.run else { return };
        run.deadline = None;
        let dropped = self.work.busy(run.tasks.len());
        run.tasks.abort_all();
        if let Phase::Draining { aborted, .. } = &mut run.phase {
            *aborted = dropped;
        }
        // Those that end by themselves meanwhile may have failed.
        while let Some(run) = &mut self.run
            && let Some(ended) = run.tasks.join_next().await
        {
            self.task_ended(ended);
        }
    }

    /// The last task has ended: nothing of this run is left after this.
    async fn finish(&mut self) {
        let Some(mut run) = self.run.take() else {
            return;
        };
        for (_, pump) in run.pumps.drain() {
            // Aborted, so this only waits for it to be dropped.
            let _aborted = pump.await;
        }
        // A scope that outlives the run must not hold the informers.
        run.scope.stores.clear();
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

    fn add_watch(&mut self, source: Arc<dyn AnySource>) {
        if let Some(run) = &mut self.run
            && !matches!(run.phase, Phase::Draining { .. })
        {
            run.open(&source, &self.cluster);
            if run.is_starting() && !source.is_optional() {
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
            run.scope.stores.remove(id);
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

impl Run {
    fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Syncing | Phase::SyncOverdue)
    }

    fn open(&mut self, source: &Arc<dyn AnySource>, cluster: &Cluster) {
        let feed = Feed {
            cluster: cluster.clone(),
            scope: self.scope.clone(),
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

/// The next event of a run; pending forever without one.
async fn run_event(run: Option<&mut Run>) -> Event {
    let Some(run) = run else {
        return std::future::pending().await;
    };
    // Does not read `ready`: it may be cancelled between `settle` and here.
    let waits = run.is_starting() && run.scope.synced.is_cancelled();
    tokio::select! {
        Some(report) = run.reports.recv() => Event::Report(report),
        Some(ended) = run.tasks.join_next() => Event::TaskEnded(ended),
        () = run.scope.ready.cancelled(), if waits => Event::Outside,
        () = until(run.deadline) => Event::Deadline,
    }
}

pub(super) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
