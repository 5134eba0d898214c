//! Schedules syncs and audits of one family.

use std::time::Duration;

use tokio::time::Instant;

/// Longest time between two full syncs.
const FULL_PERIOD: Duration = Duration::from_hours(1);

/// Reading audits may take one part in this many of a CPU's time.
const AUDIT_SHARE: u32 = 100;

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Wait until the deadline or a request.
    Nothing,
    /// A sync; full if the last full one was too long ago or the last sync failed.
    Sync {
        /// Read and compare all rules.
        full: bool,
    },
    /// An audit.
    Audit {
        /// Reading all rules is allowed.
        may_read: bool,
    },
}

/// The result of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncResult {
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
pub(crate) struct Schedule {
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
    next_read: Instant,
}

impl Schedule {
    /// A schedule with a full sync due at once.
    pub(crate) fn new(min: Duration, retry: Duration, now: Instant) -> Self {
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
            next_read: now,
        }
    }

    /// Requests a sync, because something changed.
    pub(crate) fn request(&mut self) {
        self.requested = true;
    }

    /// Another process changed what we wrote: an audit is due at once.
    pub(crate) fn disturbed(&mut self, now: Instant) {
        self.next_audit = self.next_audit.min(now);
    }

    /// The action that is due.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let full = now >= self.next_full || self.failed;
        let retry = self.retry_at.is_some_and(|at| now >= at);
        let trial = self.trial_at.is_some_and(|at| now >= at);
        let wanted = self.requested || retry || trial || now >= self.next_full;
        if wanted && now >= self.not_before {
            return Due::Sync { full };
        }
        if now >= self.next_audit && !self.failed {
            return Due::Audit {
                may_read: now >= self.next_read,
            };
        }
        Due::Nothing
    }

    /// Time at which [`due`](Self::due) changes without a request.
    pub(crate) fn deadline(&self) -> Instant {
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
    pub(crate) fn begin_sync(&mut self) {
        self.requested = false;
    }

    /// Sets the time of the next trial of quarantined Services, which may need a sync of its own.
    pub(crate) fn set_trial(&mut self, at: Option<Instant>) {
        self.trial_at = at;
    }

    /// Records the end of a sync.
    pub(crate) fn synced(&mut self, now: Instant, result: SyncResult) {
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
    pub(crate) fn audited(&mut self, now: Instant, reading: Option<Duration>) {
        self.next_audit = now + self.retry;
        if let Some(cost) = reading {
            self.next_read = now + cost * AUDIT_SHARE;
        }
    }

    /// Records a failed audit: the state of the rules is unknown.
    pub(crate) fn audit_failed(&mut self, now: Instant) {
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
        assert_eq!(schedule.due(now), Due::Sync { full: true });
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
        assert_eq!(schedule.due(now + SECOND), Due::Sync { full: false });
    }

    #[test]
    fn a_failure_is_tried_again_in_full_after_the_retry_period_or_with_the_next_request() {
        let (mut schedule, now) = schedule();
        schedule.request();
        schedule.begin_sync();
        schedule.synced(now, SyncResult::Failed);
        assert_eq!(schedule.due(now + 29 * SECOND), Due::Nothing);
        assert_eq!(schedule.deadline(), now + 30 * SECOND);
        assert_eq!(schedule.due(now + 30 * SECOND), Due::Sync { full: true });
        schedule.request();
        assert_eq!(schedule.due(now + SECOND), Due::Sync { full: true });
    }

    #[test]
    fn a_trial_is_a_partial_sync_of_its_own_and_does_not_wait_for_the_retry_period() {
        let (mut schedule, now) = schedule();
        schedule.set_trial(Some(now));
        assert_eq!(schedule.deadline(), now + SECOND);
        assert_eq!(schedule.due(now + SECOND / 2), Due::Nothing);
        assert_eq!(schedule.due(now + SECOND), Due::Sync { full: false });
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
        assert_eq!(schedule.due(hour), Due::Sync { full: true });
    }

    #[test]
    fn audits_read_no_more_than_their_share() {
        let (mut schedule, now) = schedule();
        let first = now + 30 * SECOND;
        assert_eq!(schedule.due(first), Due::Audit { may_read: true });
        schedule.audited(first, Some(SECOND));
        assert_eq!(schedule.due(first + 29 * SECOND), Due::Nothing);
        let second = first + 30 * SECOND;
        assert_eq!(schedule.due(second), Due::Audit { may_read: false });
        schedule.audited(second, None);
        let later = first + 120 * SECOND;
        assert_eq!(schedule.due(later), Due::Audit { may_read: true });
    }
}
