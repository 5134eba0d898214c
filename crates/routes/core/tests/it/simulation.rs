//! Whole runs: what controllers do to a provider in hours of simulated time.

use std::time::Duration;

use proptest::prelude::*;
use weft_model::SharedStr;
use weft_routes::{
    Cidr, Moment, Node, NodeAddress, ProviderError,
    simulation::{
        Arm, CallKind, Churn, ClusterEvent, Fault, FaultKind, Fleet, Profile, Report, Scenario,
        TokenQueue, Trace, run,
    },
};

use crate::world::{route, via};

const POLLING: Arm = Arm::Polling(Duration::from_secs(10));
const VERIFY: Duration = Duration::from_secs(30 * 60);

fn at(seconds: u64) -> Moment {
    Moment::seconds(seconds)
}

fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}

/// Nodes that are there and routed.
fn standing(count: usize) -> (Fleet, Trace) {
    let mut fleet = Fleet::default();
    let initial = (0..count).map(|_| fleet.join()).collect();
    let events = Vec::new();
    (fleet, Trace { initial, events })
}

fn scenario(trace: Trace, length: u64) -> Scenario {
    Scenario {
        end: at(length),
        ..Scenario::new(trace.sorted(), Profile::MEMORY)
    }
}

fn fails(call: CallKind, from: u64, until: u64, times: u32, error: ProviderError) -> Fault {
    Fault {
        from: at(from),
        until: at(until),
        call: Some(call),
        times,
        kind: FaultKind::Fails(error),
    }
}

fn passing() -> ProviderError {
    ProviderError::Retry(SharedStr::new("bad gateway"))
}

/// A new node that is ready at once.
fn arrives(trace: &mut Trace, seconds: u64, node: &Node) {
    trace
        .events
        .push((at(seconds), ClusterEvent::Apply(node.clone())));
}

fn leaves(trace: &mut Trace, seconds: u64, node: &Node) {
    let gone = ClusterEvent::Delete(node.name.clone());
    trace.events.push((at(seconds), gone));
}

#[track_caller]
fn harmless(report: &Report) {
    assert_eq!(report.wrong_deletes, 0, "{report}");
    assert_eq!(report.double_creates, 0, "{report}");
    assert_eq!((report.unmet, report.left_over), (0, 0), "{report}");
}

#[test]
fn churn_without_faults_costs_hardly_more_calls_than_it_must_and_no_node_waits() {
    for (nodes, per_hour, burst) in [
        (20, 4.0, 1),
        (100, 40.0, 1),
        (100, 40.0, 20),
        (200, 200.0, 50),
    ] {
        for seed in 1..=5 {
            let churn = Churn {
                nodes,
                per_hour,
                burst,
                length: hours(2),
            };
            let report = run(
                Arm::Ours,
                &Scenario::new(churn.trace(seed), Profile::MEMORY),
            );
            let case = format!("{churn:?} {seed}: {report}");
            harmless(&report);
            assert!(report.call_factor(VERIFY) <= 1.2, "{case}");
            assert!(report.wait(99) <= Duration::from_millis(1_150), "{case}");
            assert!(report.waits.len() == report.needs, "{case}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let churn = Churn {
        nodes: 20,
        per_hour: 60.0,
        burst: 3,
        length: hours(1),
    };
    let play = |seed| {
        run(
            Arm::Ours,
            &Scenario::new(churn.trace(seed), Profile::MEMORY),
        )
    };
    assert_eq!(play(3), play(3));
    assert_ne!(play(3), play(4));
}

#[test]
fn the_arms_differ_as_measured_with_the_real_controller() {
    let churn = Churn {
        nodes: 100,
        per_hour: 20.0,
        burst: 1,
        length: hours(4),
    };
    let scenario = Scenario::new(churn.trace(1), Profile::MEMORY);
    let [polling, watch, ours] =
        [POLLING, Arm::UpstreamWatch, Arm::Ours].map(|arm| run(arm, &scenario));
    let seconds = |report: &Report| report.mean_wait().as_secs_f64();
    assert!(polling.calls.list >= 1440, "{polling}");
    assert!(watch.calls.list < 400, "{watch}");
    assert!(ours.calls.list <= 10, "{ours}");
    assert!((3.0..7.0).contains(&seconds(&polling)), "{polling}");
    assert!((6.0..10.5).contains(&seconds(&watch)), "{watch}");
    assert!(seconds(&ours) < 0.6, "{ours}");
    for report in [polling, watch, ours] {
        assert_eq!(report.unmet, 0, "{report}");
    }
}

/// The scenarios that were observed with upstream's controller v1.36.4 (idle bucket, lone node).
#[test]
fn the_model_of_upstreams_queue_does_what_the_real_one_was_seen_to_do() {
    let (mut fleet, mut trace) = standing(0);
    let node = fleet.join();
    let bare = Node {
        pod_cidrs: vec![],
        addresses: vec![],
        ..node.clone()
    };
    let ranged = Node {
        addresses: vec![],
        ..node.clone()
    };
    let start = Moment::seconds(1000);
    for (millis, node) in [(0, bare), (50, ranged), (550, node)] {
        let when = start + Duration::from_millis(millis);
        trace.events.push((when, ClusterEvent::Apply(node)));
    }
    let report = run(Arm::UpstreamWatch, &scenario(trace, 1100));
    assert_eq!(report.calls.list, 2, "{report}");
    // The second pass begins ten seconds after the add: 9.45 s after the address, plus the list
    // and the create.
    assert_eq!(report.waits, [Duration::from_millis(9_680)]);
}

#[test]
fn upstreams_filter_sees_every_add_and_delete_and_updates_of_ranges_and_addresses() {
    let node = Fleet::default().join();
    let moved = Node {
        addresses: vec![NodeAddress::internal("10.0.1.2".parse().unwrap())],
        ..node.clone()
    };
    let renumbered = Node {
        pod_cidrs: vec![Cidr::parse("10.121.0.0/24")],
        ..node.clone()
    };
    let named = Node {
        provider_id: Some(SharedStr::new("i-1")),
        ..node.clone()
    };
    for (case, old, new, expected) in [
        ("add", None, Some(&node), true),
        ("delete", Some(&node), None, true),
        ("address", Some(&node), Some(&moved), true),
        ("range", Some(&node), Some(&renumbered), true),
        ("nothing", Some(&node), Some(&node), false),
        ("provider ID", Some(&node), Some(&named), false),
    ] {
        assert_eq!(TokenQueue::accepts(old, new), expected, "{case}");
    }
}

#[test]
fn one_passing_failure_is_recovered_in_seconds_and_upstreams_watch_never_does() {
    let (mut fleet, mut trace) = standing(10);
    let node = fleet.join();
    arrives(&mut trace, 600, &node);
    let fault = fails(CallKind::Create, 0, 9999, 1, passing());
    let scenario = scenario(trace, 1200).with_fault(fault);
    let ours = run(Arm::Ours, &scenario);
    harmless(&ours);
    assert!(ours.wait(100) <= Duration::from_secs(5), "{ours}");
    assert_eq!(ours.calls.create, 2);
    let upstream = run(Arm::UpstreamWatch, &scenario);
    assert_eq!(upstream.unmet, 1, "{upstream}");
    let polling = run(POLLING, &scenario);
    assert_eq!(polling.unmet, 0, "{polling}");
}

#[test]
fn a_steady_hour_costs_verification_only() {
    let (_, trace) = standing(50);
    let mut trace = trace;
    for second in (10..3600).step_by(10) {
        let node = trace.initial[0].clone();
        arrives(&mut trace, second, &node);
    }
    let report = run(Arm::Ours, &scenario(trace, 3600));
    harmless(&report);
    assert_eq!(
        report.calls.total(),
        2,
        "the start, and one verification: {report}"
    );
    assert_eq!(report.conditions, 50, "{report}");
}

#[test]
fn a_burst_from_none_to_ninety_is_served_at_once() {
    let (mut fleet, mut trace) = standing(0);
    for i in 0..90 {
        let node = fleet.join();
        arrives(&mut trace, 100 + i / 20, &node);
    }
    let report = run(Arm::Ours, &scenario(trace, 400));
    harmless(&report);
    assert!(report.wait(100) <= Duration::from_millis(1_150), "{report}");
    assert_eq!(report.calls.create, 90);
}

#[test]
fn a_rolling_replacement_moves_ranges_in_one_call_each() {
    let (mut fleet, mut trace) = standing(20);
    for i in 0..20_u64 {
        let old = trace.initial[usize::try_from(i).unwrap()].clone();
        leaves(&mut trace, 100 + i * 30, &old);
        fleet.leave(&old);
        let heir = fleet.join();
        assert_eq!(heir.pod_cidrs, old.pod_cidrs);
        arrives(&mut trace, 100 + i * 30, &heir);
    }
    let report = run(Arm::Ours, &scenario(trace, 900));
    harmless(&report);
    assert_eq!(report.calls.replace, 20, "{report}");
    assert_eq!(report.calls.create + report.calls.delete, 0, "{report}");
}

#[test]
fn a_node_that_changes_its_address_is_followed() {
    let (_, mut trace) = standing(5);
    let moved = Node {
        addresses: vec![NodeAddress::internal("172.31.0.1".parse().unwrap())],
        ..trace.initial[2].clone()
    };
    arrives(&mut trace, 100, &moved);
    let report = run(Arm::Ours, &scenario(trace, 300));
    harmless(&report);
    assert_eq!(report.calls.replace, 1);
    assert!(report.wait(100) <= Duration::from_millis(1_150), "{report}");
}

#[test]
fn an_outage_of_five_minutes_costs_few_calls_and_ends_with_everything_done() {
    let (mut fleet, mut trace) = standing(10);
    let node = fleet.join();
    arrives(&mut trace, 110, &node);
    let gone = trace.initial[3].clone();
    leaves(&mut trace, 120, &gone);
    let dead = Fault {
        call: None,
        ..fails(CallKind::List, 100, 400, u32::MAX, passing())
    };
    let report = run(Arm::Ours, &scenario(trace, 700).with_fault(dead));
    harmless(&report);
    assert!(
        report.wait(100) <= Duration::from_secs(290 + 61),
        "{report}"
    );
    assert!(report.calls.total() <= 30, "{report}");
}

#[test]
fn a_storm_of_rate_limits_is_sat_out() {
    let (mut fleet, mut trace) = standing(10);
    for i in 0..5 {
        let node = fleet.join();
        arrives(&mut trace, 100 + i, &node);
    }
    let storm = Fault {
        call: None,
        ..fails(
            CallKind::List,
            90,
            200,
            u32::MAX,
            ProviderError::RateLimited {
                after: Some(Duration::from_secs(20)),
            },
        )
    };
    let report = run(Arm::Ours, &scenario(trace, 400).with_fault(storm));
    harmless(&report);
    assert!(report.calls.total() <= 40, "{report}");
}

#[test]
fn a_locked_table_delays_and_nothing_more() {
    let (mut fleet, mut trace) = standing(10);
    let node = fleet.join();
    arrives(&mut trace, 100, &node);
    let locked = fails(CallKind::Create, 100, 130, u32::MAX, ProviderError::Locked);
    let report = run(Arm::Ours, &scenario(trace, 300).with_fault(locked));
    harmless(&report);
    assert!(report.wait(100) <= Duration::from_secs(42), "{report}");
    assert_eq!(report.calls.list, 1, "{report}");
}

#[test]
fn a_full_table_takes_the_next_route_as_soon_as_one_goes() {
    let (mut fleet, mut trace) = standing(100);
    let node = fleet.join();
    arrives(&mut trace, 100, &node);
    let gone = trace.initial[7].clone();
    leaves(&mut trace, 500, &gone);
    let scenario = Scenario {
        profile: Profile {
            quota: Some(100),
            ..Profile::MEMORY
        },
        ..scenario(trace, 700)
    };
    let report = run(Arm::Ours, &scenario);
    harmless(&report);
    assert!(report.wait(100) <= Duration::from_secs(402), "{report}");
    assert!(report.calls.create <= 6, "{report}");
}

#[test]
fn a_foreign_route_in_the_range_survives_us_and_not_upstream() {
    let (_, mut trace) = standing(5);
    let foreign = via(route("10.127.0.0/24", ""), "172.31.9.9");
    trace
        .events
        .push((at(50), ClusterEvent::ForeignRoute(foreign)));
    let scenario = scenario(trace, 3 * 3600);
    harmless(&run(Arm::Ours, &scenario));
    assert_eq!(run(POLLING, &scenario).wrong_deletes, 1);
}

#[test]
fn a_route_deleted_behind_our_back_is_back_after_the_next_verification() {
    let (_, mut trace) = standing(5);
    let lost = trace.initial[2].pod_cidrs[0].clone();
    trace.events.push((at(100), ClusterEvent::RouteLost(lost)));
    let report = run(Arm::Ours, &scenario(trace, 3600));
    harmless(&report);
    assert!(report.wait(100) <= VERIFY, "{report}");
}

#[test]
fn deletes_missed_by_a_broken_watch_are_found_by_the_relist() {
    let (_, mut trace) = standing(10);
    let cut = Duration::from_secs(60);
    trace.events.push((at(100), ClusterEvent::WatchCut(cut)));
    let gone = trace.initial[3].clone();
    leaves(&mut trace, 120, &gone);
    let report = run(Arm::Ours, &scenario(trace, 300));
    harmless(&report);
    assert!(
        report.stale_time(100) <= Duration::from_secs(42),
        "{report}"
    );
}

#[test]
fn a_new_leader_with_five_hundred_nodes_reads_once_and_changes_what_happened_meanwhile() {
    let (mut fleet, mut trace) = standing(500);
    let cut = Duration::from_secs(40);
    trace.events.push((at(100), ClusterEvent::WatchCut(cut)));
    let gone = trace.initial[3].clone();
    leaves(&mut trace, 110, &gone);
    let fresh = fleet.join();
    arrives(&mut trace, 120, &fresh);
    trace.events.push((at(130), ClusterEvent::Restart));
    let report = run(Arm::Ours, &scenario(trace, 300));
    harmless(&report);
    assert_eq!(report.calls.list, 2, "{report}");
    assert_eq!((report.calls.create, report.calls.delete), (1, 1));
    assert_eq!(report.conditions, 501, "{report}");
}

#[test]
fn a_lost_answer_is_cleared_up_by_reading_the_table() {
    let (mut fleet, mut trace) = standing(5);
    let node = fleet.join();
    arrives(&mut trace, 100, &node);
    let lost = Fault {
        kind: FaultKind::AnswerLost,
        ..fails(CallKind::Create, 0, 9999, 1, passing())
    };
    let report = run(Arm::Ours, &scenario(trace, 300).with_fault(lost));
    harmless(&report);
    assert_eq!((report.calls.create, report.calls.list), (1, 2), "{report}");
}

#[test]
fn a_provider_like_hetzners_is_never_asked_too_much() {
    let churn = Churn {
        nodes: 60,
        per_hour: 30.0,
        burst: 5,
        length: hours(3),
    };
    let report = run(Arm::Ours, &Scenario::new(churn.trace(2), Profile::HCLOUD));
    harmless(&report);
    assert!(report.lowest_balance.unwrap() > 3000.0, "{report}");
    assert!(report.call_factor(VERIFY) <= 1.2, "{report}");
}

fn any_error() -> impl Strategy<Value = ProviderError> {
    let word = || SharedStr::new("x");
    prop_oneof![
        Just(passing()),
        Just(ProviderError::RateLimited { after: None }),
        Just(ProviderError::Locked),
        Just(ProviderError::Conflict),
        Just(ProviderError::NotReady(word())),
        Just(ProviderError::Garbage(word())),
        Just(ProviderError::Uncertain),
    ]
}

fn any_fault() -> impl Strategy<Value = Fault> {
    let call = prop_oneof![
        Just(None),
        Just(Some(CallKind::List)),
        Just(Some(CallKind::Create)),
        Just(Some(CallKind::Replace)),
        Just(Some(CallKind::Delete)),
    ];
    let kind = prop_oneof![
        4 => any_error().prop_map(FaultKind::Fails),
        1 => Just(FaultKind::AnswerLost),
    ];
    (0..1800_u64, 1..200_u64, call, 1..5_u32, kind).prop_map(|(from, length, call, times, kind)| {
        Fault {
            from: at(from),
            until: at(from + length),
            call,
            times,
            kind,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn after_any_passing_faults_nothing_was_harmed_and_every_need_is_met(
        seed in 0..u64::MAX,
        faults in prop::collection::vec(any_fault(), 0..6),
        restart in prop::option::of(100..1700_u64),
        cut in prop::option::of((100..1700_u64, 1..100_u64)),
        lost in prop::option::of(100..1700_u64),
        hetzner in any::<bool>(),
    ) {
        let churn = Churn {
            nodes: 12,
            per_hour: 120.0,
            burst: 4,
            length: Duration::from_secs(1800),
        };
        let mut trace = churn.trace(seed);
        if let Some(seconds) = restart {
            trace.events.push((at(seconds), ClusterEvent::Restart));
        }
        if let Some((seconds, length)) = cut {
            let length = Duration::from_secs(length);
            trace.events.push((at(seconds), ClusterEvent::WatchCut(length)));
        }
        if let Some(seconds) = lost {
            let cidr: Cidr = trace.initial[0].pod_cidrs[0].clone();
            trace.events.push((at(seconds), ClusterEvent::RouteLost(cidr)));
        }
        let profile = if hetzner { Profile::HCLOUD } else { Profile::MEMORY };
        let scenario = Scenario {
            faults,
            seed,
            // Two verifications after the last fault.
            end: at(2000 + 2 * 1800 + 100),
            ..Scenario::new(trace.sorted(), profile)
        };
        let report = run(Arm::Ours, &scenario);
        prop_assert_eq!(report.wrong_deletes, 0, "{}", report);
        // What a process had under way when it died may be tried by the next one.
        prop_assert!(report.double_creates == 0 || restart.is_some(), "{}", report);
        prop_assert_eq!((report.unmet, report.left_over), (0, 0), "{}", report);
    }
}
