//! Workers: take keys from the queue, reconcile them and settle the outcome.

use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures::FutureExt;
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::{
    Action, Context, Reasons, ReconcileError, Reconciler, context::RunContext,
    statistics::ControllerStatistics,
};
use crate::{AddOptions, Lease, Priority, QueueKey, Workqueue};

/// A controller's queue together with the reasons for each key.
pub(super) struct Inbox<Q: QueueKey> {
    pub(super) queue: Workqueue<Q>,
    reasons: Mutex<HashMap<Q, Reasons>>,
}

impl<Q: QueueKey> Inbox<Q> {
    pub(super) fn new(queue: Workqueue<Q>) -> Self {
        Self {
            queue,
            reasons: Mutex::new(HashMap::new()),
        }
    }

    pub(super) fn add(&self, key: Q, reason: Reasons, priority: Priority) {
        if self.queue.is_closed() {
            return;
        }
        self.note(&key, reason);
        self.queue.add_with(
            key,
            AddOptions {
                priority,
                ..AddOptions::default()
            },
        );
    }

    fn note(&self, key: &Q, reason: Reasons) {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.entry(key.clone()).or_default().insert(reason);
    }

    fn take_reasons(&self, key: &Q) -> Reasons {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.remove(key).unwrap_or_default()
    }

    /// Opens the queue, empty, for a new run.
    pub(super) fn reopen(&self) {
        self.reasons
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        self.queue.reopen();
    }
}

/// Interval at which a key that waits for its own writes checks its stores.
const RECHECK_WRITES: Duration = Duration::from_millis(100);

/// Takes keys and reconciles them until the queue is closed.
pub(super) struct Worker<Q: QueueKey, R> {
    pub(super) name: Arc<str>,
    pub(super) reconciler: Arc<R>,
    pub(super) inbox: Arc<Inbox<Q>>,
    pub(super) run: Arc<RunContext<Q>>,
    pub(super) statistics: Arc<ControllerStatistics>,
    pub(super) timeout: Option<Duration>,
    pub(super) recover_panics: bool,
}

enum Outcome {
    Done(Action),
    Failed(ReconcileError),
    TimedOut(Duration),
    Panicked(Box<dyn Any + Send>),
}

impl<Q: QueueKey, R: Reconciler<Q>> Worker<Q, R> {
    pub(super) async fn work(self: Arc<Self>) {
        while let Some(lease) = self.inbox.queue.next().await {
            self.process(lease).await;
        }
    }

    async fn process(&self, lease: Lease<Q>) {
        if let Some(wait) = self.run.expectations.unseen(&lease, &self.run.stores) {
            // The event of the key's own write brings it back, unless a predicate drops that event.
            let wait = wait.min(RECHECK_WRITES);
            self.inbox.queue.add_after(lease.clone(), wait);
            return;
        }
        let reasons = self.inbox.take_reasons(&lease);
        let failures = lease.failures();
        let span = tracing::info_span!(
            "reconcile", controller = %self.name, key = ?*lease, attempt = failures + 1, reason = %reasons,
        );
        let started = Instant::now();
        let active = Active::new(&self.statistics);
        let context = Context {
            key: lease.clone(),
            failures,
            reasons,
            run: self.run.clone(),
        };
        let outcome = self.reconcile(context).instrument(span.clone()).await;
        drop(active);
        self.statistics
            .time
            .observe(started.elapsed().as_secs_f64());
        span.in_scope(|| self.settle(lease, outcome));
    }

    async fn reconcile(&self, context: Context<Q>) -> Outcome {
        let reconcile = AssertUnwindSafe(self.reconciler.reconcile(context)).catch_unwind();
        let result = match self.timeout {
            None => reconcile.await,
            Some(limit) => match timeout(limit, reconcile).await {
                Ok(result) => result,
                Err(_) => return Outcome::TimedOut(limit),
            },
        };
        match result {
            Ok(Ok(action)) => Outcome::Done(action),
            Ok(Err(error)) => Outcome::Failed(error),
            Err(panic) => Outcome::Panicked(panic),
        }
    }

    fn settle(&self, lease: Lease<Q>, outcome: Outcome) {
        let statistics = &self.statistics;
        match outcome {
            Outcome::Done(Action { after: None }) => {
                statistics.success.fetch_add(1, Relaxed);
                lease.finish();
            }
            Outcome::Done(Action { after: Some(after) }) => {
                statistics.requeue_after.fetch_add(1, Relaxed);
                self.inbox.note(&lease, Reasons::REQUEUED);
                self.inbox.queue.add_after(lease.clone(), after);
                lease.finish();
            }
            Outcome::Failed(error) if error.is_terminal() => {
                tracing::error!(%error, "reconcile failed for good, waiting for a change");
                statistics.terminal_errors.fetch_add(1, Relaxed);
                statistics.note_error(error.to_string());
            }
            Outcome::Failed(error) => {
                tracing::warn!(%error, "reconcile failed, retrying");
                self.fail(lease, error.to_string());
            }
            Outcome::TimedOut(limit) => {
                tracing::warn!(?limit, "reconcile timed out, retrying");
                statistics.timeouts.fetch_add(1, Relaxed);
                self.fail(lease, format!("timed out after {limit:?}"));
            }
            Outcome::Panicked(panic) => {
                let message = panic_message(&*panic);
                tracing::error!(panic = message, "reconcile panicked");
                statistics.panics.fetch_add(1, Relaxed);
                self.fail(lease, format!("panic: {message}"));
                if !self.recover_panics {
                    resume_unwind(panic);
                }
            }
        }
    }

    fn fail(&self, lease: Lease<Q>, error: String) {
        self.statistics.note_error(error);
        self.inbox.note(&lease, Reasons::RETRY);
        lease.retry();
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown")
}

/// Counts a busy worker, also when its future is dropped.
struct Active<'a>(&'a ControllerStatistics);

impl<'a> Active<'a> {
    fn new(statistics: &'a ControllerStatistics) -> Self {
        statistics.active_workers.fetch_add(1, Relaxed);
        Self(statistics)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.active_workers.fetch_sub(1, Relaxed);
    }
}
