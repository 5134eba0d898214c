//! A component with the lifecycle and states of a controller.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinHandle},
    time::{Instant, sleep_until},
};

use super::{
    ControllerHandle, ControllerState, Gate, PendingReason, StopReport, handle::AnyController,
    statistics::ControllerStatistics,
};
use crate::{Cluster, Component, ComponentScope, Metrics, cluster::Presence};

/// First and longest wait before a failed run is followed by another.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A run of at least this length resets the back-off.
const STABLE_RUN: Duration = Duration::from_secs(120);
/// Default time for a run to end.
const GRACE: Duration = Duration::from_secs(30);

/// The error with which a run ended.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A component that starts, stops and restarts as a controller does, with the same states.
///
/// Each start runs the component again. A run that ends with an error, by a panic, or without a
/// stop leaves the unit failed and everything else as it is. Cloning is cheap; when the last clone
/// and handle is dropped, the unit stops for good.
#[derive(Clone)]
pub struct Unit {
    shared: Arc<Shared>,
}

struct Shared {
    name: Arc<str>,
    cluster: Arc<str>,
    commands: mpsc::UnboundedSender<Command>,
    state: watch::Receiver<ControllerState>,
    statistics: Arc<ControllerStatistics>,
    wanted: AtomicBool,
}

enum Command {
    Start,
    Stop {
        grace: Option<Duration>,
        done: oneshot::Sender<StopReport>,
    },
    Restart {
        done: oneshot::Sender<StopReport>,
    },
}

impl Unit {
    /// A unit that is restarted after a failure, with back-off. Must be called within a tokio
    /// runtime.
    pub fn new(component: impl Component, cluster: &Cluster) -> Self {
        Self::build(Arc::new(component), cluster, None)
    }

    /// A unit that reports its first failure and is not restarted by itself: for processes with
    /// only one component.
    pub fn once(
        component: impl Component,
        cluster: &Cluster,
    ) -> (Self, oneshot::Receiver<Failure>) {
        let (on_failure, failure) = oneshot::channel();
        (
            Self::build(Arc::new(component), cluster, Some(on_failure)),
            failure,
        )
    }

    fn build(
        component: Arc<dyn Component>,
        cluster: &Cluster,
        on_failure: Option<oneshot::Sender<Failure>>,
    ) -> Self {
        let (commands, received) = mpsc::unbounded_channel();
        let state = watch::Sender::new(ControllerState::Stopped);
        let statistics = Arc::new(ControllerStatistics::new());
        let shared = Shared {
            name: component.name().into(),
            cluster: cluster.name().into(),
            commands,
            state: state.subscribe(),
            statistics: statistics.clone(),
            wanted: AtomicBool::new(false),
        };
        let actor = Actor {
            component,
            cluster: cluster.clone(),
            commands: received,
            state,
            statistics,
            retries: on_failure.is_none(),
            on_failure,
            wanted: false,
            abandoned: false,
            current: None,
            failure: None,
            failures: 0,
            waiters: Vec::new(),
            ended: StopReport::default(),
        };
        tokio::spawn(actor.run());
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Exposes its metrics.
    #[must_use]
    pub fn metrics(self, metrics: &Metrics) -> Self {
        metrics.observe_controller(&self.handle());
        self
    }

    /// The unit as managers hold controllers.
    pub fn handle(&self) -> ControllerHandle {
        ControllerHandle {
            inner: self.shared.clone(),
        }
    }
}

impl From<Unit> for ControllerHandle {
    fn from(unit: Unit) -> Self {
        unit.handle()
    }
}

impl Shared {
    fn send(&self, command: Command) {
        if self.commands.send(command).is_err() {
            tracing::debug!(controller = %self.name, "the unit's runtime has ended");
        }
    }

    async fn ended(&self, answer: oneshot::Receiver<StopReport>) -> StopReport {
        answer.await.unwrap_or_default()
    }
}

impl AnyController for Shared {
    fn start(&self) {
        self.wanted.store(true, Relaxed);
        self.send(Command::Start);
    }
    fn stop(&self, grace: Option<Duration>) -> BoxFuture<'_, StopReport> {
        let (done, answer) = oneshot::channel();
        self.wanted.store(false, Relaxed);
        self.send(Command::Stop { grace, done });
        Box::pin(self.ended(answer))
    }
    fn restart(&self) -> BoxFuture<'_, StopReport> {
        let (done, answer) = oneshot::channel();
        self.wanted.store(true, Relaxed);
        self.send(Command::Restart { done });
        Box::pin(self.ended(answer))
    }
    fn state(&self) -> watch::Receiver<ControllerState> {
        self.state.clone()
    }
    fn name(&self) -> &Arc<str> {
        &self.name
    }
    fn cluster(&self) -> &Arc<str> {
        &self.cluster
    }
    fn set_gate(&self, _gate: Gate) {}
    fn leader_only(&self) -> bool {
        false
    }
    fn concurrency(&self) -> usize {
        1
    }
    fn queue_length(&self) -> usize {
        0
    }
    fn known_keys(&self) -> usize {
        0
    }
    fn longest_reconcile(&self) -> Duration {
        Duration::ZERO
    }
    fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }
    fn statistics(&self) -> &Arc<ControllerStatistics> {
        &self.statistics
    }
}

/// The task that starts, drains and stops a unit.
struct Actor {
    component: Arc<dyn Component>,
    cluster: Cluster,
    commands: mpsc::UnboundedReceiver<Command>,
    state: watch::Sender<ControllerState>,
    statistics: Arc<ControllerStatistics>,
    on_failure: Option<oneshot::Sender<Failure>>,
    retries: bool,
    wanted: bool,
    abandoned: bool,
    current: Option<Run>,
    /// Error of the last run, and the time of the next one.
    failure: Option<(String, Option<Instant>)>,
    failures: u32,
    waiters: Vec<oneshot::Sender<StopReport>>,
    ended: StopReport,
}

struct Run {
    scope: ComponentScope,
    task: JoinHandle<Result<(), Failure>>,
    begun: Instant,
    ready: bool,
    draining: Option<Draining>,
    _presence: Presence,
}

#[derive(Clone, Copy)]
struct Draining {
    since: Instant,
    deadline: Instant,
}

enum Event {
    Command(Option<Command>),
    Ready,
    Ended(Result<Result<(), Failure>, JoinError>),
    Overdue,
    /// The cluster left, or the back-off is over.
    Outside,
}

impl Actor {
    async fn run(mut self) {
        loop {
            self.settle();
            if self.abandoned && self.current.is_none() {
                return;
            }
            match self.next_event().await {
                Event::Command(Some(command)) => self.apply(command),
                Event::Command(None) => {
                    self.abandoned = true;
                    self.wanted = false;
                }
                Event::Ready => {
                    if let Some(run) = &mut self.current {
                        run.ready = true;
                    }
                }
                Event::Ended(result) => self.finish(result, 0),
                Event::Overdue => self.abort().await,
                Event::Outside => {}
            }
        }
    }

    async fn next_event(&mut self) -> Event {
        let left = self.cluster.left().clone();
        let may_leave = self.wanted && !left.is_cancelled();
        let again = match (&self.failure, self.wanted) {
            (Some((_, again)), true) => *again,
            _ => None,
        };
        tokio::select! {
            command = self.commands.recv(), if !self.abandoned => Event::Command(command),
            event = run_event(self.current.as_mut()) => event,
            () = until(again), if self.current.is_none() => Event::Outside,
            () = left.cancelled(), if may_leave => Event::Outside,
        }
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Start => {
                self.wanted = true;
                self.failure = None;
            }
            Command::Stop { grace, done } => {
                self.wanted = false;
                self.failure = None;
                self.waiters.push(done);
                self.drain(grace);
            }
            Command::Restart { done } => {
                self.wanted = true;
                self.failure = None;
                self.waiters.push(done);
                self.drain(None);
            }
        }
    }

    fn settle(&mut self) {
        let left = self.cluster.left().is_cancelled();
        if left {
            self.drain(None);
        }
        let now = Instant::now();
        let pause_is_over = match &self.failure {
            None => true,
            Some((_, again)) => again.is_some_and(|again| again <= now),
        };
        if self.current.is_none() {
            if self.wanted && !left && pause_is_over {
                self.begin();
            }
            self.publish(left);
            // Only now: a waiter for a stop must find the state it asked for.
            let report = std::mem::take(&mut self.ended);
            for waiter in self.waiters.drain(..) {
                // The caller may have given up waiting.
                let _ = waiter.send(report);
            }
            return;
        }
        self.publish(left);
    }

    fn begin(&mut self) {
        self.failure = None;
        self.statistics.starts.fetch_add(1, Relaxed);
        let scope = ComponentScope::new();
        // Spawned as a whole, so that a panic anywhere in it ends only this task.
        let (component, given) = (self.component.clone(), scope.clone());
        let task = tokio::spawn(async move { component.run(given).await });
        self.current = Some(Run {
            scope,
            task,
            begun: Instant::now(),
            ready: false,
            draining: None,
            _presence: self.cluster.enter(),
        });
    }

    fn drain(&mut self, grace: Option<Duration>) {
        let Some(run) = &mut self.current else { return };
        let now = Instant::now();
        let deadline = now + grace.unwrap_or(GRACE);
        let draining = run.draining.get_or_insert(Draining {
            since: now,
            deadline,
        });
        draining.deadline = draining.deadline.min(deadline);
        run.scope.stop();
    }

    /// The grace time is over: drops the run.
    async fn abort(&mut self) {
        let Some(run) = &mut self.current else { return };
        run.task.abort();
        let ended = (&mut run.task).await;
        self.finish(ended, 1);
    }

    fn finish(&mut self, result: Result<Result<(), Failure>, JoinError>, aborted: usize) {
        let Some(run) = self.current.take() else {
            return;
        };
        if let Some(draining) = run.draining {
            self.ended = StopReport {
                aborted,
                took: draining.since.elapsed(),
            };
        }
        let failure = match result {
            Ok(Ok(())) if run.draining.is_some() => return,
            Ok(Ok(())) => "ended without a stop".into(),
            Ok(Err(failure)) => failure,
            Err(error) if error.is_panic() => {
                self.statistics.panics.fetch_add(1, Relaxed);
                "panicked".into()
            }
            Err(_) => return,
        };
        let text = chain(&*failure);
        tracing::error!(
            controller = self.component.name(),
            error = text,
            "unit failed"
        );
        self.statistics.note_error(text.clone());
        // The end of a run that was asked to stop, failed or not, causes no restart and no
        // back-off.
        if run.draining.is_some() {
            return;
        }
        if run.begun.elapsed() >= STABLE_RUN {
            self.failures = 0;
        }
        let factor = 2_u32.saturating_pow(self.failures.min(16));
        let pause = RETRY.0.saturating_mul(factor).min(RETRY.1);
        self.failures = self.failures.saturating_add(1);
        self.failure = Some((text, self.retries.then(|| Instant::now() + pause)));
        if let Some(on_failure) = self.on_failure.take() {
            // Fails if the process no longer waits for it.
            let _ = on_failure.send(failure);
        }
    }

    fn publish(&mut self, left: bool) {
        let state = match (&self.current, &self.failure) {
            (Some(run), _) if run.draining.is_some() => ControllerState::Draining,
            (Some(run), _) if run.ready => ControllerState::Running,
            (Some(_), _) => ControllerState::Syncing,
            (None, _) if self.wanted && left => {
                ControllerState::Waiting(PendingReason::ClusterLeft)
            }
            (None, Some((error, _))) => ControllerState::Failed(error.clone()),
            (None, None) => ControllerState::Stopped,
        };
        let changed = self.state.send_if_modified(|current| {
            let changed = *current != state;
            if changed {
                tracing::info!(controller = self.component.name(), from = %current, to = %state,
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

/// The next event of a run; pending for ever without one.
async fn run_event(run: Option<&mut Run>) -> Event {
    let Some(run) = run else {
        return std::future::pending().await;
    };
    let overdue = until(run.draining.map(|draining| draining.deadline));
    tokio::select! {
        ended = &mut run.task => Event::Ended(ended),
        () = run.scope.until_ready(), if !run.ready => Event::Ready,
        () = overdue => Event::Overdue,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// An error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
