//! Rate limits: learned from answers and shared out by priority.

use std::time::Duration;

use weft_routes::{Budget, CallPriority, Moment, RateLimit};

fn known(remaining: u32) -> Budget {
    let mut budget = Budget::default();
    let rate = RateLimit {
        limit: 3600,
        remaining,
        reset_after: Duration::from_secs(u64::from(3600 - remaining)),
    };
    budget.observe(rate, Moment::START);
    budget
}

fn wait(budget: &Budget, priority: CallPriority) -> Duration {
    budget
        .ready_at(priority, Moment::START)
        .since(Moment::START)
}

#[test]
fn without_headers_everything_goes() {
    for priority in [
        CallPriority::Create,
        CallPriority::Delete,
        CallPriority::Verify,
    ] {
        assert_eq!(wait(&Budget::default(), priority), Duration::ZERO);
    }
}

#[test]
fn verification_stops_first_then_deletes_and_creates_last() {
    let free = |remaining, priority| wait(&known(remaining), priority) == Duration::ZERO;
    for (remaining, create, delete, verify) in [
        (2000, true, true, true),
        (800, true, true, false),
        (200, true, false, false),
        (1, true, false, false),
        (0, false, false, false),
    ] {
        assert_eq!(free(remaining, CallPriority::Create), create, "{remaining}");
        assert_eq!(free(remaining, CallPriority::Delete), delete, "{remaining}");
        assert_eq!(free(remaining, CallPriority::Verify), verify, "{remaining}");
    }
}

#[test]
fn waiting_is_as_long_as_the_bucket_takes_to_refill() {
    let create = wait(&known(0), CallPriority::Create);
    assert!(create >= Duration::from_secs(1) && create < Duration::from_millis(1_001));
    let verify = wait(&known(800), CallPriority::Verify);
    assert!(verify >= Duration::from_secs(101) && verify < Duration::from_millis(101_001));
}

#[test]
fn calls_made_since_the_last_answer_count() {
    let mut budget = known(1);
    budget.spend();
    assert!(wait(&budget, CallPriority::Create) > Duration::ZERO);
}

#[test]
fn a_refused_call_stops_everybody_for_as_long_as_the_provider_says() {
    let mut budget = known(3000);
    budget.limited(Some(Duration::from_secs(7)), Moment::START);
    assert_eq!(wait(&budget, CallPriority::Create), Duration::from_secs(7));
}

#[test]
fn a_provider_that_does_not_say_is_asked_less_and_less_until_it_answers() {
    let mut budget = Budget::default();
    let mut waits = Vec::new();
    let mut now = Moment::START;
    for _ in 0..8 {
        budget.limited(None, now);
        let next = budget.ready_at(CallPriority::Create, now);
        waits.push(next.since(now).as_secs());
        now = next;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    budget.answered();
    budget.limited(None, now);
    assert_eq!(
        budget
            .ready_at(CallPriority::Create, now)
            .since(now)
            .as_secs(),
        1
    );
}

#[test]
fn the_next_call_is_an_hour_away_at_most() {
    let hour = Duration::from_secs(3600);
    let extremes = [0, 1, 2, u32::MAX - 1, u32::MAX];
    let durations = [0, 1, 3600, u64::MAX].map(Duration::from_secs);
    let mut rates = Vec::new();
    for limit in extremes {
        for remaining in extremes {
            rates.extend(durations.map(|reset_after| RateLimit {
                limit,
                remaining,
                reset_after,
            }));
        }
    }
    // What was learned from one answer is kept for the next that says nothing about it.
    for first in &rates {
        for second in &rates {
            let mut budget = Budget::default();
            budget.observe(*first, Moment::START);
            budget.observe(*second, Moment::START);
            budget.spend();
            for priority in [
                CallPriority::Create,
                CallPriority::Delete,
                CallPriority::Verify,
            ] {
                let wait = wait(&budget, priority);
                assert!(wait <= hour, "{first:?} {second:?} {wait:?}");
                let later = Moment::START + hour;
                assert_eq!(budget.ready_at(priority, later), later, "{second:?}");
            }
        }
    }
    let mut budget = Budget::default();
    budget.limited(Some(Duration::MAX), Moment::START);
    assert_eq!(wait(&budget, CallPriority::Create), hour);
}
