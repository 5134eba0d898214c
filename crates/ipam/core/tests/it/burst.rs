//! Bursts of pods, sized by pods and by requests.

use std::time::Duration;

use weft_ipam::{
    ScalingMode,
    burst::{Burst, BurstReport, simulate},
};

fn both(burst: Burst) -> (BurstReport, BurstReport, f64) {
    let pods = simulate(burst, ScalingMode::Pods);
    let requests = simulate(burst, ScalingMode::Requests);
    let sooner = requests.served.unwrap().as_secs_f64() / pods.served.unwrap().as_secs_f64();
    (pods, requests, sooner)
}

#[test]
fn thirty_six_pods_take_one_update_and_no_failure_and_start_three_times_sooner() {
    let (pods, requests, sooner) = both(Burst::new(1, 36));
    assert_eq!((pods.updates, pods.failed_adds), (1, 0));
    assert!(
        requests.updates > 1 && requests.failed_adds > 0,
        "{requests}"
    );
    assert!(sooner >= 3.0, "{sooner}");
}

#[test]
fn a_full_node_takes_one_update_and_no_failure_and_starts_eight_times_sooner() {
    let (pods, requests, sooner) = both(Burst::new(0, 250));
    assert_eq!((pods.updates, pods.failed_adds), (1, 0));
    assert!(requests.failed_adds > 200, "{requests}");
    assert!(sooner >= 8.0, "{sooner}");
}

#[test]
fn pods_that_trickle_in_take_two_updates_at_most() {
    for (before, after) in [(1, 36), (0, 250)] {
        let burst = Burst {
            spread: Duration::from_millis(300),
            ..Burst::new(before, after)
        };
        let pods = simulate(burst, ScalingMode::Pods);
        assert!(pods.updates <= 2 && pods.failed_adds == 0, "{pods}");
    }
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let burst = Burst::new(1, 36);
    assert_eq!(
        simulate(burst, ScalingMode::Requests),
        simulate(burst, ScalingMode::Requests)
    );
}
