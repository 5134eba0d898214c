//! Figures and targets of the routes comparison.

use weft_testkit::{bench::percentile, clouds::HcloudLatency};

use crate::outcome::{Outcome, Target};

use super::{
    arm::{ARMS, Arm, FORMULA},
    calls::ENDPOINTS,
    ideal,
    run::Run,
    trace::Trace,
    tracker::Wait,
};

/// Target: calls as a multiple of the calls that are necessary.
const MOST_CALLS: f64 = 1.2;
/// Target: seconds of waiting in addition to the time that the provider takes.
const LONGEST_WAIT: f64 = 1.0;
/// Target: the same for a route whose creation was refused once.
const LONGEST_RECOVERY: f64 = 5.0;

/// Adds all figures of one trace.
pub(super) fn add(outcome: &mut Outcome, trace: &Trace, runs: &[Run], latency: &HcloudLatency) {
    for run in runs {
        let sink = &mut Sink {
            outcome,
            trace: trace.name,
            arm: run.arm.label(),
        };
        calls(sink, run, runs);
        waits(sink, trace, run);
        mistakes(sink, run);
        sink.add(
            "processor time of the controller",
            "s",
            run.processor_seconds,
        );
        sink.add(
            "RssAnon of the controller at the end",
            "MB",
            run.anonymous_megabytes,
        );
    }
    let sink = &mut Sink {
        outcome,
        trace: trace.name,
        arm: FORMULA,
    };
    formulas(sink, trace, runs, latency);
}

/// Selects between judging targets and only reporting ratios.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    Judge,
    ReportOnly,
}

/// Adds ratios to the peers for information, and ratios to the formulas with targets.
pub(super) fn claim(outcome: &mut Outcome, trace: &Trace, judgement: Judgement) {
    let name = |what: &str| format!("{}: {what}", trace.name);
    let target = |target| Some(target).filter(|_| judgement == Judgement::Judge);
    for what in ["calls", "wait for a route, p50", "wait for a route, p99"] {
        let name = name(what);
        for peer in [Arm::Polling, Arm::Watching] {
            let arms = [peer.label(), Arm::Weft.label()];
            if arms
                .iter()
                .all(|arm| outcome.value(&name, None, arm).is_some())
            {
                outcome.claim(&name, None, arms, None);
            }
        }
    }
    let targets = [
        ("calls", Target::AtMost(MOST_CALLS)),
        ("wait for a route, p99", Target::AtMost(1.0)),
        ("longest wait after one refused create", Target::AtMost(1.0)),
        ("routes right at the end", Target::AtLeast(1.0)),
    ];
    for (what, limit) in targets {
        let name = name(what);
        if outcome
            .value(&name, None, FORMULA)
            .is_some_and(|value| value > 0.0)
        {
            let arms = [Arm::Weft.label(), FORMULA];
            outcome.claim(&name, None, arms, target(limit));
        }
    }
}

/// Faults that weft must never have, as text. Any of them fails the comparison.
pub(super) fn mistakes_of_ours(outcome: &Outcome, trace: &Trace, runs: &[Run]) -> Vec<String> {
    let ours = runs.iter().filter(|run| run.arm == Arm::Weft);
    // If no call is necessary there is no ratio to judge.
    let needed = outcome.value(&format!("{}: calls", trace.name), None, FORMULA);
    let quiet = needed.is_some_and(|calls| calls <= 0.0);
    ours.flat_map(|run| {
        let found = &run.found;
        let idle = if quiet { run.calls.total() } else { 0 };
        [
            (
                u32::try_from(idle).unwrap_or(u32::MAX),
                "calls made although nothing changed",
            ),
            (found.lost, "routes lost while wanted"),
            (found.missing, "routes missing at the end"),
            (found.leftover, "routes left over at the end"),
            (
                run.early_conditions,
                "nodes with the condition before their route",
            ),
        ]
    })
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{}: {count} {what}", trace.name))
    .collect()
}

struct Sink<'a> {
    outcome: &'a mut Outcome,
    trace: &'static str,
    arm: &'static str,
}

impl Sink<'_> {
    fn add(&mut self, name: &str, unit: &str, value: f64) {
        let name = format!("{}: {name}", self.trace);
        self.outcome.add(&name, None, unit, self.arm, value);
    }

    /// Adds nothing if there are no values.
    fn add_percentile(&mut self, name: &str, values: &[f64], percent: usize) {
        if let Some(value) = percentile(values, percent) {
            self.add(name, "s", value);
        }
    }
}

fn calls(sink: &mut Sink, run: &Run, runs: &[Run]) {
    sink.add("calls", "", number(run.calls.total()));
    for (endpoint, name) in ENDPOINTS {
        if runs.iter().any(|run| run.calls.of(endpoint) > 0) {
            sink.add(
                &format!("calls, {name}"),
                "",
                number(run.calls.of(endpoint)),
            );
        }
    }
    sink.add("calls refused", "", number(run.calls.refused()));
    sink.add(
        "calls at the start, before the trace",
        "",
        number(run.start.total()),
    );
}

fn waits(sink: &mut Sink, trace: &Trace, run: &Run) {
    let waits: Vec<f64> = run.found.waits.iter().filter_map(Wait::seconds).collect();
    sink.add_percentile("wait for a route, p50", &waits, 50);
    sink.add_percentile("wait for a route, p99", &waits, 99);
    sink.add_percentile("wait for the condition, p50", &run.condition_waits, 50);
    sink.add_percentile("wait for the condition, p99", &run.condition_waits, 99);
    let refused = run
        .found
        .waits
        .iter()
        .filter(|one| trace.refused_once.contains(&one.machine));
    let refused: Vec<Option<f64>> = refused.map(Wait::seconds).collect();
    // If one of them never got its route there is no longest wait.
    if let Some(refused) = refused.into_iter().collect::<Option<Vec<f64>>>() {
        sink.add_percentile("longest wait after one refused create", &refused, 100);
    }
    sink.add_percentile("route left after its node, p99", &run.found.stale, 99);
}

fn mistakes(sink: &mut Sink, run: &Run) {
    let found = &run.found;
    let unserved = found.waits.iter().filter(|one| one.until.is_none()).count();
    sink.add("nodes that never got a route", "", number(unserved as u64));
    sink.add("routes right at the end", "", found.right.into());
    sink.add("routes left over at the end", "", found.leftover.into());
    sink.add("routes lost while wanted", "", found.lost.into());
    sink.add(
        "nodes with the condition before their route",
        "",
        run.early_conditions.into(),
    );
}

/// Adds the computed figures. Those for calls and waits apply only if no call fails.
fn formulas(sink: &mut Sink, trace: &Trace, runs: &[Run], latency: &HcloudLatency) {
    let wanted = runs
        .iter()
        .map(|run| run.found.right + run.found.missing)
        .max();
    if let Some(wanted) = wanted {
        sink.add("routes right at the end", "", wanted.into());
    }
    // On a busy machine steps are late and close together, so the times of the actual steps count.
    let ours = runs.iter().find(|run| run.arm == Arm::Weft);
    let made = ours.map_or(&trace.events, |run| &run.made);
    let waits = ideal::waits(made, latency);
    if trace.refused_once.is_empty() {
        sink.add("calls", "", ideal::calls(made, latency));
        if let Some(least) = percentile(&waits, 99) {
            sink.add("wait for a route, p99", "s", LONGEST_WAIT + least);
        }
    } else if let Some(least) = percentile(&waits, 0) {
        sink.add(
            "longest wait after one refused create",
            "s",
            LONGEST_RECOVERY + least,
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
fn number(count: u64) -> f64 {
    count as f64
}

/// Headings of the columns.
pub(super) fn columns() -> Vec<&'static str> {
    ARMS.iter()
        .map(|arm| arm.label())
        .chain([FORMULA])
        .collect()
}
