//! Figures of one arm at one size.

use std::time::Duration;

use weft_testkit::bench::median;

use crate::{
    outcome::Outcome,
    proxy::{
        arm::Arm,
        lower_bound::LowerBound,
        samples::{milliseconds, percentile},
        trial::RESTART_LIMIT,
    },
};

pub(crate) const FIRST_SYNC: &str = "start to first sync";
pub(crate) const FIRST_SYNC_CPU: &str = "start to first sync, processor time";
pub(crate) const RESTART: &str = "restart to in sync, rules already there";
pub(crate) const LOWER_BOUND: &str = "the smallest change that the program can make";
pub(crate) const LOWER_BOUND_CPU: &str =
    "the smallest change that the program can make, processor time";
pub(crate) const WATCHED: &str = "one changed slice, until a bare watcher has the event";
pub(crate) const BEYOND_WATCHED: &str = "one changed slice, less what a bare watcher needs";
pub(crate) const MEMORY: &str = "RssAnon";
pub(crate) const GAP: &str = "longest gap in new connections, 1 kHz, during a full sync";

/// The name of a percentile of the time that connecting takes.
pub(crate) fn connection_time(percent: usize) -> String {
    format!("new connection through a random Service, p{percent}")
}

/// Kind of a measured change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Changed,
    Added,
    Removed,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Changed, Self::Added, Self::Removed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Changed => "one changed slice",
            Self::Added => "one added Service",
            Self::Removed => "one removed Service",
        }
    }

    pub(crate) fn processor_time(self) -> String {
        format!("{}, processor time", self.name())
    }
}

/// A measured change: the time until connections follow it, and the processor time it caused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    pub(crate) kind: Kind,
    pub(crate) latency: Duration,
    /// Time until a client that only watches had the event.
    pub(crate) watched: Option<Duration>,
    pub(crate) processor_time: Duration,
}

/// The sync after the first start, with an empty kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FirstSync {
    pub(crate) took: Duration,
    pub(crate) processor_time: Duration,
    /// True if the wait ended before the sync did: `took` is a lower bound.
    pub(crate) given_up: bool,
}

impl FirstSync {
    /// True if a second start would take too much time.
    pub(crate) fn is_slow(self) -> bool {
        self.given_up || self.took > RESTART_LIMIT
    }
}

#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) first_sync: Option<FirstSync>,
    pub(crate) restart: Option<Duration>,
    pub(crate) gap: Option<Duration>,
    pub(crate) changes: Vec<Change>,
    /// RssAnon at the end of each pass, in MB.
    pub(crate) memory: Vec<f64>,
    pub(crate) connections: Vec<Duration>,
    pub(crate) lower_bound: Option<LowerBound>,
}

impl Figures {
    pub(crate) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Change> {
        let of_kind = move |change: &&Change| change.kind == kind;
        self.changes.iter().filter(of_kind)
    }

    /// Adds the measured figures to the outcome.
    pub(crate) fn report(&self, arm: Arm, size: u32, outcome: &mut Outcome) {
        let mut add = |name: &str, unit: &str, value: f64| {
            outcome.add(name, Some(size), unit, arm.name(), value);
        };
        if let Some(first) = self.first_sync {
            add(FIRST_SYNC, "s", first.took.as_secs_f64());
            add(FIRST_SYNC_CPU, "s", first.processor_time.as_secs_f64());
        }
        if let Some(restart) = self.restart {
            add(RESTART, "s", restart.as_secs_f64());
        }
        for kind in Kind::ALL {
            let of_kind = || self.of_kind(kind);
            let count = u32::try_from(of_kind().count()).unwrap_or(u32::MAX);
            if count == 0 {
                continue;
            }
            let latencies = of_kind().map(|change| milliseconds(change.latency));
            add(kind.name(), "ms", median(latencies.collect()));
            // Processes that have ended are counted in steps of 10 ms: only the sum is exact.
            let sum: Duration = of_kind().map(|change| change.processor_time).sum();
            add(&kind.processor_time(), "ms", milliseconds(sum / count));
        }
        let watched = || {
            let changes = self.changes.iter();
            changes.filter_map(|change| Some((change.latency, change.watched?)))
        };
        if watched().next().is_some() {
            let alone = watched().map(|(_, watched)| milliseconds(watched));
            add(WATCHED, "ms", median(alone.collect()));
            let beyond = watched().map(|(all, watched)| milliseconds(all.saturating_sub(watched)));
            add(BEYOND_WATCHED, "ms", median(beyond.collect()));
        }
        if let Some(lower_bound) = self.lower_bound {
            add(LOWER_BOUND, "ms", lower_bound.took);
            add(
                LOWER_BOUND_CPU,
                "ms",
                milliseconds(lower_bound.processor_time),
            );
        }
        if !self.memory.is_empty() {
            add(MEMORY, "MB", median(self.memory.clone()));
        }
        let times: Vec<f64> = self.connections.iter().copied().map(milliseconds).collect();
        if !times.is_empty() {
            for percent in [50, 99] {
                add(&connection_time(percent), "ms", percentile(&times, percent));
            }
        }
        if let Some(gap) = self.gap {
            add(GAP, "ms", milliseconds(gap));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_medians_and_processor_times_means() {
        let change = |latency, processor_time| Change {
            kind: Kind::Added,
            latency: Duration::from_millis(latency),
            watched: Some(Duration::from_millis(1)),
            processor_time: Duration::from_millis(processor_time),
        };
        let figures = Figures {
            changes: vec![change(1, 0), change(2, 10), change(30, 20)],
            ..Figures::default()
        };
        let arm = Arm::WeftNft;
        let mut outcome = Outcome::new("proxy", "", &[arm.name()]);
        figures.report(arm, 10, &mut outcome);
        let value = |name: &str| outcome.value(name, Some(10), arm.name());
        assert_eq!(value(Kind::Added.name()), Some(2.0));
        assert_eq!(value(&Kind::Added.processor_time()), Some(10.0));
        assert_eq!(value(WATCHED), Some(1.0));
        assert_eq!(value(BEYOND_WATCHED), Some(1.0));
        assert_eq!(value(Kind::Removed.name()), None);
        assert_eq!(value(FIRST_SYNC), None);
    }
}
