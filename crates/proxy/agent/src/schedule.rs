//! When a family syncs, and when it audits.

use std::time::Duration;

use tokio::time::Instant;

/// A full look at least this often.
const FULL_PERIOD: Duration = Duration::from_hours(1);

/// Of a processor's time, audits may take one part in this many.
const AUDIT_SHARE: u32 = 100;

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing before the next deadline.
    Nothing,
    /// A sync; the whole state if it was too long ago or the last sync failed.
    Sync {
        /// Whether the whole state is to be looked at.
        full: bool,
    },
    /// An audit.
    Audit {
        /// Whether it may read the whole state.
        may_read: bool,
    },
}

/// Decides from requests, results and the time. Knows no clock.
///
/// As kube-proxy's runner: at least `min` between the end of a sync and the beginning of the next,
/// another try `retry` after a failure unless a request comes sooner, and a full look each hour.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    min: Duration,
    retry: Duration,
    requested: bool,
    failed: bool,
    /// No sync before this.
    rested: Instant,
    /// Another try after a failure.
    retry_at: Option<Instant>,
    /// A Service that is left out is to be tried again.
    trial_at: Option<Instant>,
    next_full: Instant,
    next_audit: Instant,
    next_read: Instant,
}

impl Schedule {
    /// Wants a full sync at once.
    pub(crate) fn new(min: Duration, retry: Duration, now: Instant) -> Self {
        Self {
            min,
            retry,
            requested: true,
            failed: false,
            rested: now,
            retry_at: None,
            trial_at: None,
            next_full: now,
            next_audit: now + retry,
            next_read: now,
        }
    }

    /// Something changed.
    pub(crate) fn request(&mut self) {
        self.requested = true;
    }

    /// Another process changed what we wrote: an audit is due at once.
    pub(crate) fn disturbed(&mut self, now: Instant) {
        self.next_audit = self.next_audit.min(now);
    }

    /// What to do.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let full = now >= self.next_full || self.failed;
        let retry = self.retry_at.is_some_and(|at| now >= at);
        let trial = self.trial_at.is_some_and(|at| now >= at);
        let wanted = self.requested || retry || trial || now >= self.next_full;
        if wanted && now >= self.rested {
            return Due::Sync { full };
        }
        if now >= self.next_audit && !self.failed {
            return Due::Audit {
                may_read: now >= self.next_read,
            };
        }
        Due::Nothing
    }

    /// When [`due`](Self::due) will next say something else, without a request.
    pub(crate) fn deadline(&self) -> Instant {
        let sync = if self.requested {
            self.rested
        } else {
            let early = [self.retry_at, self.trial_at].into_iter().flatten();
            early.fold(self.next_full, Instant::min).max(self.rested)
        };
        if self.failed {
            sync
        } else {
            sync.min(self.next_audit)
        }
    }

    /// A sync took all that was requested.
    pub(crate) fn begin_sync(&mut self) {
        self.requested = false;
    }

    /// Services that are left out are to be tried at this time, by a sync of their own if need be.
    pub(crate) fn set_trial(&mut self, at: Option<Instant>) {
        self.trial_at = at;
    }

    /// A sync ended.
    pub(crate) fn synced(&mut self, now: Instant, full: bool, worked: bool) {
        self.rested = now + self.min;
        self.failed = !worked;
        self.retry_at = (!worked).then(|| now + self.retry.max(self.min));
        if worked && full {
            self.next_full = now + FULL_PERIOD;
        }
        if !worked {
            self.next_full = self.next_full.max(now + self.retry);
        }
    }

    /// An audit ended; if it read the whole state, that took this much of a processor's time.
    ///
    /// Not of the clock's: on a busy machine an audit takes long and costs as little as ever, and
    /// what others do to the rules must not stay for longer because of that.
    pub(crate) fn audited(&mut self, now: Instant, reading: Option<Duration>) {
        self.next_audit = now + self.retry;
        if let Some(cost) = reading {
            self.next_read = now + cost * AUDIT_SHARE;
        }
    }

    /// An audit failed: the state is not known any more.
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
        schedule.synced(now, true, true);
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
        schedule.synced(now, false, false);
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
