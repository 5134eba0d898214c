//! Invariants 9 to 21: delivery to subscribers, and recovery of the LIST/WATCH loop.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::StatusCode;
use http_body_util::StreamBody;
use kube::{Client, client::Body};
use serde_json::json;
use tokio::time::{Instant, sleep};
use weft_apiserver::{Cut, Fault, InjectedWatchError, Times, Verb};
use weft_runtime::{
    Cache, Change, InformerState, ListMode, Lister, Object, ObjectKey, Subscription, WaitReason,
    WatchSpec,
};

use crate::harness::{Harness, Note, configmaps, drain_initial, eventually, next, reaches};

/// A subscriber that keeps its own copy and checks every change against it.
struct Follower {
    copy: HashMap<ObjectKey, (String, String)>,
    lister: Lister<Note>,
    changes: usize,
}

fn number(version: &str) -> u64 {
    version.parse().unwrap()
}

impl Follower {
    fn new(lister: Lister<Note>) -> Self {
        Self {
            copy: HashMap::new(),
            lister,
            changes: 0,
        }
    }

    fn check(&mut self, change: &Change<Note>) {
        self.changes += 1;
        let identity = |note: &Note| {
            (
                note.uid().unwrap().to_owned(),
                note.resource_version().to_owned(),
            )
        };
        match change {
            Change::Added { new, .. } => {
                let before = self.copy.insert(new.key(), identity(new));
                assert!(before.is_none(), "{} was added twice", new.key());
            }
            Change::Updated { old, new, .. } => {
                let before = self.copy.insert(new.key(), identity(new));
                assert_eq!(
                    before,
                    Some(identity(old)),
                    "{}: a gap or a repetition",
                    new.key()
                );
                assert_eq!(
                    old.uid(),
                    new.uid(),
                    "another object must not look like an update"
                );
                assert!(number(old.resource_version()) < number(new.resource_version()));
            }
            // A key that appeared and vanished between two reads is delivered as deleted.
            Change::Deleted { last, .. } => drop(self.copy.remove(&last.key())),
            Change::Undecodable(_) | Change::Synced | Change::Closed(_) => {}
        }
        if let Change::Added { new, .. } | Change::Updated { new, .. } = change
            && let Some(stored) = self.lister.get(&new.key()).unwrap()
        {
            let (event, store) = (
                number(new.resource_version()),
                number(stored.resource_version()),
            );
            assert!(store >= event, "the store lags behind the event");
        }
    }

    async fn follow_until(&mut self, subscription: &mut Subscription<Note>, last: &str) {
        loop {
            let change = next(subscription).await;
            self.check(&change);
            if change.key().is_some_and(|key| &*key.name == last) {
                return;
            }
        }
    }
}

/// Writes at random for a while; `disturb` is called between writes.
async fn churn(harness: &Harness, seed: u64, pace: Duration, mut disturb: impl FnMut(usize)) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut present = [false; 12];
    for write in 0..300 {
        let index = random.usize(..present.len());
        let name = format!("n{index}");
        if !present[index] {
            harness.create(&name, &write.to_string()).await;
            present[index] = true;
        } else if random.bool() {
            harness.update(&name, &write.to_string()).await;
        } else {
            harness.delete(&name).await;
            present[index] = false;
        }
        disturb(write);
        if write % 3 == 0 {
            sleep(pace.mul_f64(random.f64())).await;
        }
    }
    harness.create("last", "").await;
}

async fn subscribers_agree(harness: &Harness, pace: Duration, disturb: impl FnMut(usize)) {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&harness.spec());
    let joiners: Vec<_> = (0..12)
        .map(|index| {
            let informer = informer.clone();
            tokio::spawn(async move {
                sleep(pace * 3 * index).await;
                let mut follower = Follower::new(informer.lister());
                let mut subscription = informer.subscribe();
                follower.follow_until(&mut subscription, "last").await;
                (follower, subscription)
            })
        })
        .collect();
    churn(harness, seed, pace, disturb).await;
    let truth: HashMap<ObjectKey, (String, String)> = harness
        .notes()
        .list(&kube::api::ListParams::default())
        .await
        .unwrap()
        .into_iter()
        .map(|note| {
            let identity = (
                note.uid().unwrap().to_owned(),
                note.resource_version().to_owned(),
            );
            (note.key(), identity)
        })
        .collect();
    for joiner in joiners {
        let (mut follower, mut subscription) = joiner.await.unwrap();
        // A list names keys in its own order, so `last` may come before others.
        while follower.copy != truth {
            let change = next(&mut subscription).await;
            follower.check(&change);
        }
    }
    eventually("store equals server", || {
        informer.lister().len() == Ok(truth.len())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invariants_9_and_11_a_subscriber_gets_an_exact_cut_whenever_it_joins() {
    let harness = Harness::any().await;
    subscribers_agree(&harness, Duration::from_millis(20), |_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn invariants_9_and_12_also_while_lists_are_repeated() {
    let harness = Harness::embedded().await;
    let faults = harness.server().faults();
    subscribers_agree(&harness, Duration::from_secs(4), |write| {
        if write % 40 == 20 {
            faults.compact();
            faults.cut_watches(&configmaps(), Cut::MidFrame);
        }
    })
    .await;
    assert!(
        harness
            .server()
            .stats()
            .count(&configmaps().streaming_list(true))
            >= 3,
        "no relist"
    );
}

#[tokio::test]
async fn invariant_10_synced_means_that_every_initial_object_was_handled() {
    let harness = Harness::any().await;
    for name in ["a", "b", "c"] {
        harness.create(name, "x").await;
    }
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&harness.spec());
    informer.synced().await.unwrap();
    let mut subscription = informer.subscribe();
    let synced = subscription.synced();
    for _ in 0..3 {
        let change = next(&mut subscription).await;
        assert!(matches!(change, Change::Added { initial: true, .. }));
        assert!(
            !*synced.borrow(),
            "the object just taken is not handled yet"
        );
    }
    assert!(matches!(next(&mut subscription).await, Change::Synced));
    assert!(*synced.borrow());
    harness.create("d", "x").await;
    assert!(matches!(
        next(&mut subscription).await,
        Change::Added { initial: false, .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn invariant_12_a_list_from_a_stale_server_does_not_turn_back_time() {
    let harness = Harness::embedded().await;
    harness.create("gone", "x").await;
    let old = harness.server().resource_version();
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&WatchSpec::all().list(ListMode::Paged(500)));
    let mut subscription = informer.subscribe();
    drain_initial(&mut subscription).await;
    harness.delete("gone").await;
    harness.create("new", "x").await;
    assert!(matches!(
        next(&mut subscription).await,
        Change::Deleted { .. }
    ));
    assert!(matches!(
        next(&mut subscription).await,
        Change::Added { .. }
    ));

    let faults = harness.server().faults();
    let lists = configmaps().verb(Verb::List);
    faults.inject(
        lists.clone(),
        Fault::StaleList { version: old },
        Times::Next(1),
    );
    faults.send_watch_error(&configmaps(), &InjectedWatchError::Expired);
    let mut state = informer.state();
    reaches(&mut state, |state| {
        matches!(state, InformerState::Retrying { .. })
    })
    .await;
    eventually("a second list", || {
        harness.server().stats().count(&lists) >= 3
    })
    .await;
    reaches(&mut state, |state| matches!(state, InformerState::Synced)).await;
    let lister = informer.lister();
    assert!(lister.get(&harness.key("gone")).unwrap().is_none());
    assert!(lister.get(&harness.key("new")).unwrap().is_some());
    assert_eq!(
        subscription.backlog(),
        0,
        "nothing changed, so nothing is delivered"
    );
    let asked = harness.server().stats().requests(&lists);
    let retried = &asked.last().unwrap().request;
    assert!(
        format!("{retried:?}").contains("NotOlderThan"),
        "{retried:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn invariants_13_and_14_the_relist_delivers_what_was_missed() {
    let harness = Harness::embedded().await;
    for name in ["kept", "missed", "replaced"] {
        harness.create(name, "1").await;
    }
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&WatchSpec::all());
    let mut subscription = informer.subscribe();
    drain_initial(&mut subscription).await;
    let old_uid = informer
        .lister()
        .get(&harness.key("replaced"))
        .unwrap()
        .unwrap()
        .uid()
        .unwrap()
        .to_owned();

    let faults = harness.server().faults();
    let outage = faults.respond(
        configmaps().verb(Verb::Watch),
        StatusCode::INTERNAL_SERVER_ERROR,
        Times::Always,
    );
    faults.cut_watches(&configmaps(), Cut::Clean);
    harness.delete("missed").await;
    harness.delete("replaced").await;
    harness.create("replaced", "2").await;
    faults.compact();
    let mut state = informer.state();
    reaches(&mut state, |state| {
        matches!(state, InformerState::Retrying { .. })
    })
    .await;
    faults.remove(outage);
    reaches(&mut state, |state| matches!(state, InformerState::Synced)).await;

    // Everything is in the mailbox by the time the relist is announced.
    let mut delivered = Vec::new();
    while subscription.backlog() > 0 {
        delivered.push(match next(&mut subscription).await {
            Change::Deleted {
                last,
                final_state_unknown,
            } => {
                assert!(final_state_unknown);
                format!("-{}", last.name())
            }
            Change::Added { new, initial } => {
                assert!(!initial);
                assert_ne!(new.uid(), Some(old_uid.as_str()));
                format!("+{}", new.name())
            }
            other => panic!("{other:?}"),
        });
    }
    delivered.sort();
    assert_eq!(
        delivered,
        ["+replaced", "-missed", "-replaced"],
        "deleted before added, nothing for the kept one"
    );
}

#[tokio::test(start_paused = true)]
async fn invariant_15_a_slow_subscriber_costs_one_entry_per_key_and_blocks_no_other() {
    let harness = Harness::embedded().await;
    for index in 0..5 {
        harness.create(&format!("n{index}"), "start").await;
    }
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&WatchSpec::all());
    let (mut slow, mut quick) = (informer.subscribe(), informer.subscribe());
    drain_initial(&mut slow).await;
    drain_initial(&mut quick).await;
    for round in 0..200 {
        let name = format!("n{}", round % 5);
        harness.update(&name, &round.to_string()).await;
        assert!(
            matches!(next(&mut quick).await, Change::Updated { new, .. } if new.text() == round.to_string())
        );
    }
    assert_eq!(slow.backlog(), 5, "200 changes of 5 keys are 5 entries");
    for index in 0..5 {
        let change = next(&mut slow).await;
        let Change::Updated { old, new, .. } = change else {
            panic!("{change:?}")
        };
        assert_eq!(
            (old.text(), new.text()),
            ("start", (195 + index).to_string().as_str())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_16_bookmarks_keep_an_idle_kind_inside_the_window() {
    let harness = Harness::embedded().await;
    let cache = Cache::new(harness.client.clone());
    // Long enough that only a bookmark can move the version.
    let spec = WatchSpec::all()
        .namespace("default")
        .idle_timeout(Duration::from_mins(10));
    let informer = cache.informer::<Note>(&spec);
    let mut subscription = informer.subscribe();
    drain_initial(&mut subscription).await;
    for index in 0..20 {
        harness.create(&format!("elsewhere{index}"), "x").await;
    }
    let current = harness.server().resource_version();
    let seen = || number(&cache.snapshot()[0].resource_version);
    sleep(Duration::from_secs(150)).await;
    assert!(
        seen() >= current,
        "no bookmark moved the version: {} < {current}",
        seen()
    );
    assert_eq!(
        seen(),
        harness.server().resource_version(),
        "nothing else may write meanwhile"
    );
    let faults = harness.server().faults();
    faults.compact();
    faults.cut_watches(&configmaps(), Cut::MidFrame);
    let stats = harness.server().stats();
    let mut state = informer.state();
    reaches(&mut state, |state| {
        matches!(state, InformerState::Retrying { .. })
    })
    .await;
    reaches(&mut state, |state| matches!(state, InformerState::Synced)).await;
    assert_eq!(
        stats.count(&configmaps().streaming_list(true)),
        1,
        "it had to list again"
    );
    assert_eq!(subscription.backlog(), 0, "bookmarks are not changes");
}

#[tokio::test(start_paused = true)]
async fn invariant_17_every_form_of_an_expired_version_ends_in_a_correct_relist() {
    type Break = fn(&Harness);
    let in_stream: Break = |harness| {
        harness
            .server()
            .faults()
            .send_watch_error(&configmaps(), &InjectedWatchError::Expired);
    };
    let as_status: Break = |harness| {
        let faults = harness.server().faults();
        faults.respond(
            configmaps().verb(Verb::Watch).streaming_list(false),
            StatusCode::GONE,
            Times::Next(1),
        );
        faults.cut_watches(&configmaps(), Cut::MidFrame);
    };
    let expired_token: Break = |harness| {
        let faults = harness.server().faults();
        faults.respond(
            configmaps().verb(Verb::List).query("continue="),
            StatusCode::GONE,
            Times::Next(1),
        );
        faults.send_watch_error(&configmaps(), &InjectedWatchError::Expired);
    };
    let too_large: Break = |harness| {
        harness
            .server()
            .faults()
            .send_watch_error(&configmaps(), &InjectedWatchError::TooLargeVersion);
    };
    for (name, list, broken) in [
        ("in the stream", ListMode::Auto, in_stream),
        ("in the stream, paged", ListMode::Paged(2), in_stream),
        ("as HTTP status", ListMode::Auto, as_status),
        ("expired continue token", ListMode::Paged(2), expired_token),
        ("too large version", ListMode::Auto, too_large),
        ("too large version, paged", ListMode::Paged(2), too_large),
    ] {
        let harness = Harness::embedded().await;
        for index in 0..7 {
            harness.create(&format!("n{index}"), "x").await;
        }
        let cache = Cache::new(harness.client.clone());
        let informer =
            cache.informer::<Note>(&WatchSpec::all().namespace(&harness.namespace).list(list));
        let mut subscription = informer.subscribe();
        assert_eq!(drain_initial(&mut subscription).await.len(), 7, "{name}");
        let faults = harness.server().faults();
        let outage = faults.stall_watches(configmaps());
        harness.update("n1", "y").await;
        harness.delete("n2").await;
        // The version is really gone: a client that does not list again never recovers.
        faults.compact();
        broken(&harness);
        drop(outage);
        let mut delivered = Vec::new();
        for _ in 0..2 {
            delivered.push(match next(&mut subscription).await {
                Change::Updated { new, .. } => format!("~{}", new.name()),
                Change::Deleted { last, .. } => format!("-{}", last.name()),
                other => panic!("{name}: {other:?}"),
            });
        }
        delivered.sort();
        assert_eq!(delivered, ["-n2", "~n1"], "{name}");
        let mut state = informer.state();
        reaches(&mut state, |state| matches!(state, InformerState::Synced)).await;
        sleep(Duration::from_mins(2)).await;
        assert_eq!(
            subscription.backlog(),
            0,
            "{name}: unchanged objects were delivered"
        );
        harness.update("n3", "z").await;
        assert!(
            matches!(next(&mut subscription).await, Change::Updated { .. }),
            "{name}: it goes on"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_17_pages_that_expire_again_and_again_are_given_up() {
    let harness = Harness::embedded().await;
    for index in 0..7 {
        harness.create(&format!("n{index}"), "x").await;
    }
    let faults = harness.server().faults();
    let later_pages = configmaps().verb(Verb::List).query("continue=");
    faults.respond(later_pages, StatusCode::GONE, Times::Always);
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&harness.spec().list(ListMode::Paged(2)));
    informer.synced().await.unwrap();
    assert_eq!(informer.lister().len(), Ok(7));
}

#[tokio::test(start_paused = true)]
async fn invariant_18_the_server_is_given_the_time_it_asks_for() {
    let harness = Harness::embedded().await;
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&WatchSpec::all());
    informer.synced().await.unwrap();
    let faults = harness.server().faults();
    let stats = harness.server().stats();
    let watches = configmaps().verb(Verb::Watch);
    let mut state = informer.state();
    for as_status in [true, false] {
        let before = stats.count(&watches);
        if as_status {
            faults.inject(
                watches.clone(),
                Fault::too_many_requests(40),
                Times::Next(1),
            );
            faults.cut_watches(&watches, Cut::Clean);
            eventually("refused", || stats.count(&watches) > before).await;
        } else {
            faults.send_watch_error(
                &watches,
                &InjectedWatchError::TooManyRequests { retry_after: 40 },
            );
        }
        reaches(&mut state, |state| {
            matches!(state, InformerState::Retrying { .. })
        })
        .await;
        let refused = Instant::now();
        reaches(&mut state, |state| matches!(state, InformerState::Synced)).await;
        let waited = refused.elapsed();
        assert!(
            waited >= Duration::from_secs(39),
            "waited only {waited:?}, status: {as_status}"
        );
        assert!(waited <= Duration::from_secs(62), "waited {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_18_watches_ask_for_different_durations() {
    let harness = Harness::embedded().await;
    let cache = Cache::new(harness.client.clone());
    let mut seconds = std::collections::BTreeSet::new();
    let informers: Vec<_> = (0..20)
        .map(|index| cache.informer::<Note>(&WatchSpec::all().namespace(&format!("n{index}"))))
        .collect();
    for informer in &informers {
        informer.synced().await.unwrap();
    }
    for record in harness
        .server()
        .stats()
        .requests(&configmaps().verb(Verb::Watch))
    {
        let text = format!("{:?}", record.request);
        let (_, rest) = text.split_once("timeoutSeconds=").expect("a time limit");
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let value: u64 = digits.parse().unwrap();
        assert!((300..600).contains(&value));
        seconds.insert(value);
    }
    assert!(seconds.len() > 5, "all alike: {seconds:?}");
}

#[tokio::test(start_paused = true)]
async fn invariant_19_a_dead_peer_is_noticed_within_the_idle_limit_and_resumed_without_a_list() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&WatchSpec::all());
    let mut subscription = informer.subscribe();
    drain_initial(&mut subscription).await;
    let stats = harness.server().stats();
    let stall = harness.server().faults().stall_watches(configmaps());
    harness.update("a", "2").await;
    let silent_since = Instant::now();
    let watches = configmaps().verb(Verb::Watch);
    eventually("a new watch", || stats.count(&watches) == 2).await;
    let noticed = silent_since.elapsed();
    assert!(
        noticed <= Duration::from_secs(61),
        "noticed after {noticed:?}"
    );
    drop(stall);
    assert!(
        matches!(next(&mut subscription).await, Change::Updated { new, .. } if new.text() == "2")
    );
    assert_eq!(
        stats.count(&configmaps().streaming_list(true)),
        1,
        "it had to list again"
    );
    assert_eq!(stats.count(&configmaps().verb(Verb::List)), 0);
}

#[tokio::test(start_paused = true)]
async fn invariant_19_a_quiet_kind_causes_no_error() {
    let harness = Harness::embedded().await;
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&harness.spec());
    informer.synced().await.unwrap();
    let mut states = informer.state();
    states.mark_unchanged();
    sleep(Duration::from_secs(3600)).await;
    let info = &cache.snapshot()[0];
    assert_eq!((info.state, info.errors), ("synced", 0), "{info:?}");
    assert!(info.watches <= 62, "{} watches in an hour", info.watches);
    assert_eq!(info.lists, 1);
}

#[tokio::test(start_paused = true)]
async fn invariant_20_an_object_that_does_not_decode_concerns_its_own_key_only() {
    let harness = Harness::embedded().await;
    harness.create("good", "1").await;
    harness.create("turns", "1").await;
    let raw = |name: &str, text: serde_json::Value, version: &str| {
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"text": text},
            "metadata": {"name": name, "namespace": harness.namespace, "uid": format!("{name}{version}")}});
        assert!(harness.server().faults().inject_raw(
            "configmaps",
            &harness.namespace,
            name,
            object
        ));
    };
    raw("bad", json!(5), "1");
    let cache = Cache::new(harness.client.clone());
    for (round, list) in [ListMode::Auto, ListMode::Paged(1)].into_iter().enumerate() {
        let informer = cache.informer::<Note>(&harness.spec().list(list));
        let mut subscription = informer.subscribe();
        let initial = drain_initial(&mut subscription).await;
        assert_eq!(initial.len(), 3, "{initial:?}");
        let bad = harness.key("bad");
        let undecodable = informer
            .lister()
            .undecodable(&bad)
            .unwrap()
            .expect("marked");
        assert!(
            undecodable.error.contains("invalid type"),
            "{}",
            undecodable.error
        );
        assert!(informer.lister().get(&bad).unwrap().is_none());

        // In the stream: one that was good turns bad; the last good state is kept.
        raw("turns", json!(6), "2");
        let change = next(&mut subscription).await;
        assert!(
            matches!(&change, Change::Undecodable(o) if o.key == harness.key("turns")),
            "{change:?}"
        );
        assert_eq!(
            informer
                .lister()
                .get(&harness.key("turns"))
                .unwrap()
                .unwrap()
                .text(),
            "1"
        );
        harness.update("good", &format!("other{round}")).await;
        assert!(
            matches!(next(&mut subscription).await, Change::Updated { .. }),
            "other keys continue"
        );
        assert_eq!(
            cache.snapshot()[0].undecodable.len(),
            2,
            "shown to the operator"
        );

        // A relist finds the same state: nothing is delivered, nothing is swept.
        let lists = cache.snapshot()[0].lists;
        let faults = harness.server().faults();
        faults.send_watch_error(&configmaps(), &InjectedWatchError::Expired);
        eventually("a relist", || {
            let info = &cache.snapshot()[0];
            info.lists > lists && info.state == "synced"
        })
        .await;
        assert_eq!(subscription.backlog(), 0, "the relist delivered something");
        assert!(
            informer
                .lister()
                .get(&harness.key("turns"))
                .unwrap()
                .is_some()
        );

        // Cured.
        raw("bad", json!("fine"), "2");
        assert!(
            matches!(next(&mut subscription).await, Change::Added { new, .. } if new.text() == "fine")
        );
        assert!(informer.lister().undecodable(&bad).unwrap().is_none());
        raw("bad", json!(5), "1");
        next(&mut subscription).await;
        let key = informer.key().clone();
        drop((informer, subscription));
        cache.closed(&key).await;
        harness.delete("turns").await;
        harness.create("turns", "1").await;
        harness.delete("bad").await;
        raw("bad", json!(5), "1");
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_21_a_server_without_streaming_lists_is_asked_once() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    harness.server().faults().refuse_streaming_lists();
    let cache = Cache::new(harness.client.clone());
    let start = Instant::now();
    for namespace in ["default", harness.namespace.as_str()] {
        let informer = cache.informer::<Note>(&WatchSpec::all().namespace(namespace));
        informer.synced().await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "the fallback waited");
    let stats = harness.server().stats();
    assert_eq!(
        stats.count(&configmaps().streaming_list(true)),
        1,
        "asked again"
    );
    assert_eq!(stats.count(&configmaps().verb(Verb::List)), 2);
}

#[tokio::test(start_paused = true)]
async fn invariant_21_a_request_that_is_refused_for_itself_spoils_nothing_for_others() {
    let harness = Harness::embedded().await;
    let cache = Cache::new(harness.client.clone());
    let unsupported = WatchSpec::all().fields("spec.nothing=1").unwrap();
    let bad = cache.informer::<Note>(&unsupported);
    let mut state = bad.state();
    reaches(&mut state, |s| {
        matches!(s, InformerState::Waiting(WaitReason::Refused))
    })
    .await;
    let good = cache.informer::<Note>(&harness.spec());
    good.synced().await.unwrap();
    let stats = harness.server().stats();
    let streamed = configmaps()
        .namespace(&harness.namespace)
        .streaming_list(true);
    assert_eq!(
        stats.count(&streamed),
        1,
        "streaming lists were given up for all"
    );
}

/// A server older than streaming lists: it ignores the parameter and simply watches.
#[tokio::test(start_paused = true)]
async fn invariant_21_a_server_that_ignores_the_parameter_is_detected() {
    let service = tower::service_fn(|request: http::Request<Body>| async move {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let object = r#"{"metadata":{"name":"a","resourceVersion":"5","uid":"u"}}"#;
        let line = if query.contains("watch=true") {
            format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n")
        } else {
            format!("{{\"metadata\":{{\"resourceVersion\":\"7\"}},\"items\":[{object}]}}")
        };
        let first = stream::iter([Ok::<_, std::io::Error>(http_body::Frame::data(
            Bytes::from(line),
        ))]);
        let body = if query.contains("watch=true") {
            StreamBody::new(first.chain(stream::pending()).boxed())
        } else {
            StreamBody::new(first.boxed())
        };
        Ok::<_, std::io::Error>(http::Response::new(body))
    });
    let cache = Cache::new(Client::new(service, "default"));
    let informer = cache.informer::<Note>(&WatchSpec::all());
    informer.synced().await.unwrap();
    assert_eq!(informer.lister().len(), Ok(1));
    let start = Instant::now();
    let second = cache.informer::<Note>(&WatchSpec::all().namespace("default"));
    second.synced().await.unwrap();
    assert_eq!(
        start.elapsed(),
        Duration::ZERO,
        "remembered for the whole server"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_storage_was_restored_is_followed_back() {
    let harness = Harness::embedded().await;
    harness.create("kept", "1").await;
    let restored = harness.server().resource_version();
    let cache = Cache::new(harness.client.clone());
    let spec = WatchSpec::all()
        .namespace(&harness.namespace)
        .list(ListMode::Paged(500));
    let informer = cache.informer::<Note>(&spec);
    let mut subscription = informer.subscribe();
    drain_initial(&mut subscription).await;
    harness.create("lost", "1").await;
    harness.update("kept", "2").await;
    next(&mut subscription).await;
    next(&mut subscription).await;
    // From now on the server knows only the restored state, and says so.
    let faults = harness.server().faults();
    faults.inject(configmaps().verb(Verb::List).query("NotOlderThan"), Fault::Body {
        code: StatusCode::GATEWAY_TIMEOUT,
        content_type: "application/json".into(),
        body: json!({"kind": "Status", "code": 504, "message": "Timeout: Too large resource version: 9, current: 2"})
            .to_string().into_bytes(),
    }, Times::Always);
    faults.inject(
        configmaps().verb(Verb::List),
        Fault::StaleList { version: restored },
        Times::Always,
    );
    faults.respond(
        configmaps().verb(Verb::Watch),
        StatusCode::INTERNAL_SERVER_ERROR,
        Times::Always,
    );
    faults.send_watch_error(&configmaps(), &InjectedWatchError::Expired);
    let mut delivered = vec![next(&mut subscription).await, next(&mut subscription).await];
    delivered.sort_by_key(weft_runtime::Change::key);
    assert!(
        matches!(&delivered[0], Change::Updated { new, .. } if new.text() == "1"),
        "{delivered:?}"
    );
    assert!(
        matches!(&delivered[1], Change::Deleted { last, .. } if last.name() == "lost"),
        "{delivered:?}"
    );
}
