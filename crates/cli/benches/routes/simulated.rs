//! A day of three controllers.

use std::time::{Duration, Instant};

use weft_routes::{
    Moment, NodeList, Policy, ProviderError, plan,
    simulation::{
        Arm, CallKind, Churn, ClusterEvent, Fault, FaultKind, Fleet, Profile, Report as Run,
        Scenario, Trace, run,
    },
};
use weft_testkit::bench::{Report, Target, is_quick, median};

const POLLING: Arm = Arm::Polling(Duration::from_secs(10));
const VERIFY: Duration = Duration::from_secs(30 * 60);
/// Time of a mutation at a provider without latency.
const PROVIDER: f64 = 0.15;

pub(crate) fn measure(report: &mut Report) {
    let (hours, seeds) = if is_quick() { (1, 1) } else { (24, 5) };
    for (nodes, per_hour, burst) in [
        (20, 0.5, 1),
        (100, 4.0, 1),
        (100, 40.0, 20),
        (1_000, 40.0, 1),
    ] {
        let churn = Churn {
            nodes,
            per_hour,
            burst,
            length: Duration::from_secs(hours * 3600),
        };
        churning(churn, seeds, report);
    }
    one_failure(report);
    steady_hour(report);
    planning(report);
}

fn churning(churn: Churn, seeds: u64, report: &mut Report) {
    let play = |arm| -> Vec<Run> {
        let traces = (1..=seeds).map(|seed| churn.trace(seed));
        traces
            .map(|trace| run(arm, &Scenario::new(trace, Profile::MEMORY)))
            .collect()
    };
    let [polling, watch, ours] = [POLLING, Arm::UpstreamWatch, Arm::Ours].map(play);
    let name = format!(
        "{} nodes, {} joins/h by {}",
        churn.nodes, churn.per_hour, churn.burst
    );
    let of = |runs: &[Run], figure: fn(&Run) -> f64| median(runs.iter().map(figure).collect());
    let calls = |run: &Run| f64::from(u32::try_from(run.calls.total()).unwrap_or(u32::MAX));
    let p99 = |run: &Run| run.wait(99).as_secs_f64();
    report.figure(
        &format!("{name}: calls as a multiple of the ideal"),
        "×",
        of(&ours, |run| run.call_factor(VERIFY)),
        Target::AtMost(1.2),
    );
    let compare = [("polling 10 s", &polling), ("upstream's watch", &watch)];
    for (peer, runs) in compare {
        report.comparison(
            &format!("{name}: calls, compared with {peer}"),
            "",
            of(&ours, calls),
            of(runs, calls),
            Target::None,
        );
        report.comparison(
            &format!("{name}: wait p99, compared with {peer}"),
            "s",
            of(&ours, p99),
            of(runs, p99),
            Target::None,
        );
    }
    report.figure(
        &format!("{name}: wait p99"),
        "s",
        of(&ours, p99),
        Target::AtMost(1.0 + PROVIDER),
    );
    let wrong: usize = ours.iter().map(|run| run.wrong_deletes + run.unmet).sum();
    report.figure(
        &format!("{name}: wrong deletes and routes missing at the end"),
        "",
        f64::from(u32::try_from(wrong).unwrap_or(u32::MAX)),
        Target::AtMost(0.0),
    );
}

/// A node joins, and the first create fails.
fn one_failure(report: &mut Report) {
    let mut fleet = Fleet::default();
    let mut trace = Trace {
        initial: (0..10).map(|_| fleet.join()).collect(),
        ..Trace::default()
    };
    let joined = ClusterEvent::Apply(fleet.join());
    trace.events.push((Moment::seconds(600), joined));
    let fault = Fault {
        from: Moment::START,
        until: Moment::seconds(9999),
        call: Some(CallKind::Create),
        times: 1,
        kind: FaultKind::Fails(ProviderError::Retry("bad gateway".into())),
    };
    let scenario = Scenario {
        end: Moment::seconds(1200),
        ..Scenario::new(trace, Profile::MEMORY).with_fault(fault)
    };
    let [polling, ours] = [POLLING, Arm::Ours].map(|arm| run(arm, &scenario));
    report.comparison(
        "recovery after one passing failure, compared with polling 10 s",
        "s",
        ours.wait(100).as_secs_f64(),
        polling.wait(100).as_secs_f64(),
        Target::AtMost(5.0),
    );
}

/// Nothing happens but heartbeats.
fn steady_hour(report: &mut Report) {
    let mut fleet = Fleet::default();
    let trace = Trace {
        initial: (0..50).map(|_| fleet.join()).collect(),
        ..Trace::default()
    };
    let scenario = Scenario {
        end: Moment::seconds(3 * 3600),
        ..Scenario::new(trace, Profile::MEMORY)
    };
    let [polling, ours] = [POLLING, Arm::Ours].map(|arm| run(arm, &scenario));
    let hourly = |run: &Run| f64::from(u32::try_from(run.calls.total()).unwrap_or(u32::MAX)) / 3.0;
    // Two verifications an hour; the first list of the three hours is the start's.
    report.comparison(
        "calls in a steady hour, compared with polling 10 s",
        "",
        hourly(&ours),
        hourly(&polling),
        Target::AtMost(2.0),
    );
}

/// A whole pass over 5,000 nodes of which one is new.
fn planning(report: &mut Report) {
    let count = if is_quick() { 100 } else { 5_000 };
    let mut fleet = Fleet::default();
    let nodes: Vec<_> = (0..count).map(|_| fleet.join()).collect();
    let policy = Policy::new([Fleet::cluster_cidr()]);
    let made = plan(&NodeList::complete(nodes.clone()), &[], &policy);
    let steps = made.steps.iter().filter_map(|step| step.wanted());
    let routes: Vec<_> = steps.map(weft_routes::Wanted::to_route).collect();
    let mut nodes = NodeList::complete(nodes);
    let newcomer = fleet.join();
    nodes.nodes.insert(newcomer.name.clone(), newcomer);
    let times = (0..if is_quick() { 1 } else { 20 }).map(|_| {
        let begun = Instant::now();
        let planned = plan(&nodes, &routes, &policy);
        assert_eq!(planned.counts(), (1, 0, 0));
        begun.elapsed().as_secs_f64() * 1e3
    });
    report.figure(
        &format!("planning a pass over {count} nodes"),
        "ms",
        median(times.collect()),
        if is_quick() {
            Target::None
        } else {
            Target::AtMost(20.0)
        },
    );
}
