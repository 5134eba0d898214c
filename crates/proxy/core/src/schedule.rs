//! Schedules syncs and audits of one family.

use std::time::{Duration, Instant};

use crate::ReadBudget;

/// Longest time between two full syncs.
const FULL_PERIOD: Duration = Duration::from_hours(1);

/// Reading audits may take one part in this many of a CPU's time.
const AUDIT_SHARE: u32 = 100;

/// Reading audits that may follow each other at once. A program that removes all rules may do so
/// again a moment later, and the rules have to come back each time; only a storm has to wait.
const AUDIT_BURST: u32 = 8;

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Wait until the deadline or a request.
    Nothing,
    /// A sync; full if the last full one was too long ago or the last sync failed.
    Sync(SyncKind),
    /// An audit.
    Audit(ReadBudget),
}

/// The extent of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// All rules are read and compared.
    Full,
    /// Only rules of changed Services.
    Partial,
}

/// The result of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncResult {
    /// A full sync succeeded.
    Full,
    /// A partial sync succeeded.
    Partial,
    /// The sync failed.
    Failed,
}

/// A state machine of requests, results and time. Reads no clock.
///
/// As in kube-proxy's runner: at least `min` between the end of a sync and the start of the next, a
/// retry `retry` after a failure unless a request comes sooner, and a full sync each hour.
#[derive(Clone, Debug)]
pub struct Schedule {
    min: Duration,
    retry: Duration,
    requested: bool,
    failed: bool,
    /// Earliest time of the next sync.
    not_before: Instant,
    /// Time of the retry after a failure.
    retry_at: Option<Instant>,
    /// Time of the next trial of a quarantined Service.
    trial_at: Option<Instant>,
    next_full: Instant,
    next_audit: Instant,
    /// Time at which the reading audits so far are within their share.
    reads_paid_at: Instant,
    /// Share of the last one.
    last_read: Duration,
}

impl Schedule {
    /// A schedule with a full sync due at once.
    pub fn new(min: Duration, retry: Duration, now: Instant) -> Self {
        Self {
            min,
            retry,
            requested: true,
            failed: false,
            not_before: now,
            retry_at: None,
            trial_at: None,
            next_full: now,
            next_audit: now + retry,
            reads_paid_at: now,
            last_read: Duration::ZERO,
        }
    }

    /// Requests a sync, because something changed.
    pub fn request(&mut self) {
        self.requested = true;
    }

    /// Another process changed what we wrote: an audit is due at once.
    pub fn disturbed(&mut self, now: Instant) {
        self.next_audit = self.next_audit.min(now);
    }

    /// The action that is due.
    pub fn due(&self, now: Instant) -> Due {
        let full = now >= self.next_full || self.failed;
        let retry = self.retry_at.is_some_and(|at| now >= at);
        let trial = self.trial_at.is_some_and(|at| now >= at);
        let wanted = self.requested || retry || trial || now >= self.next_full;
        if wanted && now >= self.not_before {
            let kind = if full {
                SyncKind::Full
            } else {
                SyncKind::Partial
            };
            return Due::Sync(kind);
        }
        if now >= self.next_audit && !self.failed {
            return Due::Audit(self.budget(now));
        }
        Due::Nothing
    }

    /// Time at which [`due`](Self::due) changes without a request.
    pub fn deadline(&self) -> Instant {
        let sync = if self.requested {
            self.not_before
        } else {
            let early = [self.retry_at, self.trial_at].into_iter().flatten();
            early
                .fold(self.next_full, Instant::min)
                .max(self.not_before)
        };
        if self.failed {
            sync
        } else {
            sync.min(self.next_audit)
        }
    }

    /// Records that a sync took all requests.
    pub fn begin_sync(&mut self) {
        self.requested = false;
    }

    /// Sets the time of the next trial of quarantined Services, which may need a sync of its own.
    pub fn set_trial(&mut self, at: Option<Instant>) {
        self.trial_at = at;
    }

    /// Records the end of a sync.
    pub fn synced(&mut self, now: Instant, result: SyncResult) {
        let worked = result != SyncResult::Failed;
        self.not_before = now + self.min;
        self.failed = !worked;
        self.retry_at = (!worked).then(|| now + self.retry.max(self.min));
        if result == SyncResult::Full {
            self.next_full = now + FULL_PERIOD;
        }
        if !worked {
            self.next_full = self.next_full.max(now + self.retry);
        }
    }

    /// Records the end of an audit, with its CPU time if it read all rules.
    ///
    /// CPU time and not elapsed time: on a busy machine an audit takes longer at the same cost, and
    /// foreign changes must not stay longer because of that.
    pub fn audited(&mut self, now: Instant, reading: Option<Duration>) {
        self.next_audit = now + self.retry;
        if reading.is_none() && self.budget(now) == ReadBudget::Spent {
            // It may have been postponed.
            self.next_audit = self.next_audit.min(self.budget_back());
        }
        if let Some(cost) = reading {
            self.last_read = cost * AUDIT_SHARE;
            self.reads_paid_at = self.reads_paid_at.max(now) + self.last_read;
        }
    }

    /// Time from which on all rules may be read again.
    fn budget_back(&self) -> Instant {
        let burst = self.last_read * (AUDIT_BURST - 1);
        self.reads_paid_at
            .checked_sub(burst)
            .unwrap_or(self.reads_paid_at)
    }

    fn budget(&self, now: Instant) -> ReadBudget {
        if now >= self.budget_back() {
            ReadBudget::Available
        } else {
            ReadBudget::Spent
        }
    }

    /// Records a failed audit: the state of the rules is unknown.
    pub fn audit_failed(&mut self, now: Instant) {
        self.next_audit = now + self.retry;
        self.failed = true;
        self.requested = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule() -> (Schedule, Instant) {
        let now = Instant::now();
        let mut schedule = Schedule::new(SECOND, 30 * SECOND, now);
        assert_eq!(schedule.due(now), Due::Sync(SyncKind::Full));
        schedule.begin_sync();
        schedule.synced(now, SyncResult::Full);
        (schedule, now)
    }

    #[test]
    fn a_request_waits_until_the_last_sync_is_long_enough_ago() {
        let (mut schedule, now) = schedule();
        schedule.request();
        assert_eq!(schedule.due(now + SECOND / 2), Due::Nothing);
        assert_eq!(schedule.deadline(), now + SECOND);
        assert_eq!(schedule.due(now + SECOND), Due::Sync(SyncKind::Partial));
    }

    #[test]
    fn a_failure_is_tried_again_in_full_after_the_retry_period_or_with_the_next_request() {
        let (mut schedule, now) = schedule();
        schedule.request();
        schedule.begin_sync();
        schedule.synced(now, SyncResult::Failed);
        assert_eq!(schedule.due(now + 29 * SECOND), Due::Nothing);
        assert_eq!(schedule.deadline(), now + 30 * SECOND);
        assert_eq!(schedule.due(now + 30 * SECOND), Due::Sync(SyncKind::Full));
        schedule.request();
        assert_eq!(schedule.due(now + SECOND), Due::Sync(SyncKind::Full));
    }

    #[test]
    fn a_trial_is_a_partial_sync_of_its_own_and_does_not_wait_for_the_retry_period() {
        let (mut schedule, now) = schedule();
        schedule.set_trial(Some(now));
        assert_eq!(schedule.deadline(), now + SECOND);
        assert_eq!(schedule.due(now + SECOND / 2), Due::Nothing);
        assert_eq!(schedule.due(now + SECOND), Due::Sync(SyncKind::Partial));
        schedule.set_trial(Some(now + 8 * SECOND));
        assert_eq!(schedule.due(now + SECOND), Due::Nothing);
        assert_eq!(schedule.deadline(), now + 8 * SECOND);
    }

    #[test]
    fn the_whole_state_is_looked_at_each_hour() {
        let (mut schedule, now) = schedule();
        let hour = now + FULL_PERIOD;
        schedule.next_audit = hour + SECOND;
        assert_eq!(schedule.deadline(), hour);
        assert_eq!(schedule.due(hour), Due::Sync(SyncKind::Full));
    }

    #[test]
    fn audits_that_read_again_and_again_take_no_more_than_their_share() {
        let (mut schedule, mut now) = schedule();
        let start = now;
        let mut reads = 0;
        while now < start + 100_000 * SECOND {
            now = schedule.deadline();
            match schedule.due(now) {
                Due::Audit(budget) => {
                    let reading = (budget == ReadBudget::Available).then_some(SECOND);
                    reads += u32::from(reading.is_some());
                    schedule.audited(now, reading);
                }
                Due::Sync(_) => schedule.synced(now, SyncResult::Full),
                Due::Nothing => unreachable!("the deadline passed"),
            }
        }
        assert!((1000..=1000 + AUDIT_BURST).contains(&reads), "{reads}");
        assert_eq!(schedule.due(now), Due::Nothing);
    }

    #[test]
    fn what_another_process_removes_again_and_again_is_repaired_at_once_until_it_is_a_storm() {
        let (mut schedule, now) = schedule();
        for _ in 0..AUDIT_BURST {
            schedule.disturbed(now);
            assert_eq!(schedule.due(now), Due::Audit(ReadBudget::Available));
            schedule.audited(now, Some(SECOND));
        }
        schedule.disturbed(now);
        assert_eq!(schedule.due(now), Due::Audit(ReadBudget::Spent));
        schedule.audited(now, None);
        // Nothing has to disturb it again: it is tried as soon as the budget is back.
        let back = now + SECOND * AUDIT_SHARE;
        let mut later = now;
        while later < back {
            later = schedule.deadline();
            let budget = if later < back {
                ReadBudget::Spent
            } else {
                ReadBudget::Available
            };
            assert_eq!(schedule.due(later), Due::Audit(budget));
            schedule.audited(later, None);
        }
        assert_eq!(later, back);
    }
}
