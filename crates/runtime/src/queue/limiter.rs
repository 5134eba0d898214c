//! Rate limiters: the wait of a key before its next try.

use std::{collections::HashMap, hash::Hash, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use weft_model::ExponentialDelay;

/// Computes the wait of a key before its next try.
pub trait RateLimiter<Q>: Send + Sync {
    /// Counts a failure of the key and returns the time to wait.
    fn when(&self, key: &Q) -> Duration;
    /// Forgets the key's failures.
    fn forget(&self, key: &Q);
    /// Failures since the key was last forgotten.
    fn failures(&self, key: &Q) -> u32;
    /// Forgets every key.
    fn reset(&self);
}

impl<Q> RateLimiter<Q> for Box<dyn RateLimiter<Q>> {
    fn when(&self, key: &Q) -> Duration {
        (**self).when(key)
    }

    fn forget(&self, key: &Q) {
        (**self).forget(key);
    }

    fn failures(&self, key: &Q) -> u32 {
        (**self).failures(key)
    }

    fn reset(&self) {
        (**self).reset();
    }
}

/// Number of failures of each key.
struct Failures<Q>(Mutex<HashMap<Q, u32>>);

impl<Q: Hash + Eq + Clone> Failures<Q> {
    fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Q, u32>> {
        self.0.lock()
    }

    /// Adds one and returns the number before.
    fn add(&self, key: &Q) -> u32 {
        let mut failures = self.lock();
        if let Some(count) = failures.get_mut(key) {
            *count = count.saturating_add(1);
            return *count - 1;
        }
        failures.insert(key.clone(), 1);
        0
    }

    fn forget(&self, key: &Q) {
        self.lock().remove(key);
    }

    fn count(&self, key: &Q) -> u32 {
        self.lock().get(key).copied().unwrap_or(0)
    }
}

/// Doubles the wait with each failure of the same key.
pub struct Exponential<Q> {
    delay: ExponentialDelay,
    failures: Failures<Q>,
}

impl<Q: Hash + Eq + Clone> Exponential<Q> {
    /// `base`, 2 × `base`, 4 × `base`, … up to `limit`.
    pub fn new(base: Duration, limit: Duration) -> Self {
        Self {
            delay: ExponentialDelay::new(base, limit),
            failures: Failures::new(),
        }
    }
}

impl<Q: Hash + Eq + Clone> Default for Exponential<Q> {
    /// client-go's for controllers: 5 ms to 1000 s.
    fn default() -> Self {
        Self::new(Duration::from_millis(5), Duration::from_secs(1000))
    }
}

impl<Q: Hash + Eq + Clone + Send> RateLimiter<Q> for Exponential<Q> {
    fn when(&self, key: &Q) -> Duration {
        let before = self.failures.add(key);
        self.delay.after(before.saturating_add(1))
    }

    fn forget(&self, key: &Q) {
        self.failures.forget(key);
    }

    fn failures(&self, key: &Q) -> u32 {
        self.failures.count(key)
    }

    fn reset(&self) {
        self.failures.lock().clear();
    }
}

/// A token bucket over all keys. Waits add up: each call reserves a token of its own.
pub struct Bucket {
    interval: Duration,
    burst: u32,
    /// Time at which the bucket is full again, possibly in the past.
    full_at: Mutex<Option<Instant>>,
}

impl Bucket {
    /// `rate` tokens a second, up to `burst` at once.
    ///
    /// # Panics
    /// When `rate` or `burst` is zero.
    pub fn new(rate: u32, burst: u32) -> Self {
        assert!(rate > 0 && burst > 0, "a bucket needs tokens");
        Self {
            interval: Duration::from_secs(1) / rate,
            burst,
            full_at: Mutex::new(None),
        }
    }

    fn reserve(&self) -> Duration {
        let now = Instant::now();
        let mut full_at = self.full_at.lock();
        let next_full = full_at.map_or(now, |at| at.max(now)) + self.interval;
        *full_at = Some(next_full);
        // A bucket that is full only after `burst` intervals is empty now.
        (next_full - now).saturating_sub(self.interval * self.burst)
    }
}

impl Default for Bucket {
    /// client-go's for controllers: 10 a second, bursts of 100.
    fn default() -> Self {
        Self::new(10, 100)
    }
}

impl<Q> RateLimiter<Q> for Bucket {
    fn when(&self, _key: &Q) -> Duration {
        self.reserve()
    }

    fn forget(&self, _key: &Q) {}

    fn failures(&self, _key: &Q) -> u32 {
        0
    }

    /// The bucket is over all keys: it refills by time alone.
    fn reset(&self) {}
}

/// A number of quick tries, then slow ones.
pub struct FastSlow<Q> {
    fast: Duration,
    slow: Duration,
    fast_tries: u32,
    failures: Failures<Q>,
}

impl<Q: Hash + Eq + Clone> FastSlow<Q> {
    /// `fast_tries` times `fast`, then `slow`.
    pub fn new(fast: Duration, slow: Duration, fast_tries: u32) -> Self {
        Self {
            fast,
            slow,
            fast_tries,
            failures: Failures::new(),
        }
    }
}

impl<Q: Hash + Eq + Clone + Send> RateLimiter<Q> for FastSlow<Q> {
    fn when(&self, key: &Q) -> Duration {
        if self.failures.add(key) < self.fast_tries {
            self.fast
        } else {
            self.slow
        }
    }

    fn forget(&self, key: &Q) {
        self.failures.forget(key);
    }

    fn failures(&self, key: &Q) -> u32 {
        self.failures.count(key)
    }

    fn reset(&self) {
        self.failures.lock().clear();
    }
}

/// The longest wait of several limiters; all of them count the failure.
pub struct MaxOf<Q>(Vec<Box<dyn RateLimiter<Q>>>);

impl<Q> MaxOf<Q> {
    /// Combines `limiters`.
    pub fn new(limiters: Vec<Box<dyn RateLimiter<Q>>>) -> Self {
        Self(limiters)
    }
}

impl<Q> RateLimiter<Q> for MaxOf<Q> {
    fn when(&self, key: &Q) -> Duration {
        self.0
            .iter()
            .map(|limiter| limiter.when(key))
            .max()
            .unwrap_or_default()
    }

    fn forget(&self, key: &Q) {
        self.0.iter().for_each(|limiter| limiter.forget(key));
    }

    fn failures(&self, key: &Q) -> u32 {
        self.0
            .iter()
            .map(|limiter| limiter.failures(key))
            .max()
            .unwrap_or_default()
    }

    fn reset(&self) {
        for limiter in &self.0 {
            limiter.reset();
        }
    }
}

/// Another limiter with an upper bound.
pub struct Capped<L> {
    inner: L,
    limit: Duration,
}

impl<L> Capped<L> {
    /// No wait longer than `limit`.
    pub fn new(inner: L, limit: Duration) -> Self {
        Self { inner, limit }
    }
}

impl<Q, L: RateLimiter<Q>> RateLimiter<Q> for Capped<L> {
    fn when(&self, key: &Q) -> Duration {
        self.inner.when(key).min(self.limit)
    }

    fn forget(&self, key: &Q) {
        self.inner.forget(key);
    }

    fn failures(&self, key: &Q) -> u32 {
        self.inner.failures(key)
    }

    fn reset(&self) {
        self.inner.reset();
    }
}

/// Another limiter whose waits are stretched at random, so that keys that failed together do not
/// return together.
pub struct WithJitter<L> {
    inner: L,
    share: f64,
}

impl<L> WithJitter<L> {
    /// Waits grow by up to `share` of themselves.
    pub fn new(inner: L, share: f64) -> Self {
        Self {
            inner,
            share: share.max(0.0),
        }
    }
}

impl<Q, L: RateLimiter<Q>> RateLimiter<Q> for WithJitter<L> {
    fn when(&self, key: &Q) -> Duration {
        self.inner
            .when(key)
            .mul_f64(1.0 + self.share * fastrand::f64())
    }

    fn forget(&self, key: &Q) {
        self.inner.forget(key);
    }

    fn failures(&self, key: &Q) -> u32 {
        self.inner.failures(key)
    }

    fn reset(&self) {
        self.inner.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(limiter: &dyn RateLimiter<u8>, key: u8, tries: usize) -> Vec<u128> {
        (0..tries).map(|_| limiter.when(&key).as_millis()).collect()
    }

    #[test]
    fn invariant_26_exponential_doubles_per_key_until_forgotten() {
        let limiter = Exponential::<u8>::new(Duration::from_millis(5), Duration::from_millis(100));
        assert_eq!(millis(&limiter, 1, 7), [5, 10, 20, 40, 80, 100, 100]);
        assert_eq!(millis(&limiter, 2, 1), [5], "keys do not share failures");
        assert_eq!(limiter.failures(&1), 7);
        limiter.forget(&1);
        assert_eq!((limiter.failures(&1), millis(&limiter, 1, 1)), (0, vec![5]));
    }

    #[test]
    fn exponential_does_not_overflow() {
        let limiter = Exponential::<u8>::default();
        assert_eq!(*millis(&limiter, 1, 200).last().unwrap(), 1_000_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_lets_a_burst_pass_then_waits_add_up() {
        let bucket = Bucket::new(10, 3);
        assert_eq!(millis(&bucket, 1, 5), [0, 0, 0, 100, 200]);
        tokio::time::advance(Duration::from_millis(250)).await;
        assert_eq!(millis(&bucket, 1, 1), [50]);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(
            millis(&bucket, 1, 4),
            [0, 0, 0, 100],
            "it never holds more than the burst"
        );
    }

    #[test]
    fn the_others_compose() {
        let fast_slow = FastSlow::<u8>::new(Duration::from_millis(1), Duration::from_millis(50), 2);
        assert_eq!(millis(&fast_slow, 1, 3), [1, 1, 50]);
        let max = MaxOf::new(vec![
            Box::new(Exponential::<u8>::new(
                Duration::from_millis(5),
                Duration::from_secs(1),
            )),
            Box::new(FastSlow::<u8>::new(
                Duration::from_millis(7),
                Duration::from_millis(7),
                0,
            )),
        ]);
        let capped = Capped::new(max, Duration::from_millis(15));
        assert_eq!(millis(&capped, 1, 4), [7, 10, 15, 15]);
        assert_eq!(capped.failures(&1), 4);
        let jitter = WithJitter::new(capped, 1.0);
        assert!((15..=30).contains(&millis(&jitter, 1, 1)[0]));
    }
}
