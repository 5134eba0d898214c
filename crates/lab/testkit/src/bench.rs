//! Figures of a benchmark, as JSON that `make bench` reads.
//!
//! A benchmark is a `[[bench]]` target with a name of its own and `harness = false`:
//!
//! ```
//! use weft_testkit::bench::{Report, Target, alternate, is_quick};
//!
//! let rounds = if is_quick() { 1 } else { 9 };
//! let (ours, peer) = alternate(rounds, || 1.0, || 25.0);
//! let mut report = Report::new();
//! report.comparison("heap per Pod", "B", ours, peer, Target::RatioAtMost(0.05));
//! report.figure("start to ready", "ms", 12.0, Target::AtMost(100.0));
//! report.finish()?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::{
    env, fs,
    io::{self, Write as _},
    process::{Command, Stdio},
    time::Instant,
};

use serde::Serialize;

/// True if the benchmark should only show that it runs (`WEFT_BENCH_QUICK`).
pub fn is_quick() -> bool {
    env::var("WEFT_BENCH_QUICK").is_ok_and(|value| !value.is_empty() && value != "0")
}

/// The target of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// No target: the figure is shown for comparison.
    None,
    /// Our figure is at most this.
    AtMost(f64),
    /// Our figure is at least this.
    AtLeast(f64),
    /// Our figure divided by the peer's is at most this.
    RatioAtMost(f64),
    /// Our figure divided by the peer's is at least this.
    RatioAtLeast(f64),
}

impl Target {
    fn label(self) -> Option<String> {
        match self {
            Self::None => None,
            Self::AtMost(limit) => Some(format!("≤ {limit}")),
            Self::AtLeast(limit) => Some(format!("≥ {limit}")),
            Self::RatioAtMost(limit) => Some(format!("≤ {limit} × peer")),
            Self::RatioAtLeast(limit) => Some(format!("≥ {limit} × peer")),
        }
    }

    /// A ratio without a peer cannot be met: the benchmark is wrong and should not pass.
    fn holds(self, ours: f64, ratio: Option<f64>) -> Option<bool> {
        match self {
            Self::None => None,
            Self::AtMost(limit) => Some(ours <= limit),
            Self::AtLeast(limit) => Some(ours >= limit),
            Self::RatioAtMost(limit) => Some(ratio.is_some_and(|ratio| ratio <= limit)),
            Self::RatioAtLeast(limit) => Some(ratio.is_some_and(|ratio| ratio >= limit)),
        }
    }
}

/// The figures of one benchmark run.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Report(Vec<Row>);

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    unit: String,
    ours: f64,
    peer: Option<f64>,
    ratio: Option<f64>,
    target: Option<String>,
    holds: Option<bool>,
}

impl Report {
    /// A report without figures.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a figure that has no peer.
    pub fn figure(&mut self, name: &str, unit: &str, ours: f64, target: Target) {
        self.push(name, unit, ours, None, target);
    }

    /// Adds a figure with the peer's figure of the same run.
    pub fn comparison(&mut self, name: &str, unit: &str, ours: f64, peer: f64, target: Target) {
        self.push(name, unit, ours, Some(peer), target);
    }

    /// Writes the report to the file that `WEFT_BENCH_OUT` names, or else to stdout.
    pub fn finish(self) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(&self)?;
        text.push(b'\n');
        match env::var_os("WEFT_BENCH_OUT") {
            Some(file) => fs::write(file, text),
            None => io::stdout().write_all(&text),
        }
    }

    fn push(&mut self, name: &str, unit: &str, ours: f64, peer: Option<f64>, target: Target) {
        let ratio = peer
            .map(|peer| ours / peer)
            .filter(|ratio| ratio.is_finite());
        self.0.push(Row {
            name: name.to_owned(),
            unit: unit.to_owned(),
            ours,
            peer,
            ratio,
            target: target.label(),
            holds: target.holds(ours, ratio),
        });
    }
}

/// Measures ours and the peer's in turn, so that a busy moment of the machine affects both, and
/// returns the two medians. Rounds alternate in which side begins, because the second side finds
/// warm caches and freed memory.
pub fn alternate(
    rounds: usize,
    mut ours: impl FnMut() -> f64,
    mut peer: impl FnMut() -> f64,
) -> (f64, f64) {
    let mut round = |number: usize| {
        if number.is_multiple_of(2) {
            (ours(), peer())
        } else {
            let peer = peer();
            (ours(), peer)
        }
    };
    let (ours, peer): (Vec<f64>, Vec<f64>) = (0..rounds).map(&mut round).unzip();
    (median(ours), median(peer))
}

/// Milliseconds that a program takes from start to end, for each run. Its standard output is
/// discarded.
///
/// # Panics
/// If it cannot be started or fails.
pub fn run_times(runs: usize, mut command: impl FnMut() -> Command) -> Vec<f64> {
    let run = |_| {
        let mut command = command();
        command.stdout(Stdio::null());
        let begun = Instant::now();
        let status = command.status();
        let took = begun.elapsed();
        assert!(status.is_ok_and(|status| status.success()), "{command:?}");
        took.as_secs_f64() * 1000.0
    };
    (0..runs).map(run).collect()
}

/// The median; of an even number of samples the mean of the two in the middle.
///
/// # Panics
/// If there are no samples.
pub fn median(mut samples: Vec<f64>) -> f64 {
    assert!(!samples.is_empty(), "no samples");
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    if samples.len().is_multiple_of(2) {
        f64::midpoint(samples[middle - 1], samples[middle])
    } else {
        samples[middle]
    }
}

/// The smallest sample that is at least as large as `percent` of all samples; `None` without
/// samples.
pub fn percentile(samples: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn targets_are_judged_on_the_figure_or_the_ratio() {
        let cases = [
            (Target::None, None),
            (Target::AtMost(5.0), Some(false)),
            (Target::AtMost(10.0), Some(true)),
            (Target::AtLeast(10.5), Some(false)),
            (Target::AtLeast(10.0), Some(true)),
            (Target::RatioAtMost(0.4), Some(false)),
            (Target::RatioAtMost(0.5), Some(true)),
            (Target::RatioAtLeast(0.6), Some(false)),
            (Target::RatioAtLeast(0.5), Some(true)),
        ];
        for (target, expected) in cases {
            let mut report = Report::new();
            report.comparison("figure", "s", 10.0, 20.0, target);
            assert_eq!(report.0[0].holds, expected, "{target:?}");
        }
    }

    #[test]
    fn a_percentile_is_one_of_the_samples_by_rank() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let found = [0, 50, 99, 100].map(|percent| percentile(&samples, percent));
        assert_eq!(found, [1.0, 100.0, 198.0, 200.0].map(Some));
        let found = [0, 50, 51, 99, 100].map(|percent| percentile(&[4.0, 1.0, 3.0, 2.0], percent));
        assert_eq!(found, [1.0, 2.0, 3.0, 4.0, 4.0].map(Some));
        assert_eq!(percentile(&[7.0], 99), Some(7.0));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn both_sides_begin_equally_often() {
        let turns = RefCell::new(String::new());
        let turn = |who| {
            turns.borrow_mut().push(who);
            f64::from(u32::from(who))
        };
        let medians = alternate(4, || turn('o'), || turn('p'));
        assert_eq!(turns.borrow().as_str(), "oppooppo");
        assert_eq!(medians, (111.0, 112.0), "each its own");
    }

    #[test]
    fn a_ratio_without_a_usable_peer_does_not_pass() {
        let mut report = Report::new();
        report.figure("no peer", "s", 1.0, Target::RatioAtMost(2.0));
        report.comparison("idle peer", "s", 1.0, 0.0, Target::RatioAtMost(2.0));
        assert_eq!(
            report.0.iter().map(|row| row.holds).collect::<Vec<_>>(),
            [Some(false); 2]
        );
        assert_eq!(report.0[1].ratio, None, "infinity is not JSON");
    }

    #[test]
    fn the_median_ignores_an_outlier_and_the_order() {
        assert_eq!(median(vec![900.0, 1.0, 2.0]).to_string(), "2");
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]).to_string(), "2.5");
    }

    #[test]
    fn rows_have_exactly_the_fields_that_make_bench_reads() {
        let mut report = Report::new();
        report.figure("start", "ms", 12.0, Target::AtMost(100.0));
        let text = serde_json::to_string(&report).unwrap();
        let expected = r#"[{"name":"start","unit":"ms","ours":12.0,"peer":null,"ratio":null,"target":"≤ 100","holds":true}]"#;
        assert_eq!(text, expected);
    }
}
