//! Tests of the work queue.

use std::time::Duration;

use futures::FutureExt;

use super::*;

fn queue() -> Workqueue<&'static str> {
    Workqueue::builder("test").build()
}

fn next(queue: &Workqueue<&'static str>) -> Option<Lease<&'static str>> {
    queue.next().now_or_never().flatten()
}

fn order(queue: &Workqueue<&'static str>) -> Vec<&'static str> {
    std::iter::from_fn(|| next(queue).map(|lease| *lease)).collect()
}

#[tokio::test(start_paused = true)]
async fn invariant_22_a_key_is_never_worked_on_twice_at_a_time_and_an_add_meanwhile_runs_once_more()
{
    let queue = queue();
    queue.add("a");
    let lease = next(&queue).unwrap();
    for _ in 0..3 {
        queue.add("a");
    }
    assert!(next(&queue).is_none(), "handed out while being worked on");
    drop(lease);
    assert_eq!(
        *next(&queue).expect("the add during processing is not lost"),
        "a"
    );
    assert!(
        next(&queue).is_none(),
        "three adds meanwhile are one further run"
    );
}

#[tokio::test(start_paused = true)]
async fn invariant_23_adds_of_a_waiting_key_are_one_run_at_the_earliest_time_and_highest_priority()
{
    let queue = queue();
    queue.add_after("a", Duration::from_secs(30));
    queue.add_after("a", Duration::from_secs(10));
    queue.add_after("a", Duration::from_secs(20));
    let start = Instant::now();
    assert_eq!(*queue.next().await.unwrap(), "a");
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(next(&queue).is_none(), "the later times are forgotten");

    queue.add_after("b", Duration::from_secs(30));
    queue.add("b");
    assert_eq!(
        *next(&queue).unwrap(),
        "b",
        "an immediate add wins over a delay"
    );
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(next(&queue).is_none());

    let low = AddOptions {
        priority: Priority::LOW,
        ..AddOptions::default()
    };
    queue.add_with("c", low);
    queue.add_with("d", low);
    queue.add("d");
    queue.add_with("d", low);
    assert_eq!(
        order(&queue),
        ["d", "c"],
        "the highest priority counts, once"
    );
}

#[tokio::test(start_paused = true)]
async fn keys_of_one_priority_are_first_come_first_served() {
    let queue = queue();
    for key in ["c", "a", "b", "a"] {
        queue.add(key);
    }
    assert_eq!(queue.len(), 3);
    assert_eq!(order(&queue), ["c", "a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn invariant_24_a_low_priority_key_is_not_starved_by_a_busy_queue() {
    let queue: Workqueue<u64> = Workqueue::builder("test")
        .ageing(Duration::from_secs(60))
        .build();
    queue.add_with(
        0,
        AddOptions {
            priority: Priority::LOW,
            ..AddOptions::default()
        },
    );
    let start = Instant::now();
    for busy in 1.. {
        queue.add(busy);
        queue.add(busy + 1_000_000);
        let key = *queue.next().await.unwrap();
        if key == 0 {
            break;
        }
        assert!(start.elapsed() <= Duration::from_secs(61), "starved");
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(
        start.elapsed() >= Duration::from_secs(60),
        "ageing must not make priority void"
    );
}

#[tokio::test(start_paused = true)]
async fn invariant_24_groups_take_turns_where_fairness_is_asked_for() {
    let queue: Workqueue<(&str, u8)> = Workqueue::builder("test")
        .fairness(|(group, _)| *group)
        .build();
    for key in [
        ("big", 1),
        ("big", 2),
        ("big", 3),
        ("small", 1),
        ("small", 2),
    ] {
        queue.add(key);
    }
    let order: Vec<_> =
        std::iter::from_fn(|| queue.next().now_or_never().flatten().map(|lease| *lease)).collect();
    assert_eq!(
        order,
        [
            ("big", 1),
            ("small", 1),
            ("big", 2),
            ("small", 2),
            ("big", 3)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn invariant_26_failures_last_until_success() {
    let queue = queue();
    queue.add("a");
    for (failures, wait) in [(0, 5), (1, 10), (2, 20)] {
        let lease = queue.next().await.unwrap();
        assert_eq!(lease.failures(), failures);
        let start = Instant::now();
        lease.retry();
        let again = queue.next().await.unwrap();
        assert_eq!(start.elapsed().as_millis(), wait);
        drop(again);
        queue.add("a");
    }
    queue.next().await.unwrap().finish();
    queue.add("a");
    assert_eq!(next(&queue).unwrap().failures(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_retried_key_keeps_its_priority() {
    let queue = queue();
    queue.add_with(
        "high",
        AddOptions {
            priority: Priority(7),
            ..AddOptions::default()
        },
    );
    next(&queue).unwrap().retry();
    assert_eq!(queue.next().await.unwrap().priority(), Priority(7));
}

#[tokio::test(start_paused = true)]
async fn invariant_27_drain_waits_for_what_is_worked_on_and_hands_out_nothing_more() {
    let queue = queue();
    queue.add("a");
    queue.add("b");
    queue.add_after("c", Duration::from_secs(1));
    let lease = next(&queue).unwrap();
    let drain = queue.drain();
    tokio::pin!(drain);
    assert!(
        drain.as_mut().now_or_never().is_none(),
        "a is still worked on"
    );
    assert!(
        queue.next().await.is_none(),
        "nothing is handed out after drain began"
    );
    queue.add("d");
    drop(lease);
    drain.await;
    assert!(queue.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn close_hands_out_what_is_ready_and_drops_what_is_delayed() {
    let queue = queue();
    queue.add("a");
    queue.add_after("b", Duration::from_secs(1));
    queue.close();
    queue.add("c");
    assert_eq!(*queue.next().await.unwrap(), "a");
    assert!(queue.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_reopened_queue_is_empty_and_ignores_leases_of_before() {
    let queue = queue();
    queue.add("a");
    queue.add_after("b", Duration::from_secs(1));
    let old = next(&queue).unwrap();
    queue.close();
    queue.reopen();
    queue.add("a");
    let new = next(&queue).expect("the old lease does not block the key");
    drop(old);
    queue.add("a");
    assert!(next(&queue).is_none(), "the old lease ended the new one");
    drop(new);
    assert_eq!(*next(&queue).unwrap(), "a");
    tokio::time::advance(Duration::from_secs(5)).await;
    assert!(next(&queue).is_none(), "a delayed key survived");
}

#[tokio::test(start_paused = true)]
async fn a_sleeping_worker_learns_of_an_earlier_time() {
    let queue = queue();
    queue.add_after("late", Duration::from_secs(100));
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move {
            let start = Instant::now();
            (*queue.next().await.unwrap(), start.elapsed())
        }
    });
    tokio::task::yield_now().await;
    queue.add_after("early", Duration::from_secs(5));
    assert_eq!(worker.await.unwrap(), ("early", Duration::from_secs(5)));
}

#[tokio::test(start_paused = true)]
async fn every_sleeping_worker_gets_one_of_the_keys_due_together() {
    let queue: Workqueue<u32> = Workqueue::builder("test").build();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.next().await.map(|lease| *lease) })
        })
        .collect();
    tokio::task::yield_now().await;
    for key in 0..4 {
        queue.add_after(key, Duration::from_secs(1));
    }
    let mut keys = Vec::new();
    for worker in workers {
        keys.push(worker.await.unwrap().unwrap());
    }
    keys.sort_unstable();
    assert_eq!(keys, [0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_worker_gives_its_key_back() {
    let queue = queue();
    queue.add("a");
    let lease = next(&queue).unwrap();
    let worker = tokio::spawn(async move {
        let _lease = lease;
        panic!("on purpose");
    });
    assert!(worker.await.is_err());
    queue.add("a");
    assert_eq!(*next(&queue).unwrap(), "a");
}
