//! Workers: take keys from the queue, reconcile them and settle the outcome.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures::FutureExt;
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::{
    Action, Context, Reasons, ReconcileError, Reconciler,
    context::QueueRun,
    expectation::Expectations,
    inbox::Inbox,
    lifecycle::{Load, Tasks, Work},
    scope::RunScope,
    statistics::ControllerStatistics,
};
use crate::{Lease, QueueKey};

/// Interval at which work that waits for its own writes checks its stores.
pub(super) const RECHECK_WRITES: Duration = Duration::from_millis(100);

/// Reconciles the keys of a queue, by a number of workers.
pub(super) struct QueueWork<Q: QueueKey, R> {
    pub(super) name: Arc<str>,
    pub(super) reconciler: R,
    pub(super) inbox: Arc<Inbox<Q>>,
    pub(super) statistics: Arc<ControllerStatistics>,
    pub(super) settings: QueueSettings,
}

/// Options of the workers.
#[derive(Clone, Copy)]
pub(super) struct QueueSettings {
    pub(super) concurrency: usize,
    pub(super) timeout: Option<Duration>,
    pub(super) recover_panics: bool,
    pub(super) read_own_writes: Option<Duration>,
}

impl<Q: QueueKey, R: Reconciler<Q>> Work for QueueWork<Q, R> {
    fn open(&self) {
        self.inbox.reopen();
    }

    fn spawn(self: Arc<Self>, scope: &Arc<RunScope>, tasks: &mut Tasks) {
        let run = Arc::new(QueueRun {
            scope: scope.clone(),
            expectations: Expectations::new(self.settings.read_own_writes),
        });
        for _ in 0..self.settings.concurrency {
            let worker = Worker {
                work: self.clone(),
                run: run.clone(),
            };
            tasks.spawn(async move {
                worker.work().await;
                Ok(())
            });
        }
        scope.ready.cancel();
    }

    fn close(&self) {
        self.inbox.queue.discard();
    }

    /// Workers that only wait for the queue have nothing to lose.
    fn busy(&self, _tasks: usize) -> usize {
        usize::try_from(self.statistics.active_workers.load(Relaxed)).unwrap_or(0)
    }

    fn load(&self) -> Load {
        let queue = &self.inbox.queue;
        Load {
            queued: queue.len(),
            known: queue.total(),
            longest: queue.longest_running(),
        }
    }
}

/// Takes keys and reconciles them until the queue is closed.
struct Worker<Q: QueueKey, R> {
    work: Arc<QueueWork<Q, R>>,
    run: Arc<QueueRun<Q>>,
}

enum Outcome {
    Done(Action),
    Failed(ReconcileError),
    TimedOut(Duration),
    Panicked(Box<dyn Any + Send>),
}

impl<Q: QueueKey, R: Reconciler<Q>> Worker<Q, R> {
    async fn work(self) {
        tokio::select! {
            () = self.run.scope.synced.cancelled() => {}
            () = self.run.scope.stop.cancelled() => return,
        }
        while let Some(lease) = self.work.inbox.queue.next().await {
            self.process(lease).await;
        }
    }

    async fn process(&self, lease: Lease<Q>) {
        if let Some(wait) = self.run.expectations.unseen(&lease, &self.run.scope.stores) {
            // The event of the key's own write brings it back, unless a predicate drops that event.
            let wait = wait.min(RECHECK_WRITES);
            self.work.inbox.queue.add_after(lease.clone(), wait);
            return;
        }
        let reasons = self.work.inbox.take_reasons(&lease);
        let failures = lease.failures();
        let span = tracing::info_span!(
            "reconcile", controller = %self.work.name, key = ?*lease, attempt = failures + 1, reason = %reasons,
        );
        let started = Instant::now();
        let active = Active::new(&self.work.statistics);
        let context = Context {
            key: lease.clone(),
            failures,
            reasons,
            run: self.run.clone(),
        };
        let outcome = self.reconcile(context).instrument(span.clone()).await;
        drop(active);
        self.work
            .statistics
            .time
            .observe(started.elapsed().as_secs_f64());
        span.in_scope(|| self.settle(lease, outcome));
    }

    async fn reconcile(&self, context: Context<Q>) -> Outcome {
        let reconcile = AssertUnwindSafe(self.work.reconciler.reconcile(context)).catch_unwind();
        let result = match self.work.settings.timeout {
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
        let statistics = &self.work.statistics;
        match outcome {
            Outcome::Done(Action { after: None }) => {
                statistics.success.fetch_add(1, Relaxed);
                lease.finish();
            }
            Outcome::Done(Action { after: Some(after) }) => {
                statistics.requeue_after.fetch_add(1, Relaxed);
                self.work.inbox.note(&lease, Reasons::REQUEUED);
                self.work.inbox.queue.add_after(lease.clone(), after);
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
                if !self.work.settings.recover_panics {
                    resume_unwind(panic);
                }
            }
        }
    }

    fn fail(&self, lease: Lease<Q>, error: String) {
        self.work.statistics.note_error(error);
        self.work.inbox.note(&lease, Reasons::RETRY);
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
