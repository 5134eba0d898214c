use std::time::Duration;

use crate::Moment;

/// When passes run in watch mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long to wait for more events after the first. Not prolonged by further ones, so a
    /// storm cannot starve anybody.
    pub debounce: Duration,
    /// The least time between the beginnings of two passes.
    pub min_interval: Duration,
    /// How often the table is read to see whether it is as believed.
    pub verify: Option<Duration>,
    /// `--min-resync-period`: how often at least a pass with a fresh list runs.
    pub resync: Duration,
    /// How long a provider's list may lag behind its mutations.
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

/// Why a pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trigger {
    /// The first one.
    Start,
    /// A node changed, or a mutation ended that a later pass did not know the end of.
    NodeChange,
    /// The table turned out to be other than believed.
    Doubt,
    /// It is time to verify, or to resync.
    Periodic,
}

/// Decides when the next pass runs, and whether it reads the table.
///
/// The timers are its own and count from the last list: a watch that breaks every few minutes does
/// not push verification away for ever, as relists do with informers' resync.
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
    /// Begins with a list at once.
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

    /// A node changed in a way that matters.
    pub fn node_changed(&mut self, now: Moment) {
        let ready = now + self.timing.debounce;
        self.ready_at = Some(self.ready_at.map_or(ready, |known| known.min(ready)));
    }

    /// Something is known now that the last pass did not know; nobody else will tell.
    pub fn replan(&mut self, now: Moment) {
        self.ready_at = Some(self.ready_at.map_or(now, |known| known.min(now)));
    }

    /// Something outside changed the table; more of it is likely to come at once.
    pub fn table_changed(&mut self, now: Moment) {
        self.list_by(now + self.timing.debounce, Trigger::Doubt);
    }

    /// The table has to be read at that time, or earlier if that was planned.
    pub fn list_by(&mut self, at: Moment, trigger: Trigger) {
        if self.list_at.is_none_or(|(known, _)| at < known) {
            self.list_at = Some((at, trigger));
        }
    }

    /// When the table is read next, and why. `None` while it is being read.
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

    /// When a pass runs on what is known. `None` if nothing happened, or if a list is under way:
    /// the pass after it will do.
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

    /// It could not be read; try again then and not earlier, whoever asks. What happens meanwhile
    /// is worked on without it, unless it was the first one.
    pub fn list_failed(&mut self, again: Moment) {
        self.not_before = again;
        if let Some(trigger) = self.listing.take() {
            self.list_by(again, trigger);
        }
    }

    /// It was read; a pass follows at once.
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
