//! Spec writes of a node, and writes that are not repeated.

use std::time::Duration;

use proptest::prelude::{prop_assert, prop_assert_eq, proptest};
use weft_ipam::{
    ContainerResult, Entry, Monitor, MonitorDecision, MonitorInput, MonitorSettings, NodeConfig,
    PodSummary, ScalingMode, pod_demand,
    pool::{Event, Pool},
    scaling::ScalerParameters,
};
use weft_model::{IpFamily, Moment, SharedStr};

use crate::fixtures::{add, at, config, delete, instant, listed, observe, pool};

/// Upstream's settings: scale down at once, withdraw no offer.
const PLAIN: MonitorSettings = MonitorSettings {
    mode: ScalingMode::Pods,
    stabilisation: Duration::ZERO,
    reclaim: false,
    write_demand: false,
};

fn name(index: u32) -> String {
    format!("ip-{index:03}")
}

/// A config with this many single addresses.
fn with(version: u64, held: u32, requested: u32) -> NodeConfig {
    let mut config = config(version, &[]);
    config.spec.requested = requested.into();
    config.status.scaler = Some(ScalerParameters {
        batch_size: Some(16),
        request_threshold_percent: Some(50),
        release_threshold_percent: Some(150),
        max_ip_count: Some(250),
    });
    config.status.containers[0].entries = (0..held)
        .map(|index| Entry {
            name: name(index).into(),
            ip: SharedStr::new(&format!("10.1.{}.{}", 1 + index / 200, index % 200)),
        })
        .collect();
    config
}

fn pending(mut config: NodeConfig, count: u32) -> NodeConfig {
    config.spec.not_in_use = (0..count).map(|index| name(index).into()).collect();
    config
}

fn input(config: &NodeConfig, pods: u32) -> MonitorInput<'_> {
    MonitorInput {
        config,
        pods: Some(pods),
        synced: true,
        exhausted: false,
    }
}

fn start(config: &NodeConfig) -> Pool {
    let mut pool = instant();
    observe(&mut pool, config, at(0));
    pool
}

/// The written request and the number of released names.
fn written(decision: &MonitorDecision) -> Option<(i64, usize)> {
    let spec = &decision.write.as_ref()?.spec;
    Some((spec.requested, spec.not_in_use.len()))
}

/// The API server accepts the write, and the agent observes the result.
fn accept(
    pool: &mut Pool,
    monitor: &mut Monitor,
    config: &mut NodeConfig,
    decision: &MonitorDecision,
) {
    let write = decision.write.as_ref().unwrap();
    assert_eq!(write.precondition, config.precondition());
    config.spec = write.spec.clone();
    let next: u64 = config.version.as_str().parse().unwrap();
    config.version = (next + 1).into();
    monitor.answered(write.attempt, Some(config.clone()), pool, at(1));
}

#[test]
fn an_evaluation_writes_what_upstreams_table_says_or_a_corrected_value() {
    // Demand, request before, held, pending among them; what upstream writes, what we write.
    type Row = (
        u32,
        u32,
        u32,
        u32,
        Option<(i64, usize)>,
        Option<(i64, usize)>,
    );
    let rows: [Row; 13] = [
        (5, 16, 16, 0, None, None),
        (15, 16, 16, 0, Some((32, 0)), Some((32, 0))),
        (75, 16, 16, 0, Some((96, 0)), Some((96, 0))),
        (300, 16, 16, 0, Some((250, 0)), Some((250, 0))),
        (5, 32, 32, 0, Some((16, 16)), Some((16, 16))),
        (5, 128, 128, 0, Some((16, 112)), Some((16, 112))),
        (0, 32, 32, 0, Some((16, 16)), Some((16, 16))),
        (15, 3, 3, 0, Some((32, 0)), Some((32, 0))),
        (5, 37, 37, 0, Some((16, 21)), Some((16, 21))),
        (20, 16, 32, 16, Some((32, 16)), Some((32, 16))),
        (5, 32, 48, 16, Some((16, 32)), Some((16, 32))),
        // The request was never met: upstream fails to find 32 free addresses.
        (5, 48, 32, 16, None, Some((16, 16))),
        // Only 16 of the 48 requested have arrived; nothing can be released.
        (5, 48, 16, 0, None, Some((16, 0))),
    ];
    let mut defects = 0;
    for (index, (demand, requested, held, offered, upstream, ours)) in rows.into_iter().enumerate()
    {
        defects += u32::from(upstream != ours);
        let config = pending(with(1, held, requested), offered);
        let mut pool = start(&config);
        let decision = Monitor::new(PLAIN).evaluate(&mut pool, input(&config, demand), at(1));
        assert_eq!(written(&decision), ours, "row {}", index + 1);
    }
    assert_eq!(defects, 2);
}

#[test]
fn with_reclaiming_an_offer_is_taken_back_before_new_addresses_are_asked_for() {
    let mut config = pending(with(1, 32, 16), 16);
    let mut pool = start(&config);
    let settings = MonitorSettings {
        reclaim: true,
        ..PLAIN
    };
    let mut monitor = Monitor::new(settings);
    let decision = monitor.evaluate(&mut pool, input(&config, 20), at(1));
    // Upstream requests 16 more and loses these.
    assert_eq!(written(&decision), Some((32, 0)));
    assert_eq!(
        pool.address_counts(IpFamily::V4).releasing,
        16,
        "until the write is accepted"
    );
    accept(&mut pool, &mut monitor, &mut config, &decision);
    assert_eq!(pool.address_counts(IpFamily::V4).available, 32);
}

#[test]
fn a_write_that_fails_offers_nothing_more_and_is_repeated() {
    let mut config = with(1, 32, 32);
    let mut pool = start(&config);
    let mut monitor = Monitor::new(PLAIN);
    let first = monitor.evaluate(&mut pool, input(&config, 5), at(1));
    assert_eq!(first.step.records.len(), 16);
    let waiting = monitor.evaluate(&mut pool, input(&config, 5), at(1));
    assert_eq!(waiting, MonitorDecision::default(), "one at a time");
    let mut last = first.clone();
    for attempt in 1..=3 {
        monitor.answered(attempt, None, &mut pool, at(1));
        last = monitor.evaluate(&mut pool, input(&config, 5), at(1));
        let (write, before) = (last.write.as_ref().unwrap(), first.write.as_ref().unwrap());
        assert_eq!((&write.spec, write.attempt), (&before.spec, attempt + 1));
        assert!(last.step.records.is_empty());
    }
    accept(&mut pool, &mut monitor, &mut config, &last);
    assert_eq!(
        written(&monitor.evaluate(&mut pool, input(&config, 5), at(2))),
        None
    );
}

#[test]
fn offers_that_cannot_be_kept_are_not_written_and_not_made_twice() {
    // Row 2 of upstream's table: marking fails, and the request stays what it was.
    let mut config = with(1, 32, 32);
    let mut pool = start(&config);
    let mut monitor = Monitor::new(PLAIN);
    let unsent = monitor.evaluate(&mut pool, input(&config, 6), at(1));
    assert_eq!(unsent.step.records.len(), 16, "what cannot be kept");
    pool.handle(Event::StoreFailed(Vec::new()), at(1));
    monitor.answered(1, None, &mut pool, at(1));
    let closed = monitor.evaluate(&mut pool, input(&config, 6), at(2));
    assert_eq!(closed, MonitorDecision::default());
    pool.handle(Event::StoreRecovered, at(3));
    let sent = monitor.evaluate(&mut pool, input(&config, 6), at(3));
    assert_eq!(written(&sent), Some((16, 16)));
    accept(&mut pool, &mut monitor, &mut config, &sent);
    assert_eq!(pool.address_counts(IpFamily::V4).releasing, 16);
    // Addresses in use cannot be offered either; upstream then requests 32 for ever.
    let config = with(1, 32, 32);
    let mut pool = start(&config);
    for pod in 0..32 {
        add(&mut pool, &name(pod), at(1));
    }
    let decision = Monitor::new(PLAIN).evaluate(&mut pool, input(&config, 6), at(1));
    assert_eq!(written(&decision), Some((48, 0)), "they count as demand");
}

#[test]
fn the_reactive_mode_outlives_an_api_server_that_is_down() {
    // Upstream's process ends with a panic here.
    let mut config = with(1, 64, 64);
    let mut pool = start(&config);
    let mut monitor = Monitor::new(MonitorSettings {
        mode: ScalingMode::Requests,
        ..PLAIN
    });
    for pod in 0..46 {
        add(&mut pool, &name(pod), at(1));
    }
    assert_eq!(
        written(&monitor.evaluate(&mut pool, input(&config, 46), at(1))),
        None
    );
    for pod in 0..6 {
        delete(&mut pool, &name(pod), at(2));
    }
    let mut decision = monitor.evaluate(&mut pool, input(&config, 40), at(2));
    for attempt in 1..=5 {
        assert_eq!(written(&decision), Some((48, 16)), "attempt {attempt}");
        monitor.answered(attempt, None, &mut pool, at(2));
        decision = monitor.evaluate(&mut pool, input(&config, 40), at(2));
        assert!(decision.step.records.is_empty(), "nothing more is offered");
    }
    accept(&mut pool, &mut monitor, &mut config, &decision);
    assert_eq!(
        (config.spec.requested, config.spec.not_in_use.len()),
        (48, 16)
    );
    let address_counts = pool.address_counts(IpFamily::V4);
    assert_eq!((address_counts.assigned, address_counts.available), (40, 8));
}

proptest! {
    /// I13 of `docs/ipam.md`.
    #[test]
    fn scale_down_leaves_what_pods_have_and_the_buffer_for_those_that_are_there(
        batch in 1_u32..20,
        percent in 0_u32..200,
        blocks in 1_u32..8,
        width in 0_u32..5,
        assigned in 0_u32..40,
        pods in 0_u32..60,
        reactive: bool,
    ) {
        let size = 1 << width;
        let mut config = with(1, 0, blocks * size);
        config.status.scaler = Some(ScalerParameters {
            batch_size: Some(batch.into()),
            request_threshold_percent: Some(percent.into()),
            release_threshold_percent: Some(150),
            max_ip_count: Some(250),
        });
        config.status.containers[0].entries = (0..blocks)
            .map(|index| Entry {
                name: name(index).into(),
                ip: SharedStr::new(&format!("10.1.{index}.0/{}", 32 - width)),
            })
            .collect();
        let mut pool = start(&config);
        let assigned = assigned.min(blocks * size);
        for pod in 0..assigned {
            add(&mut pool, &name(pod), at(1));
        }
        let mode = if reactive { ScalingMode::Requests } else { ScalingMode::Pods };
        Monitor::new(MonitorSettings { mode, ..PLAIN }).evaluate(&mut pool, input(&config, pods), at(1));
        let address_counts = pool.address_counts(IpFamily::V4);
        prop_assert_eq!(address_counts.assigned, assigned);
        if address_counts.releasing > 0 {
            let demand = if reactive { assigned } else { pods.max(assigned) };
            let percent = if reactive { percent.clamp(1, 100) } else { percent };
            // Half of an address counts as one by the reactive rule's rounding.
            let slack = if reactive { 50 } else { 0 };
            prop_assert!(
                address_counts.kept() * 100 + slack >= demand * 100 + percent * batch.min(250),
                "{:?} for {} pods",
                address_counts,
                demand
            );
        }
    }
}

#[test]
fn the_answer_to_an_attempt_that_was_given_up_takes_nothing_back() {
    let config = with(1, 32, 32);
    let mut pool = start(&config);
    let mut monitor = Monitor::new(PLAIN);
    // The first write keeps all; it is accepted, but the response is late.
    monitor.evaluate(&mut pool, input(&config, 40), at(1));
    monitor.answered(1, None, &mut pool, at(1));
    let offering = monitor.evaluate(&mut pool, input(&config, 5), at(2));
    assert_eq!(written(&offering), Some((16, 16)));
    let mut late = with(2, 32, 48);
    late.version = 2.into();
    monitor.answered(1, Some(late), &mut pool, at(3));
    assert_eq!(
        pool.address_counts(IpFamily::V4).releasing,
        16,
        "the second is still on its way"
    );
    assert_eq!(monitor.in_flight(), Some(2));
}

#[test]
fn names_that_are_gone_are_taken_off_the_list() {
    let config = listed(with(1, 16, 16), &["gone", "gone-too"]);
    let mut pool = start(&config);
    let decision = Monitor::new(PLAIN).evaluate(&mut pool, input(&config, 5), at(1));
    assert_eq!(written(&decision), Some((16, 0)));
}

#[test]
fn a_request_edited_by_hand_is_put_right() {
    let mut config = with(1, 16, 16);
    let mut pool = start(&config);
    let mut monitor = Monitor::new(PLAIN);
    assert_eq!(
        monitor.evaluate(&mut pool, input(&config, 5), at(1)).write,
        None
    );
    config.spec.requested = -7;
    config.version = 2.into();
    let decision = monitor.evaluate(&mut pool, input(&config, 5), at(2));
    assert_eq!(written(&decision), Some((16, 0)));
}

#[test]
fn nothing_is_written_before_pods_were_listed_and_the_config_was_seen() {
    let config = with(1, 32, 32);
    let mut monitor = Monitor::new(PLAIN);
    let unlisted = MonitorInput {
        pods: None,
        ..input(&config, 0)
    };
    assert_eq!(
        monitor.evaluate(&mut start(&config), unlisted, at(1)).write,
        None
    );
    assert_eq!(
        monitor
            .evaluate(&mut instant(), input(&config, 5), at(1))
            .write,
        None
    );
}

#[test]
fn nothing_is_given_back_while_the_watch_is_broken_but_more_is_asked_for() {
    let config = with(1, 32, 32);
    let mut pool = start(&config);
    let blind = |pods| MonitorInput {
        synced: false,
        ..input(&config, pods)
    };
    assert_eq!(
        Monitor::new(PLAIN)
            .evaluate(&mut pool, blind(5), at(1))
            .write,
        None
    );
    let decision = Monitor::new(PLAIN).evaluate(&mut pool, blind(40), at(1));
    assert_eq!(written(&decision), Some((48, 0)));
}

#[test]
fn scale_down_waits_and_scale_up_does_not() {
    let config = with(1, 32, 32);
    let mut pool = start(&config);
    let mut monitor = Monitor::new(MonitorSettings {
        stabilisation: Duration::from_secs(120),
        ..PLAIN
    });
    // Demand flaps around the edge of a batch.
    for second in 0..300 {
        let demand = 8 + u32::try_from(second % 2).unwrap();
        let decision = monitor.evaluate(&mut pool, input(&config, demand), at(second));
        assert_eq!(decision.write, None, "{second}");
    }
    assert_eq!(
        monitor
            .evaluate(&mut pool, input(&config, 8), at(300))
            .write,
        None
    );
    assert_eq!(monitor.wake(), Some(at(420)));
    let up = monitor.evaluate(&mut pool, input(&config, 25), at(301));
    assert_eq!(written(&up), Some((48, 0)));
}

#[test]
fn a_restart_does_not_scale_down_at_once() {
    let config = with(1, 48, 48);
    let mut pool = start(&config);
    let mut monitor = Monitor::new(MonitorSettings::default());
    assert_eq!(
        monitor.evaluate(&mut pool, input(&config, 5), at(10)).write,
        None
    );
    let later = monitor.evaluate(&mut pool, input(&config, 5), at(130));
    assert_eq!(written(&later), Some((16, 32)));
}

#[test]
fn an_exhausted_subnet_gets_everything_back_but_one_at_once() {
    let config = with(1, 32, 32);
    let mut pool = start(&config);
    let exhausted = MonitorInput {
        exhausted: true,
        ..input(&config, 5)
    };
    let decision = Monitor::new(MonitorSettings::default()).evaluate(&mut pool, exhausted, at(1));
    assert_eq!(written(&decision), Some((6, 26)));
}

#[test]
fn pods_deleted_by_force_keep_their_addresses_in_the_count() {
    let config = with(1, 32, 32);
    let mut pool = start(&config);
    for index in 0..12 {
        add(&mut pool, &format!("p{index}"), at(1));
    }
    // 12 are assigned, so 32 are right, regardless of the API.
    assert_eq!(
        Monitor::new(PLAIN)
            .evaluate(&mut pool, input(&config, 0), at(1))
            .write,
        None
    );
}

#[test]
fn an_add_that_waits_is_demand_before_its_pod_is_seen() {
    let config = with(1, 0, 0);
    let mut pool = start(&config);
    for index in 0..9 {
        add(&mut pool, &format!("p{index}"), at(1));
    }
    let decision = Monitor::new(PLAIN).evaluate(&mut pool, input(&config, 0), at(1));
    assert_eq!(written(&decision), Some((32, 0)));
}

#[test]
fn addresses_that_cool_are_not_free() {
    let config = with(1, 16, 16);
    let mut pool = pool();
    observe(&mut pool, &config, at(0));
    for index in 0..8 {
        add(&mut pool, &format!("p{index}"), at(1));
    }
    for index in 0..8 {
        delete(&mut pool, &format!("p{index}"), at(2));
    }
    let decision = Monitor::new(PLAIN).evaluate(&mut pool, input(&config, 8), at(3));
    assert_eq!(written(&decision), Some((32, 0)));
}

#[test]
fn the_seeds_burst_takes_one_write() {
    let mut config = with(1, 16, 16);
    let mut pool = start(&config);
    let mut monitor = Monitor::new(MonitorSettings::default());
    add(&mut pool, "p0", at(0));
    assert_eq!(
        monitor.evaluate(&mut pool, input(&config, 1), at(0)).write,
        None
    );
    let decision = monitor.evaluate(&mut pool, input(&config, 36), at(1));
    assert_eq!(written(&decision), Some((48, 0)));
    accept(&mut pool, &mut monitor, &mut config, &decision);
    let more = NodeConfig {
        spec: config.spec.clone(),
        ..with(9, 48, 48)
    };
    observe(&mut pool, &more, at(2));
    for index in 1..36 {
        assert_eq!(add(&mut pool, &format!("p{index}"), at(3)).replies.len(), 1);
        assert_eq!(
            monitor.evaluate(&mut pool, input(&more, 36), at(3)).write,
            None
        );
    }
    assert_eq!(pool.address_counts(IpFamily::V4).available, 12);
}

#[test]
fn the_reactive_mode_goes_the_same_way_in_two_writes() {
    let mut config = with(1, 16, 16);
    let mut pool = start(&config);
    let mut monitor = Monitor::new(MonitorSettings {
        mode: ScalingMode::Requests,
        ..PLAIN
    });
    let mut writes = Vec::new();
    let mut version = 1;
    for index in 0..36 {
        add(&mut pool, &format!("p{index}"), at(1));
        let decision = monitor.evaluate(&mut pool, input(&config, 0), Moment::START);
        if let Some(spec) = written(&decision) {
            writes.push((index, spec.0));
            accept(&mut pool, &mut monitor, &mut config, &decision);
            version += 10;
            let held = u32::try_from(spec.0).unwrap();
            config = with(version, held, held);
            observe(&mut pool, &config, at(1));
        }
    }
    assert_eq!(writes, [(8, 32), (24, 48)]);
    for index in 0..36 {
        delete(&mut pool, &format!("p{index}"), at(2));
    }
    let down = monitor.evaluate(&mut pool, input(&config, 0), at(3));
    assert_eq!(written(&down), Some((32, 16)));
}

#[test]
fn demand_alone_is_written_only_while_the_subnet_is_full() {
    let settings = MonitorSettings {
        write_demand: true,
        ..PLAIN
    };
    let mut config = with(1, 16, 32);
    config.spec.demand = Some(9);
    let mut pool = start(&config);
    let mut monitor = Monitor::new(settings);
    assert_eq!(
        monitor.evaluate(&mut pool, input(&config, 10), at(1)).write,
        None
    );
    config.status.containers[0].result = Some(ContainerResult::SubnetFull);
    let decision = monitor.evaluate(&mut pool, input(&config, 10), at(1));
    assert_eq!(decision.write.unwrap().spec.demand, Some(10));
}

#[test]
fn pods_on_the_host_network_and_finished_ones_need_no_address() {
    let pod = |host_network, finished| PodSummary {
        host_network,
        finished,
        ..PodSummary::default()
    };
    assert_eq!(pod_demand(&[]), 0);
    assert_eq!(pod_demand(&[pod(false, false)]), 1);
    assert_eq!(
        pod_demand(&[pod(false, false), pod(true, false), pod(false, true)]),
        1
    );
    assert_eq!(pod_demand(&[pod(false, true), pod(true, true)]), 0);
}
