//! The delay of an exponential back-off.

use std::time::Duration;

/// A delay that doubles with every failure, from a first to a longest one. Counting failures, jitter
/// and what resets the count are the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExponentialDelay {
    first: Duration,
    longest: Duration,
}

impl ExponentialDelay {
    /// `first`, 2 × `first`, 4 × `first`, … up to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The delay after this many failures in a row; none counts as one.
    pub fn after(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1));
        factor.map_or(self.longest, |factor| {
            self.first.saturating_mul(factor).min(self.longest)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_up_to_the_longest_after_any_number_of_failures() {
        let delay = ExponentialDelay::new(Duration::from_secs(1), Duration::from_secs(60));
        let seconds = [0, 1, 2, 6, 7, 32, 33, u32::MAX].map(|times| delay.after(times).as_secs());
        assert_eq!(seconds, [1, 1, 2, 32, 60, 60, 60, 60]);
    }
}
