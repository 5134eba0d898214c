//! Result of a simulation.

use std::{fmt, time::Duration};

use super::CallKind;

/// Counts and times of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Simulated time.
    pub length: Duration,
    /// Calls that reached the provider, refused ones included.
    pub calls: Calls,
    /// Passes that were planned.
    pub passes: usize,
    /// Routes that became necessary: nodes that came, or moved, for each range.
    pub needs: usize,
    /// Routes that became superfluous.
    pub releases: usize,
    /// Time from "range and address known" to "route present", for each need that was met.
    pub waits: Vec<Duration>,
    /// Time from "route superfluous" to "route deleted", for each deleted one.
    pub stale: Vec<Duration>,
    /// Needs that were not met at the end.
    pub unmet: usize,
    /// Superfluous routes at the end.
    pub left_over: usize,
    /// Routes of live nodes, or foreign routes, that were deleted or led elsewhere.
    pub wrong_deletes: usize,
    /// Creates of routes that existed or were just being created.
    pub double_creates: usize,
    /// Number of condition writes.
    pub conditions: usize,
    /// Number of controller starts.
    pub starts: usize,
    /// The fewest calls that the rate limit ever had left.
    pub lowest_balance: Option<f64>,
}

/// Number of calls by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Reads of the table.
    pub list: usize,
    /// Create calls.
    pub create: usize,
    /// Replace calls.
    pub replace: usize,
    /// Delete calls.
    pub delete: usize,
}

impl Calls {
    pub(super) fn count(&mut self, kind: CallKind) {
        *match kind {
            CallKind::List => &mut self.list,
            CallKind::Create => &mut self.create,
            CallKind::Replace => &mut self.replace,
            CallKind::Delete => &mut self.delete,
        } += 1;
    }

    /// Sum over all kinds.
    pub fn total(&self) -> usize {
        self.list + self.create + self.replace + self.delete
    }
}

impl Report {
    /// Lower bound of calls with verification every `verify`: one for each route that comes or
    /// goes, one list for each start, and the lists of verification.
    pub fn ideal_calls(&self, verify: Duration) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "counts of a simulation are small"
        )]
        let changes = (self.needs + self.releases + self.starts) as f64;
        changes + self.length.as_secs_f64() / verify.as_secs_f64()
    }

    /// Calls as a multiple of [`Report::ideal_calls`].
    pub fn call_factor(&self, verify: Duration) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "counts of a simulation are small"
        )]
        let total = self.calls.total() as f64;
        total / self.ideal_calls(verify)
    }

    /// Percentile of `waits`; zero if there are none.
    pub fn wait(&self, percent: usize) -> Duration {
        percentile(&self.waits, percent)
    }

    /// Percentile of `stale`; zero if there are none.
    pub fn stale_time(&self, percent: usize) -> Duration {
        percentile(&self.stale, percent)
    }

    /// The mean wait.
    pub fn mean_wait(&self) -> Duration {
        let count = u32::try_from(self.waits.len()).unwrap_or(u32::MAX);
        self.waits
            .iter()
            .sum::<Duration>()
            .checked_div(count)
            .unwrap_or_default()
    }
}

fn percentile(values: &[Duration], percent: usize) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let place = (sorted.len() * percent).div_ceil(100);
    sorted
        .get(place.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Calls {
            list,
            create,
            replace,
            delete,
        } = self.calls;
        write!(
            f,
            "{} calls ({list} lists, {create} creates, {replace} replaces, {delete} deletes), {} passes, \
             wait mean {:.2} s p50 {:.2} s p99 {:.2} s, stale p99 {:.2} s, {} conditions, \
             {} unmet, {} left over, {} wrong deletes, {} double creates",
            self.calls.total(),
            self.passes,
            self.mean_wait().as_secs_f64(),
            self.wait(50).as_secs_f64(),
            self.wait(99).as_secs_f64(),
            self.stale_time(99).as_secs_f64(),
            self.conditions,
            self.unmet,
            self.left_over,
            self.wrong_deletes,
            self.double_creates,
        )
    }
}
