//! The driver of a machine: receives events, keeps the time, and carries out effects.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    time::Instant,
};
use weft_model::{Moment, ObjectKey};

use super::{
    Failure, Machine,
    expectation::Expectations,
    lifecycle::{Load, Tasks, Work, until},
    scope::RunScope,
    source::Sink,
    statistics::ControllerStatistics,
    worker::RECHECK_WRITES,
};
use crate::{Change, Kind, Object, QueueStatistics, WorkqueueMetrics};

/// Changes that may wait for a machine. While its channel is full, informers coalesce further ones.
const WAITING: usize = 1024;

/// The run of a machine, as its effects see it. Cloning is cheap.
#[derive(Clone)]
pub struct MachineScope {
    run: Arc<RunScope>,
    expectations: Arc<Expectations<()>>,
}

impl MachineScope {
    /// Runs a mutation within the lease, if there is one. `None` if the lease ended first.
    pub async fn fenced<T>(&self, mutation: impl Future<Output = T>) -> Option<T> {
        self.run.fenced(mutation).await
    }

    /// Returns whether the machine was asked to stop. An effect that notices can end early.
    pub fn is_stopping(&self) -> bool {
        self.run.stop.is_cancelled()
    }

    /// Reports a write: the machine is not polled before its cache shows that version.
    pub fn wrote(&self, kind: Kind, key: ObjectKey, version: &str) {
        self.expectations.expect(&(), kind, key, version);
    }
}

/// Effects under way. Each ends as an event.
pub struct Effects<E> {
    scope: MachineScope,
    calls: FuturesUnordered<BoxFuture<'static, E>>,
    followers: FuturesUnordered<BoxFuture<'static, E>>,
    /// Start of the period in which at least one call has been under way all the time.
    busy_since: Arc<Mutex<Option<Instant>>>,
}

impl<E: Send + 'static> Effects<E> {
    fn new(scope: MachineScope, busy_since: Arc<Mutex<Option<Instant>>>) -> Self {
        Self {
            scope,
            calls: FuturesUnordered::new(),
            followers: FuturesUnordered::new(),
            busy_since,
        }
    }

    /// The run that the effects belong to.
    pub fn scope(&self) -> &MachineScope {
        &self.scope
    }

    /// Starts a call. A stop waits for its end.
    pub fn call(&mut self, call: impl Future<Output = E> + Send + 'static) {
        lock(&self.busy_since).get_or_insert_with(Instant::now);
        self.calls.push(Box::pin(call));
    }

    /// Starts a call that must end within the lease; `event` gets `None` if the lease ended first.
    pub fn fenced<T>(
        &mut self,
        call: impl Future<Output = T> + Send + 'static,
        event: impl FnOnce(Option<T>) -> E + Send + 'static,
    ) {
        let scope = self.scope.clone();
        self.call(async move { event(scope.fenced(call).await) });
    }

    /// Waits for something outside of the cluster to happen. A stop drops it.
    pub fn follow(&mut self, happening: impl Future<Output = E> + Send + 'static) {
        self.followers.push(Box::pin(happening));
    }

    /// Returns whether no call is under way.
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    /// The event of the next effect that ends; `None` if there is none under way.
    async fn next(&mut self) -> Option<E> {
        let event = tokio::select! {
            Some(event) = self.calls.next() => event,
            Some(event) = self.followers.next() => event,
            else => return None,
        };
        if self.calls.is_empty() {
            *lock(&self.busy_since) = None;
        }
        Some(event)
    }
}

/// Delivers changes to a machine as events.
pub(super) struct ChangeSink<K, E> {
    pub(super) event: fn(Change<K>) -> E,
    pub(super) events: Arc<EventQueue<E>>,
}

impl<K: Object, E: Send + 'static> Sink<K> for ChangeSink<K, E> {
    async fn deliver(&self, change: Change<K>) {
        let sender = lock(&self.events.sender).clone();
        if let Some(sender) = sender {
            lock(&self.events.statistics).adds += 1;
            // Fails while the run is being torn down.
            let _ = sender.send((Instant::now(), (self.event)(change))).await;
        }
    }
}

/// The events that wait for a machine. Every run has a channel of its own.
pub(super) struct EventQueue<E> {
    sender: Mutex<Option<Sender<(Instant, E)>>>,
    receiver: Mutex<Option<Receiver<(Instant, E)>>>,
    statistics: Mutex<QueueStatistics>,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self {
            sender: Mutex::default(),
            receiver: Mutex::default(),
            statistics: Mutex::default(),
        }
    }
}

impl<E: Send + 'static> EventQueue<E> {
    /// Exposes it in the metrics of workqueues, for as long as it exists.
    pub(super) fn expose(self: &Arc<Self>, name: &str, metrics: &WorkqueueMetrics) {
        let queue = Arc::downgrade(self);
        metrics.observe(name, move || {
            let queue = queue.upgrade()?;
            let depth = queue.len();
            let statistics = lock(&queue.statistics).clone();
            Some(QueueStatistics {
                depth,
                ..statistics
            })
        });
    }

    fn len(&self) -> usize {
        let sender = lock(&self.sender);
        sender.as_ref().map_or(0, |sender| {
            sender.max_capacity().saturating_sub(sender.capacity())
        })
    }

    fn taken(&self, since: Instant) {
        let waited = since.elapsed();
        lock(&self.statistics).queue_duration.observe(waited);
    }
}

/// Runs a machine.
pub(super) struct MachineWork<E, B> {
    events: Arc<EventQueue<E>>,
    begin: B,
    read_own_writes: Option<Duration>,
    statistics: Arc<ControllerStatistics>,
    busy_since: Arc<Mutex<Option<Instant>>>,
}

impl<E, B> MachineWork<E, B> {
    pub(super) fn new(
        events: Arc<EventQueue<E>>,
        begin: B,
        read_own_writes: Option<Duration>,
        statistics: Arc<ControllerStatistics>,
    ) -> Self {
        Self {
            events,
            begin,
            read_own_writes,
            statistics,
            busy_since: Arc::default(),
        }
    }
}

impl<M, F, B> Work for MachineWork<M::Event, B>
where
    M: Machine,
    F: Future<Output = Result<M, Failure>> + Send,
    B: Fn(MachineScope) -> F + Send + Sync + 'static,
{
    fn open(&self) {
        let (sender, receiver) = mpsc::channel(WAITING);
        *lock(&self.events.sender) = Some(sender);
        *lock(&self.events.receiver) = Some(receiver);
    }

    fn spawn(self: Arc<Self>, run: &Arc<RunScope>, tasks: &mut Tasks) {
        let Some(receiver) = lock(&self.events.receiver).take() else {
            return;
        };
        let scope = MachineScope {
            run: run.clone(),
            expectations: Arc::new(Expectations::new(self.read_own_writes)),
        };
        *lock(&self.busy_since) = None;
        let driver = Driver {
            effects: Effects::new(scope.clone(), self.busy_since.clone()),
            receiver,
            events: self.events.clone(),
            statistics: self.statistics.clone(),
            begun: Instant::now(),
            scope,
        };
        tasks.spawn(async move {
            let stop = driver.scope.run.stop.clone();
            tokio::select! {
                machine = (self.begin)(driver.scope.clone()) => driver.drive(machine?).await,
                () = stop.cancelled() => {}
            }
            Ok(())
        });
    }

    fn close(&self) {
        *lock(&self.events.sender) = None;
    }

    fn busy(&self, tasks: usize) -> usize {
        let busy = lock(&self.busy_since).is_some();
        if busy { tasks } else { 0 }
    }

    fn load(&self) -> Load {
        let queued = self.events.len();
        let since = *lock(&self.busy_since);
        Load {
            queued,
            known: queued,
            longest: since.map_or(Duration::ZERO, |since| since.elapsed()),
        }
    }
}

struct Driver<E> {
    scope: MachineScope,
    receiver: Receiver<(Instant, E)>,
    effects: Effects<E>,
    events: Arc<EventQueue<E>>,
    statistics: Arc<ControllerStatistics>,
    begun: Instant,
}

impl<E: Send + 'static> Driver<E> {
    fn now(&self) -> Moment {
        Moment::after_start(self.begun.elapsed())
    }

    /// Runs the machine until the run is stopped and its calls have ended.
    async fn drive<M: Machine<Event = E>>(mut self, mut machine: M) {
        let run = self.scope.run.clone();
        while !run.stop.is_cancelled() {
            let wake = self.turn(&mut machine);
            let synced = run.synced.is_cancelled();
            tokio::select! {
                Some((since, event)) = self.receiver.recv() => {
                    self.events.taken(since);
                    machine.handle(event, self.now());
                }
                Some(event) = self.effects.next() => machine.handle(event, self.now()),
                () = until(wake) => {}
                () = run.synced.cancelled(), if !synced => {}
                () = run.stop.cancelled() => {}
            }
        }
        // Calls under way are awaited; the lease and the grace time limit that.
        self.effects.followers.clear();
        while let Some(event) = self.effects.next().await {
            machine.handle(event, self.now());
        }
    }

    /// Hands over the events that wait and polls the machine, if it may act. Returns the time of
    /// the next turn, if no event comes before.
    fn turn<M: Machine<Event = E>>(&mut self, machine: &mut M) -> Option<Instant> {
        let begun = Instant::now();
        // Read first: everything of the first lists is in the channel once this is cancelled.
        let synced = self.scope.run.synced.is_cancelled();
        // No more than the channel holds: a flood of changes must not delay effects forever.
        for _ in 0..WAITING {
            let Ok((since, event)) = self.receiver.try_recv() else {
                break;
            };
            self.events.taken(since);
            machine.handle(event, self.now());
        }
        if !synced {
            return None;
        }
        let expectations = &self.scope.expectations;
        if let Some(wait) = expectations.unseen(&(), &self.scope.run.stores) {
            // A write whose change is delivered ends the wait; the timer is for writes without one.
            return Some(Instant::now() + wait.min(RECHECK_WRITES));
        }
        let now = self.now();
        machine.poll(now, &mut self.effects);
        self.scope.run.ready.cancel();
        let took = begun.elapsed();
        self.statistics.success.fetch_add(1, Relaxed);
        self.statistics.time.observe(took.as_secs_f64());
        let statistics = &mut lock(&self.events.statistics);
        statistics.work_duration.observe(took);
        let wake = machine.wake(now, &self.effects);
        wake.map(|at| self.begun + at.since_start())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
