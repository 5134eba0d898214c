//! Exponential back-off for lists and watches.

use std::time::Duration;

use tokio::time::Instant;
use weft_model::ExponentialDelay;

/// Exponential back-off with jitter that resets after a quiet time.
///
/// The defaults are client-go's for watches: 0.8 s to 30 s, doubling, up to twice that by jitter,
/// reset after two minutes without a failure.
#[derive(Debug)]
pub(crate) struct Backoff {
    delay: ExponentialDelay,
    reset_after: Duration,
    failures: u32,
    last_failure: Option<Instant>,
}

impl Backoff {
    pub(crate) fn for_watches() -> Self {
        Self {
            delay: ExponentialDelay::new(Duration::from_millis(800), Duration::from_secs(30)),
            reset_after: Duration::from_mins(2),
            failures: 0,
            last_failure: None,
        }
    }

    /// Counts a failure and returns the time to wait; the caller draws `jitter` from [0, 1).
    pub(crate) fn next(&mut self, jitter: f64) -> Duration {
        let now = Instant::now();
        if self
            .last_failure
            .is_some_and(|last| now.duration_since(last) >= self.reset_after)
        {
            self.failures = 0;
        }
        self.last_failure = Some(now);
        self.failures = self.failures.saturating_add(1);
        self.delay.after(self.failures).mul_f64(1.0 + jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn invariant_18_backoff_doubles_from_800_ms_to_30_s_and_resets_after_two_minutes() {
        let mut backoff = Backoff::for_watches();
        let delays: Vec<u128> = (0..8).map(|_| backoff.next(0.0).as_millis()).collect();
        assert_eq!(delays, [800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        assert_eq!(backoff.next(0.5), Duration::from_secs(45), "jitter adds");
        tokio::time::advance(Duration::from_secs(119)).await;
        assert_eq!(backoff.next(0.0), Duration::from_secs(30));
        tokio::time::advance(Duration::from_secs(120)).await;
        assert_eq!(backoff.next(0.0), Duration::from_millis(800));
    }
}
