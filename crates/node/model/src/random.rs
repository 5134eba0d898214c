//! A seeded random number generator for simulations and jitter.

use std::time::Duration;

/// A small generator (SplitMix64) with a reproducible sequence; not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; zero if the bound is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64().checked_rem(bound).unwrap_or_default()
    }

    /// A number in [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "a fraction needs no 64 bits")]
    pub fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A duration from the first, inclusive, to the second, exclusive.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least + most.saturating_sub(least).mul_f64(self.fraction())
    }

    /// A waiting time of an exponential distribution, as between independent arrivals.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.fraction()).ln())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_sequence_and_another_seed_another() {
        let sequence = |seed| {
            let mut random = Random::new(seed);
            [random.next_u64(), random.next_u64(), random.next_u64()]
        };
        assert_eq!(sequence(7), sequence(7));
        assert_ne!(sequence(7), sequence(8));
    }

    #[test]
    fn the_mean_of_exponential_waits_is_the_one_asked_for() {
        let mut random = Random::new(1);
        let total: Duration = (0..10_000)
            .map(|_| random.exponential(Duration::from_secs(10)))
            .sum();
        let mean = total / 10_000;
        assert!(
            mean > Duration::from_millis(9_700) && mean < Duration::from_millis(10_300),
            "{mean:?}"
        );
    }
}
