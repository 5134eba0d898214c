//! Token bucket that limits the rate of calls to a double.

use std::time::{Duration, Instant};

/// A token bucket: one token per call, refilled continuously.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    capacity: f64,
    per_second: f64,
    level: f64,
    at: Instant,
}

impl Bucket {
    pub(super) fn full(capacity: u32, per_second: f64, now: Instant) -> Self {
        Self {
            capacity: f64::from(capacity),
            per_second,
            level: f64::from(capacity),
            at: now,
        }
    }

    /// Takes one token; `false` if none is left.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let allowed = self.level >= 1.0;
        if allowed {
            self.level -= 1.0;
        }
        allowed
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between zero and a capacity that was a u32"
    )]
    pub(super) fn remaining(&self) -> u32 {
        self.level as u32
    }

    /// Time until it is full again.
    pub(super) fn full_after(&self) -> Duration {
        let missing = (self.capacity - self.level).max(0.0);
        Duration::from_secs_f64(missing / self.per_second.max(1e-6))
    }

    fn refill(&mut self, now: Instant) {
        let gained = now.duration_since(self.at).as_secs_f64() * self.per_second;
        self.level = (self.level + gained).min(self.capacity);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_allows_its_capacity_and_refills_continuously() {
        let begun = Instant::now();
        let mut bucket = Bucket::full(2, 0.5, begun);
        assert!(bucket.take(begun) && bucket.take(begun));
        assert!(!bucket.take(begun + Duration::from_secs(1)));
        assert_eq!(bucket.remaining(), 0);
        assert_eq!(bucket.full_after(), Duration::from_secs(3));
        assert!(bucket.take(begun + Duration::from_secs(2)));
    }
}
