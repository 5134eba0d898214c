//! Many pods at once, in simulated time.
//!
//! The model of kubelet is that of [`weft_ipam::burst`]: a sandbox every 20 ms; an ADD that fails is
//! tried again 10 to 15 s later, with a new container id.

use std::time::Duration;

use weft_ipam::{
    ScalingMode,
    burst::{Burst, BurstReport, simulate},
};
use weft_testkit::bench::{Report, Target, median};

use crate::judge::{full_or_quick, unless_quick};

/// For the jitter of retries; medians are shown.
const SEEDS: u64 = 25;
/// Over how long pods are bound that trickle in.
const TRICKLE: Duration = Duration::from_millis(300);
const MODEL: &str = "retries after 10–15 s, 20 ms between sandboxes";

pub(crate) fn measure(report: &mut Report) {
    for (before, after, sooner) in [(1, 36, 3.0), (0, 250, 8.0)] {
        at_once(before, after, sooner, report);
        trickling(before, after, report);
    }
}

struct Runs(Vec<BurstReport>);

impl Runs {
    fn of(burst: Burst, mode: ScalingMode) -> Self {
        let seeds = 1..=full_or_quick(SEEDS, 1);
        Self(
            seeds
                .map(|seed| simulate(Burst { seed, ..burst }, mode))
                .collect(),
        )
    }

    fn median(&self, figure: impl Fn(&BurstReport) -> f64) -> f64 {
        median(self.0.iter().map(figure).collect())
    }

    /// The worst of all seeds.
    fn most(&self, figure: impl Fn(&BurstReport) -> u32) -> f64 {
        f64::from(self.0.iter().map(figure).max().unwrap_or_default())
    }
}

fn seconds(run: &BurstReport) -> f64 {
    run.served.unwrap().as_secs_f64()
}

fn at_once(before: u32, after: u32, sooner: f64, report: &mut Report) {
    let burst = Burst::new(before, after);
    let [pods, requests] =
        [ScalingMode::Pods, ScalingMode::Requests].map(|mode| Runs::of(burst, mode));
    let name = format!("burst {before} → {after} pods ({MODEL})");
    report.comparison(
        &format!("{name}: NNC spec updates, compared with reactive"),
        "",
        pods.most(|run| run.updates),
        requests.median(|run| f64::from(run.updates)),
        unless_quick(Target::AtMost(1.0)),
    );
    report.comparison(
        &format!("{name}: failed ADDs, compared with reactive"),
        "",
        pods.most(|run| run.failed_adds),
        requests.median(|run| f64::from(run.failed_adds)),
        unless_quick(Target::AtMost(0.0)),
    );
    let (ours, theirs) = (pods.median(seconds), requests.median(seconds));
    report.comparison(
        &format!("{name}: until every pod has an address, compared with reactive"),
        "s",
        ours,
        theirs,
        Target::None,
    );
    report.figure(
        &format!("{name}: how many times sooner than reactive"),
        "×",
        theirs / ours,
        unless_quick(Target::AtLeast(sooner)),
    );
}

fn trickling(before: u32, after: u32, report: &mut Report) {
    let burst = Burst {
        spread: TRICKLE,
        ..Burst::new(before, after)
    };
    let pods = Runs::of(burst, ScalingMode::Pods);
    let name = format!(
        "burst {before} → {after} pods over {} ms",
        TRICKLE.as_millis()
    );
    report.figure(
        &format!("{name}: NNC spec updates"),
        "",
        pods.most(|run| run.updates),
        unless_quick(Target::AtMost(2.0)),
    );
    report.figure(
        &format!("{name}: failed ADDs"),
        "",
        pods.most(|run| run.failed_adds),
        unless_quick(Target::AtMost(0.0)),
    );
}
