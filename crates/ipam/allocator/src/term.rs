//! A leadership term of a controller: carries out planned writes and waits until the cache shows
//! them. Shared by the allocator and the pod CIDR controller.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use futures::{StreamExt as _, future::BoxFuture, stream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weft_ipam::allocator::Write;
use weft_model::Moment;
use weft_runtime::{Context, InformerStopped, QueueKey};

use crate::{
    metrics::AllocatorMetrics,
    writer::{Facts, WriteError, Writer, Written},
};

/// Number of concurrent writes.
const PARALLEL: usize = 32;
/// Time that the cache may lag behind our own writes before planning continues anyway.
const CACHE_LAG_LIMIT: Duration = Duration::from_secs(10);
/// Interval of checking whether the cache has caught up, and the first back-off.
const CACHE_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Longest back-off after failures.
const LONGEST: Duration = Duration::from_secs(30);

/// State of one leadership term, or of one run without election. Nothing survives it: the next term
/// starts from the objects observed then.
pub(super) struct Term {
    token: CancellationToken,
    begun: Instant,
    unseen: Vec<Written>,
    cache_deadline: Instant,
    failures: u32,
    /// Writes that the API server refused. Each backs off on its own: a refusal of one object says
    /// nothing about the others. A different write to the object is tried at once.
    refused: HashMap<Write, RetryState>,
}

struct RetryState {
    again: Instant,
    times: u32,
}

/// Returns whether the cache shows a write.
pub(super) type Seen<'a> = dyn Fn(&Written) -> Result<bool, InformerStopped> + 'a;

impl Term {
    pub(super) fn begin(token: CancellationToken) -> Self {
        Self {
            token,
            begun: Instant::now(),
            unseen: Vec::new(),
            cache_deadline: Instant::now(),
            failures: 0,
            refused: HashMap::new(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.token.is_cancelled()
    }

    pub(super) fn now(&self) -> Moment {
        Moment::after_start(self.begun.elapsed())
    }

    /// Time to wait for a cache that does not show our writes yet; none if it does. Planning from
    /// it would do no harm, but every write would fail.
    pub(super) fn waits_for_cache(
        &mut self,
        seen: &Seen<'_>,
    ) -> Result<Option<Duration>, InformerStopped> {
        if Instant::now() >= self.cache_deadline {
            self.unseen.clear();
        }
        while let Some(last) = self.unseen.last() {
            if !seen(last)? {
                return Ok(Some(CACHE_POLL_INTERVAL));
            }
            self.unseen.pop();
        }
        Ok(None)
    }

    /// Carries out writes within the leadership term. Returns the time until the next plan, if
    /// there were any writes.
    pub(super) async fn carry_out<Q: QueueKey>(
        &mut self,
        context: &Context<Q>,
        writer: &Writer,
        metrics: &AllocatorMetrics,
        (writes, facts): (&[Write], &Facts<'_>),
    ) -> Option<Duration> {
        if writes.is_empty() {
            self.failures = 0;
            self.refused.clear();
            return None;
        }
        let planned: HashSet<&Write> = writes.iter().collect();
        self.refused.retain(|write, _| planned.contains(write));
        let now = Instant::now();
        let waits = |write: &&Write| self.refused.get(*write).is_some_and(|one| one.again > now);
        let mut work: Vec<BoxFuture<'_, _>> = Vec::with_capacity(writes.len());
        for write in writes.iter().filter(|write| !waits(write)) {
            work.push(Box::pin(async move {
                if context.cancelled().is_cancelled() {
                    return (write, None);
                }
                (write, context.fenced(writer.write(write, facts)).await)
            }));
        }
        let outcomes: Vec<_> = stream::iter(work)
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        let (mut failed, mut written_any) = (false, false);
        for (write, outcome) in outcomes {
            metrics.wrote(write, label(outcome.as_ref()));
            match outcome {
                Some(Ok(written)) => {
                    tracing::debug!(%write, "written");
                    written_any = true;
                    self.refused.remove(write);
                    self.unseen.extend(written);
                }
                Some(Err(error @ WriteError::Refused(_))) => {
                    tracing::warn!(error = chain(&error), %write, "API server refused a write");
                    let times = self.refused.get(write).map_or(0, |one| one.times) + 1;
                    let again = Instant::now() + pause(times);
                    self.refused
                        .insert(write.clone(), RetryState { again, times });
                }
                Some(Err(error)) => {
                    failed = true;
                    tracing::debug!(error = chain(&error), %write, "write failed, planning again");
                }
                None => failed = true,
            }
        }
        self.failures = if failed { self.failures + 1 } else { 0 };
        let now = Instant::now();
        self.cache_deadline = now + CACHE_LAG_LIMIT;
        let refused = self.refused.values().map(|one| one.again);
        let retry = refused
            .min()
            .map(|again| again.saturating_duration_since(now));
        // The writes may be the first of several steps.
        let next = (failed || written_any).then(|| pause(self.failures));
        Some(
            next.into_iter()
                .chain(retry)
                .min()
                .unwrap_or(CACHE_POLL_INTERVAL),
        )
    }

    /// Adds a write that the cache must show.
    pub(super) fn expect(&mut self, written: Option<Written>) {
        self.unseen.extend(written);
        self.cache_deadline = Instant::now() + CACHE_LAG_LIMIT;
    }
}

/// Retries at once after the first failure, since other processes write as well; then backs off.
fn pause(failures: u32) -> Duration {
    match failures {
        0 | 1 => CACHE_POLL_INTERVAL,
        failures => (CACHE_POLL_INTERVAL * 2_u32.saturating_pow(failures.min(16))).min(LONGEST),
    }
}

pub(super) fn label<T>(outcome: Option<&Result<T, WriteError>>) -> &'static str {
    match outcome {
        None => "lease_ended",
        Some(Ok(_)) => "ok",
        Some(Err(WriteError::Conflict(_) | WriteError::Changed(_))) => "conflict",
        Some(Err(WriteError::StillThere(_))) => "still_there",
        Some(Err(WriteError::NoRange(_) | WriteError::Refused(_))) => "error",
    }
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
