//! Statistics over samples.

use std::time::Duration;

/// The smallest sample that is at least as large as `percent` of all samples.
///
/// # Panics
/// If there are no samples.
pub(crate) fn percentile(samples: &[f64], percent: usize) -> f64 {
    assert!(!samples.is_empty(), "no samples");
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_by_rank() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        for (percent, expected) in [(0, 1.0), (50, 100.0), (99, 198.0), (100, 200.0)] {
            assert!((percentile(&samples, percent) - expected).abs() < 1e-9);
        }
        assert!((percentile(&[7.0], 99) - 7.0).abs() < 1e-9);
    }
}
