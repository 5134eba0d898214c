//! Targets of the figures, and statistics of samples.

use weft_testkit::bench::{Target, is_quick};

/// The target, except in a quick run, whose figures are not judged.
pub(crate) fn unless_quick(target: Target) -> Target {
    if is_quick() { Target::None } else { target }
}

/// The first number, or the second in a quick run.
pub(crate) fn full_or_quick<T>(full: T, quick: T) -> T {
    if is_quick() { quick } else { full }
}

/// The sample below which 99 of 100 lie.
pub(crate) fn p99(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    let place = (samples.len() * 99).div_ceil(100).max(1);
    samples[place - 1]
}

pub(crate) fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
