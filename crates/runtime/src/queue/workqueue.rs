//! The workqueue: client-go's guarantees plus priorities, ageing and fairness.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, hash_map},
    fmt::Debug,
    hash::Hash,
    ops::Deref,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, futures::Notified},
    time::{Instant, sleep_until},
};

use super::{
    Exponential, RateLimiter, WorkqueueMetrics,
    metrics::QueueStatistics,
    schedule::{Group, Ready, Schedule},
};

/// Bounds of a queue key.
pub trait QueueKey: Hash + Eq + Clone + Debug + Send + Sync + 'static {}
impl<Q: Hash + Eq + Clone + Debug + Send + Sync + 'static> QueueKey for Q {}

/// Priority of a ready key; higher goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub i32);

impl Priority {
    /// Priority of live changes.
    pub const NORMAL: Self = Self(0);
    /// Priority of the initial state and of re-syncs: nothing changed, so changes go first.
    pub const LOW: Self = Self(-100);
}

/// Options of adding a key.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddOptions {
    /// Shortest wait before the key is ready.
    pub after: Option<Duration>,
    /// Waits as long as the rate limiter says; the longer of the two waits counts.
    pub rate_limited: bool,
    /// Priority among ready keys.
    pub priority: Priority,
}

/// A queue of keys with client-go's guarantees.
///
/// A key waits at most once, is never handed to two workers at a time, and when it is added while
/// being worked on, it is handed out once more afterwards. Of several adds the earliest time and
/// the highest priority win. Low priorities age, so that nothing starves.
pub struct Workqueue<Q: QueueKey> {
    core: Arc<Core<Q>>,
}

struct Core<Q: QueueKey> {
    name: String,
    state: Mutex<State<Q>>,
    limiter: Box<dyn RateLimiter<Q>>,
    fairness: Option<Fairness<Q>>,
    changed: Notify,
    idle: Notify,
}

type Fairness<Q> = Box<dyn Fn(&Q) -> Group + Send + Sync>;

struct State<Q> {
    items: HashMap<Q, Item>,
    ready: Schedule<Q>,
    delayed: BinaryHeap<Reverse<Delayed<Q>>>,
    statistics: QueueStatistics,
    processing: usize,
    tickets: u64,
    epoch: u64,
    closed: bool,
}

/// State of one key. A key without one is not in the queue.
#[derive(Debug)]
struct Item {
    waiting: Option<Waiting>,
    processing: Option<Instant>,
    /// Computed once per add: the function is the user's and must not run under the lock.
    group: Group,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    place: Place,
    priority: Priority,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ready {
        ticket: u64,
    },
    Until {
        time: Instant,
        ticket: u64,
    },
    /// Added while processing: becomes ready when that ends.
    Again,
}

struct Delayed<Q> {
    time: Instant,
    ticket: u64,
    key: Q,
}

impl<Q> PartialEq for Delayed<Q> {
    fn eq(&self, other: &Self) -> bool {
        self.ticket == other.ticket
    }
}
impl<Q> Eq for Delayed<Q> {}
impl<Q> PartialOrd for Delayed<Q> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<Q> Ord for Delayed<Q> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.ticket).cmp(&(other.time, other.ticket))
    }
}

/// Options of a [`Workqueue`].
pub struct WorkqueueBuilder<Q: QueueKey> {
    name: String,
    limiter: Option<Box<dyn RateLimiter<Q>>>,
    fairness: Option<Fairness<Q>>,
    ageing: Duration,
    metrics: Option<WorkqueueMetrics>,
}

impl<Q: QueueKey> WorkqueueBuilder<Q> {
    /// Rate limiter of failing keys. Default: exponential per key, 5 ms to 1000 s. (client-go adds
    /// a bucket over all keys, with which a burst of failing keys waits for up to a quarter of an
    /// hour.)
    #[must_use]
    pub fn limiter(mut self, limiter: impl RateLimiter<Q> + 'static) -> Self {
        self.limiter = Some(Box::new(limiter));
        self
    }

    /// Keys of different groups take turns within a priority.
    #[must_use]
    pub fn fairness<G: Hash>(mut self, group: impl Fn(&Q) -> G + Send + Sync + 'static) -> Self {
        use std::hash::{BuildHasher, RandomState};
        let hasher = RandomState::new();
        self.fairness = Some(Box::new(move |key| hasher.hash_one(group(key))));
        self
    }

    /// Longest wait of a ready key behind higher priorities. Default: one minute.
    #[must_use]
    pub fn ageing(mut self, ageing: Duration) -> Self {
        self.ageing = ageing;
        self
    }

    /// Registry of the queue's metrics.
    #[must_use]
    pub fn metrics(mut self, metrics: &WorkqueueMetrics) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// Builds the queue.
    pub fn build(self) -> Workqueue<Q> {
        let core = Arc::new(Core {
            name: self.name,
            state: Mutex::new(State {
                items: HashMap::new(),
                ready: Schedule::new(self.ageing),
                delayed: BinaryHeap::new(),
                statistics: QueueStatistics::default(),
                processing: 0,
                tickets: 0,
                epoch: 0,
                closed: false,
            }),
            limiter: self
                .limiter
                .unwrap_or_else(|| Box::new(Exponential::default())),
            fairness: self.fairness,
            changed: Notify::new(),
            idle: Notify::new(),
        });
        if let Some(metrics) = self.metrics {
            let weak = Arc::downgrade(&core);
            metrics.observe(&core.name, move || Some(weak.upgrade()?.statistics()));
        }
        Workqueue { core }
    }
}

impl<Q: QueueKey> Workqueue<Q> {
    /// A queue with options; the name appears in metrics.
    pub fn builder(name: &str) -> WorkqueueBuilder<Q> {
        WorkqueueBuilder {
            name: name.to_owned(),
            limiter: None,
            fairness: None,
            ageing: Duration::from_mins(1),
            metrics: None,
        }
    }

    /// Adds a key at normal priority.
    pub fn add(&self, key: Q) {
        self.core.add(key, None, Priority::NORMAL);
    }

    /// Adds a key once a time has passed.
    pub fn add_after(&self, key: Q, after: Duration) {
        self.add_with(
            key,
            AddOptions {
                after: Some(after),
                ..AddOptions::default()
            },
        );
    }

    /// Counts a failure of the key and adds it when the rate limiter allows.
    pub fn add_rate_limited(&self, key: Q) {
        self.add_with(
            key,
            AddOptions {
                rate_limited: true,
                ..AddOptions::default()
            },
        );
    }

    /// Adds a key with options.
    pub fn add_with(&self, key: Q, options: AddOptions) {
        let AddOptions {
            mut after,
            rate_limited,
            priority,
        } = options;
        if rate_limited {
            after = after.max(Some(self.core.limiter.when(&key)));
        }
        self.core.add(key, after, priority);
    }

    /// Forgets the failures of a key.
    pub fn forget(&self, key: &Q) {
        self.core.limiter.forget(key);
    }

    /// Ready keys, without those that are delayed or being worked on.
    pub fn len(&self) -> usize {
        self.core.lock().statistics.depth
    }

    /// Returns whether no key is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys that are ready, delayed or being worked on.
    pub fn total(&self) -> usize {
        self.core.lock().items.len()
    }

    /// Returns whether the queue accepts no more keys.
    pub fn is_closed(&self) -> bool {
        self.core.lock().closed
    }

    /// Age of the oldest key being worked on.
    pub fn longest_running(&self) -> Duration {
        Duration::from_secs_f64(self.core.statistics().longest_running_seconds)
    }

    /// Waits for a key. `None` once the queue is closed and empty. Cancel-safe.
    pub async fn next(&self) -> Option<Lease<Q>> {
        loop {
            if let Taken::Key(lease) = self.take() {
                return Some(lease);
            }
            let mut changed: std::pin::Pin<&mut Notified<'_>> = pin!(self.core.changed.notified());
            changed.as_mut().enable();
            match self.take() {
                Taken::Key(lease) => return Some(lease),
                Taken::Closed => return None,
                Taken::Nothing { due: None } => changed.await,
                Taken::Nothing { due: Some(due) } => tokio::select! {
                    () = changed => {}
                    () = sleep_until(due) => {}
                },
            }
        }
    }

    fn take(&self) -> Taken<Q> {
        let now = Instant::now();
        let mut state = self.core.lock();
        self.core.promote(&mut state, now);
        match state.pop(now) {
            Some((key, priority)) => {
                let lease = Lease {
                    key: Some(key),
                    priority,
                    epoch: state.epoch,
                    core: self.core.clone(),
                };
                Taken::Key(lease)
            }
            None if state.closed => Taken::Closed,
            None => Taken::Nothing {
                due: state.delayed.peek().map(|Reverse(next)| next.time),
            },
        }
    }

    /// Accepts no more keys. Ready keys are still handed out, delayed ones are dropped.
    pub fn close(&self) {
        let mut state = self.core.lock();
        state.closed = true;
        state.drop_delayed();
        drop(state);
        self.core.changed.notify_waiters();
    }

    /// Closes the queue and drops the waiting keys. Nothing is handed out afterwards.
    pub fn discard(&self) {
        let mut state = self.core.lock();
        state.closed = true;
        state.drop_waiting();
        drop(state);
        self.core.changed.notify_waiters();
    }

    /// As [`Workqueue::discard`], and resolves when no key is being worked on.
    pub async fn drain(&self) {
        self.discard();
        loop {
            let mut idle = pin!(self.core.idle.notified());
            idle.as_mut().enable();
            if self.core.lock().processing == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Opens a closed queue again, empty. Leases from before no longer count.
    pub fn reopen(&self) {
        let mut state = self.core.lock();
        state.drop_waiting();
        state.items.clear();
        state.processing = 0;
        state.epoch += 1;
        state.closed = false;
        drop(state);
        self.core.limiter.reset();
    }
}

enum Taken<Q: QueueKey> {
    Key(Lease<Q>),
    Nothing { due: Option<Instant> },
    Closed,
}

impl<Q: QueueKey> Clone for Workqueue<Q> {
    fn clone(&self) -> Self {
        Self {
            core: self.core.clone(),
        }
    }
}

impl<Q: QueueKey> Core<Q> {
    fn lock(&self) -> MutexGuard<'_, State<Q>> {
        self.state.lock()
    }

    fn group(&self, key: &Q) -> Group {
        self.fairness.as_ref().map_or(0, |group| group(key))
    }

    fn add(&self, key: Q, after: Option<Duration>, priority: Priority) {
        let now = Instant::now();
        let until = after
            .filter(|after| !after.is_zero())
            .map(|after| now + after);
        let group = self.group(&key);
        let mut state = self.lock();
        if state.closed {
            return;
        }
        if after.is_some() {
            state.statistics.retries += 1;
        }
        let wakes = match until {
            Some(time) => state.delay(key, group, time, priority),
            None => state.make_ready(key, group, priority, now),
        };
        drop(state);
        if wakes {
            self.changed.notify_one();
        }
    }

    /// Moves delayed keys whose time has come to the ready ones.
    fn promote(&self, state: &mut State<Q>, now: Instant) {
        let mut promoted = 0;
        while let Some(Reverse(next)) = state.delayed.peek()
            && next.time <= now
        {
            let Some(Reverse(next)) = state.delayed.pop() else {
                break;
            };
            let item = state.items.get(&next.key);
            let group = item.map_or(0, |item| item.group);
            let valid = item.and_then(|item| item.waiting);
            if let Some(Waiting {
                place: Place::Until { ticket, .. },
                priority,
            }) = valid
                && ticket == next.ticket
            {
                state.make_ready(next.key, group, priority, now);
                promoted += 1;
            }
        }
        // One is for the caller, the others are for sleeping workers.
        for _ in 1..promoted {
            self.changed.notify_one();
        }
    }

    fn done(&self, key: &Q, epoch: u64) {
        let now = Instant::now();
        let mut state = self.lock();
        if state.epoch != epoch {
            return;
        }
        let wakes = state.done(key, now);
        let is_idle = state.processing == 0;
        drop(state);
        if wakes {
            self.changed.notify_one();
        }
        if is_idle {
            self.idle.notify_waiters();
        }
    }

    fn statistics(&self) -> QueueStatistics {
        let state = self.lock();
        let now = Instant::now();
        let mut statistics = state.statistics.clone();
        let ages = state
            .items
            .values()
            .filter_map(|item| item.processing)
            .map(|since| now - since);
        for age in ages {
            statistics.unfinished_seconds += age.as_secs_f64();
            statistics.longest_running_seconds =
                statistics.longest_running_seconds.max(age.as_secs_f64());
        }
        statistics
    }
}

impl<Q: QueueKey> State<Q> {
    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Returns whether a worker has something new to do.
    fn make_ready(&mut self, key: Q, group: Group, priority: Priority, now: Instant) -> bool {
        let ticket = self.ticket();
        let place = Place::Ready { ticket };
        let (priority, is_new) = match self.items.entry(key.clone()) {
            hash_map::Entry::Vacant(entry) => {
                entry.insert(Item {
                    waiting: Some(Waiting { place, priority }),
                    processing: None,
                    group,
                });
                (priority, true)
            }
            hash_map::Entry::Occupied(entry) => {
                let item = entry.into_mut();
                let before = item.waiting;
                let priority = before.map_or(priority, |waiting| waiting.priority.max(priority));
                if item.processing.is_some() {
                    if !matches!(
                        before,
                        Some(Waiting {
                            place: Place::Again,
                            ..
                        })
                    ) {
                        self.statistics.adds += 1;
                    }
                    item.waiting = Some(Waiting {
                        place: Place::Again,
                        priority,
                    });
                    return false;
                }
                let was_ready = matches!(
                    before,
                    Some(Waiting {
                        place: Place::Ready { .. },
                        ..
                    })
                );
                if was_ready && before.is_some_and(|waiting| waiting.priority >= priority) {
                    return false;
                }
                item.waiting = Some(Waiting { place, priority });
                (priority, !was_ready)
            }
        };
        if is_new {
            self.statistics.adds += 1;
            self.statistics.depth += 1;
        }
        self.ready.push(
            priority,
            group,
            Ready {
                key,
                ticket,
                since: now,
            },
        );
        is_new
    }

    /// Returns whether workers must look at the clock again.
    fn delay(&mut self, key: Q, group: Group, time: Instant, priority: Priority) -> bool {
        let ticket = self.ticket();
        let item = self.items.entry(key.clone()).or_insert(Item {
            waiting: None,
            processing: None,
            group,
        });
        let waiting = match item.waiting {
            Some(Waiting {
                place:
                    Place::Until {
                        time: before,
                        ticket,
                    },
                priority: known,
            }) if before <= time => {
                let place = Place::Until {
                    time: before,
                    ticket,
                };
                item.waiting = Some(Waiting {
                    place,
                    priority: known.max(priority),
                });
                return false;
            }
            Some(Waiting {
                place: Place::Until { .. },
                priority: known,
            }) => Waiting {
                place: Place::Until { time, ticket },
                priority: known.max(priority),
            },
            Some(Waiting {
                place: Place::Ready { .. } | Place::Again,
                ..
            }) => return false,
            None => Waiting {
                place: Place::Until { time, ticket },
                priority,
            },
        };
        let is_processing = item.processing.is_some();
        item.waiting = Some(waiting);
        if is_processing {
            // Put on the clock when the processing ends.
            return false;
        }
        let is_next = self
            .delayed
            .peek()
            .is_none_or(|Reverse(next)| time < next.time);
        self.delayed.push(Reverse(Delayed { time, ticket, key }));
        is_next
    }

    fn pop(&mut self, now: Instant) -> Option<(Q, Priority)> {
        loop {
            let (priority, ready) = self.ready.pop(now)?;
            let Some(item) = self.items.get_mut(&ready.key) else {
                continue;
            };
            let place = item.waiting.map(|waiting| waiting.place);
            if place
                != Some(Place::Ready {
                    ticket: ready.ticket,
                })
            {
                continue;
            }
            item.waiting = None;
            item.processing = Some(now);
            self.processing += 1;
            self.statistics.depth -= 1;
            self.statistics.queue_duration.observe(now - ready.since);
            return Some((ready.key, priority));
        }
    }

    fn done(&mut self, key: &Q, now: Instant) -> bool {
        let Some(item) = self.items.get_mut(key) else {
            return false;
        };
        let Some(started) = item.processing.take() else {
            return false;
        };
        self.processing -= 1;
        self.statistics.work_duration.observe(now - started);
        let group = item.group;
        match item.waiting {
            None => {
                self.items.remove(key);
                false
            }
            Some(Waiting {
                place: Place::Until { time, ticket },
                ..
            }) => {
                let is_next = self
                    .delayed
                    .peek()
                    .is_none_or(|Reverse(next)| time < next.time);
                self.delayed.push(Reverse(Delayed {
                    time,
                    ticket,
                    key: key.clone(),
                }));
                is_next
            }
            Some(Waiting { priority, .. }) => {
                let ticket = self.tickets + 1;
                self.tickets = ticket;
                item.waiting = Some(Waiting {
                    place: Place::Ready { ticket },
                    priority,
                });
                self.statistics.depth += 1;
                let ready = Ready {
                    key: key.clone(),
                    ticket,
                    since: now,
                };
                self.ready.push(priority, group, ready);
                true
            }
        }
    }

    fn drop_delayed(&mut self) {
        self.delayed.clear();
        self.items.retain(|_, item| {
            if matches!(
                item.waiting,
                Some(Waiting {
                    place: Place::Until { .. },
                    ..
                })
            ) {
                item.waiting = None;
            }
            item.waiting.is_some() || item.processing.is_some()
        });
    }

    fn drop_waiting(&mut self) {
        self.delayed.clear();
        self.ready.clear();
        self.statistics.depth = 0;
        self.items.retain(|_, item| {
            item.waiting = None;
            item.processing.is_some()
        });
    }
}

/// A key handed to a worker. Dropping it, also by panic or cancellation, ends the work; a key added
/// meanwhile is then handed out again.
pub struct Lease<Q: QueueKey> {
    key: Option<Q>,
    priority: Priority,
    epoch: u64,
    core: Arc<Core<Q>>,
}

impl<Q: QueueKey> Lease<Q> {
    /// Failures of this key since its last success.
    pub fn failures(&self) -> u32 {
        self.core.limiter.failures(self)
    }

    /// The priority with which the key was queued.
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// Fails the work: the key comes back when the rate limiter allows, with its priority.
    pub fn retry(self) {
        let after = self.core.limiter.when(&self);
        self.core
            .add(self.deref().clone(), Some(after), self.priority);
    }

    /// Completes the work: failures are forgotten.
    pub fn finish(self) {
        self.core.limiter.forget(&self);
    }
}

impl<Q: QueueKey> Deref for Lease<Q> {
    type Target = Q;
    fn deref(&self) -> &Q {
        self.key
            .as_ref()
            .expect("the key is present until the lease is dropped")
    }
}

impl<Q: QueueKey> Drop for Lease<Q> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.core.done(&key, self.epoch);
        }
    }
}

#[cfg(test)]
mod tests;
