use std::{
    fmt,
    ops::{Add, Sub},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// A point in time, counted from the start of the process, of the machine or of a simulation.
///
/// The standard library's `Instant` cannot be made without asking the clock, which a decision
/// must never do.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Moment(Duration);

impl Moment {
    /// The start.
    pub const START: Self = Self(Duration::ZERO);

    /// So long after the start.
    pub const fn after_start(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// So many seconds after the start.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// So many milliseconds after the start.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// How long after the start.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// How long after another moment; zero if before it.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(earlier))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.0.as_secs_f64())
    }
}
