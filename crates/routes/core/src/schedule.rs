//! Times of passes and lists in watch mode.

use std::time::Duration;

use crate::Moment;

/// Intervals of passes and lists in watch mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time to collect more events after the first. Further events do not prolong it, so a storm of
    /// events cannot delay a pass for ever.
    pub debounce: Duration,
    /// Minimum time between the starts of two passes.
    pub min_interval: Duration,
    /// Interval of lists that verify the cached table; `None` for `resync` only.
    pub verify: Option<Duration>,
    /// `--min-resync-period`: longest time between two passes with a fresh list.
    pub resync: Duration,
    /// Longest time by which a provider's list lags behind its mutations.
    pub settle: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            debounce: Duration::from_millis(250),
            min_interval: Duration::from_secs(1),
            verify: Some(Duration::from_secs(30 * 60)),
            resync: Duration::from_secs(12 * 60 * 60),
            settle: Duration::from_secs(5),
        }
    }
}

/// Cause of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trigger {
    /// The controller started.
    Start,
    /// A node changed, or a mutation ended after the plan that ignored it.
    NodeChange,
    /// The table may differ from the cached one.
    Doubt,
    /// Verification or resync is due.
    Periodic,
}

/// Decides when the next pass runs, and whether it reads the table.
///
/// The timers count from the last list: a watch that breaks every few minutes does not postpone
/// verification for ever, as relists do with the resync of informers.
#[derive(Clone, Debug)]
pub struct Schedule {
    timing: Timing,
    ready_at: Option<Moment>,
    last_pass: Option<Moment>,
    last_list: Option<Moment>,
    list_at: Option<(Moment, Trigger)>,
    not_before: Moment,
    listing: Option<Trigger>,
}

impl Schedule {
    /// Starts with a list that is due at once.
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            ready_at: None,
            last_pass: None,
            last_list: None,
            list_at: Some((Moment::START, Trigger::Start)),
            not_before: Moment::START,
            listing: None,
        }
    }

    /// A node changed in a way that affects routes.
    pub fn node_changed(&mut self, now: Moment) {
        let ready = now + self.timing.debounce;
        self.ready_at = Some(self.ready_at.map_or(ready, |known| known.min(ready)));
    }

    /// Something is known that the last pass did not know, and no event will follow.
    pub fn replan(&mut self, now: Moment) {
        self.ready_at = Some(self.ready_at.map_or(now, |known| known.min(now)));
    }

    /// The table was changed from outside; more changes are likely to follow at once.
    pub fn table_changed(&mut self, now: Moment) {
        self.list_by(now + self.timing.debounce, Trigger::Doubt);
    }

    /// Plans a list for that time, unless an earlier one is planned.
    pub fn list_by(&mut self, at: Moment, trigger: Trigger) {
        if self.list_at.is_none_or(|(known, _)| at < known) {
            self.list_at = Some((at, trigger));
        }
    }

    /// Time and cause of the next list. `None` while the table is being read.
    pub fn next_list(&self) -> Option<(Moment, Trigger)> {
        if self.listing.is_some() {
            return None;
        }
        let every = self.timing.verify.unwrap_or(self.timing.resync);
        let periodic = self
            .last_list
            .map(|last| (last + every.min(self.timing.resync), Trigger::Periodic));
        let (at, trigger) = [self.list_at, periodic].into_iter().flatten().min()?;
        Some((at.max(self.not_before), trigger))
    }

    /// Time of the next pass without a list. `None` if nothing happened, or if a list is under way:
    /// a pass follows it.
    pub fn next_pass(&self) -> Option<Moment> {
        let min_interval = self.last_pass.map(|last| last + self.timing.min_interval);
        let ready = self.ready_at.filter(|_| self.listing.is_none())?;
        self.last_list?;
        Some(min_interval.map_or(ready, |min_interval| min_interval.max(ready)))
    }

    /// The table is being read.
    pub fn list_started(&mut self, trigger: Trigger) {
        self.listing = Some(trigger);
        self.list_at = None;
    }

    /// The table could not be read: try again at that time, and for no trigger earlier. Passes
    /// without a list go on meanwhile, unless this was the first list.
    pub fn list_failed(&mut self, again: Moment) {
        self.not_before = again;
        if let Some(trigger) = self.listing.take() {
            self.list_by(again, trigger);
        }
    }

    /// The table was read; a pass follows at once.
    pub fn listed(&mut self, now: Moment) {
        self.listing = None;
        self.not_before = Moment::START;
        self.last_list = Some(now);
    }

    /// A pass ran.
    pub fn passed(&mut self, now: Moment) {
        self.ready_at = None;
        self.last_pass = Some(now);
    }
}
