//! Faulty servers: nothing panics, nothing spins, nothing is silently stale.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::StatusCode;
use tokio::time::{Instant, sleep};
use weft_apiserver::{Cut, Fault, Times, Verb};
use weft_runtime::{
    Action, Cache, Change, Controller, ControllerState, DegradedReason, Informer, InformerState,
    ObjectKey, WaitReason, WatchSpec, reconcile_with,
};

use crate::{
    harness::{CustomKind, Harness, Note, configmaps, drain_initial, eventually, next, reaches},
    valve::Valve,
};

#[tokio::test(start_paused = true)]
async fn after_a_long_outage_one_answer_brings_back_all_informers() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let valve = Valve::open();
    let cache = Cache::new(valve.before(&harness.client));
    let informers = [
        harness.spec(),
        WatchSpec::all(),
        WatchSpec::all().labels("!absent").unwrap(),
    ]
    .map(|spec| cache.informer::<Note>(&spec));
    let mut subscriptions = informers.each_ref().map(Informer::subscribe);
    for subscription in &mut subscriptions {
        drain_initial(subscription).await;
    }
    valve.set_open(false);
    harness.update("a", "2").await;
    // Their versions are gone when they come back.
    harness.server().faults().compact();
    sleep(Duration::from_mins(10)).await;
    valve.set_open(true);
    // They wait for half a minute at least, unless somebody finds that the server is back.
    let began = Instant::now();
    let newcomer = cache.informer::<Note>(&WatchSpec::all().labels("!other").unwrap());
    drain_initial(&mut newcomer.subscribe()).await;
    for subscription in &mut subscriptions {
        assert!(
            matches!(next(subscription).await, Change::Updated { new, .. } if new.text() == "2")
        );
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_list_is_a_state_not_a_loop_and_recovers() {
    for (fault, reason) in [
        (Fault::Unauthorised, WaitReason::Forbidden),
        (
            Fault::status(StatusCode::UNAUTHORIZED),
            WaitReason::Forbidden,
        ),
        (
            Fault::status(StatusCode::NOT_FOUND),
            WaitReason::KindMissing,
        ),
        (
            Fault::status(StatusCode::INTERNAL_SERVER_ERROR),
            WaitReason::Unreachable,
        ),
        (
            Fault::status(StatusCode::SERVICE_UNAVAILABLE),
            WaitReason::Unreachable,
        ),
        (Fault::Disconnect, WaitReason::Unreachable),
        (
            Fault::Body {
                code: StatusCode::OK,
                content_type: "text/html".into(),
                body: b"<html>".to_vec(),
            },
            WaitReason::Unreachable,
        ),
    ] {
        let harness = Harness::embedded().await;
        harness.create("a", "1").await;
        let faults = harness.server().faults();
        let outage = faults.inject(configmaps().verb(Verb::Watch), fault.clone(), Times::Always);
        let second = faults.inject(configmaps().verb(Verb::List), fault.clone(), Times::Always);
        let errors: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = errors.clone();
        let cache = Cache::builder(harness.client.clone())
            .on_watch_error(move |_, error| seen.lock().unwrap().push(error.to_string()))
            .build();
        let informer = cache.informer::<Note>(&harness.spec());
        let mut state = informer.state();
        reaches(
            &mut state,
            |s| matches!(s, InformerState::Waiting(why) if *why == reason),
        )
        .await;
        sleep(Duration::from_mins(10)).await;
        let asked = harness.server().stats().count(&configmaps());
        assert!(
            (10..=60).contains(&asked),
            "{fault:?}: {asked} requests in ten minutes"
        );
        assert!(
            errors.lock().unwrap().len() >= 10,
            "the hook got {:?}",
            errors.lock().unwrap()
        );
        let info = &cache.snapshot()[0];
        assert!(
            info.last_error.is_some() && info.is_stuck(Duration::from_secs(500)),
            "{info:?}"
        );
        faults.remove(outage);
        faults.remove(second);
        let recovered = Instant::now();
        informer.synced().await.unwrap();
        assert!(recovered.elapsed() <= Duration::from_secs(61));
        assert_eq!(informer.lister().len(), Ok(1));
        assert!(!cache.snapshot()[0].is_stuck(Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_kind_is_waited_for() {
    let harness = Harness::embedded().await;
    let custom = CustomKind::new(&harness);
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer_of::<weft_runtime::MetadataOnly>(&custom.kind, &WatchSpec::all());
    let mut state = informer.state();
    reaches(&mut state, |s| {
        matches!(s, InformerState::Waiting(WaitReason::KindMissing))
    })
    .await;
    custom.install().await;
    informer.synced().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_at_random_is_followed_all_the_same() {
    let harness = Harness::embedded().await;
    let faults = harness.server().faults();
    for (verb, rate) in [(Verb::Watch, 0.5), (Verb::List, 0.5)] {
        faults.inject(
            configmaps().verb(verb),
            Fault::status(StatusCode::INTERNAL_SERVER_ERROR),
            Times::Rate(rate),
        );
        faults.inject(
            configmaps().verb(verb),
            Fault::Disconnect,
            Times::Rate(rate / 2.0),
        );
    }
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&harness.spec());
    for round in 0..40 {
        let name = format!("n{}", round % 7);
        if round < 7 {
            harness.create(&name, &round.to_string()).await;
        } else {
            harness.update(&name, &round.to_string()).await;
        }
        if round % 4 == 0 {
            faults.cut_watches(&configmaps(), Cut::MidFrame);
        }
        if round % 10 == 9 {
            faults.compact();
        }
        sleep(Duration::from_secs(3)).await;
    }
    faults.clear();
    eventually("caught up", || {
        (33..40).all(|round| {
            let note = informer
                .lister()
                .get(&harness.key(&format!("n{}", round % 7)))
                .unwrap();
            note.is_some_and(|note| note.text() == round.to_string())
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_whose_source_cannot_follow_says_so_and_recovers() {
    let harness = Harness::embedded().await;
    let cluster = harness.cluster();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .build(reconcile_with(|_| async { Ok(Action::await_change()) }));
    controller.start();
    let mut state = controller.state();
    reaches(&mut state, |s| *s == ControllerState::Running).await;
    let faults = harness.server().faults();
    let outage = faults.respond(
        configmaps().verb(Verb::Watch),
        StatusCode::SERVICE_UNAVAILABLE,
        Times::Always,
    );
    faults.cut_watches(&configmaps(), Cut::MidFrame);
    reaches(&mut state, |s| {
        matches!(
            s,
            ControllerState::Degraded(DegradedReason::SourceStale { .. })
        )
    })
    .await;
    faults.remove(outage);
    reaches(&mut state, |s| *s == ControllerState::Running).await;
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_do_not_spin() {
    let harness = Harness::embedded().await;
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&harness.spec());
    informer.synced().await.unwrap();
    let empty = Fault::Body {
        code: StatusCode::OK,
        content_type: "application/json".into(),
        body: vec![],
    };
    let faults = harness.server().faults();
    faults.inject(configmaps().verb(Verb::Watch), empty, Times::Always);
    faults.cut_watches(&configmaps(), Cut::Clean);
    sleep(Duration::from_mins(10)).await;
    let asked = harness.server().stats().count(&configmaps());
    assert!(
        (10..=60).contains(&asked),
        "{asked} requests in ten minutes"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_cut_off_for_a_while_catches_up() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&harness.spec());
    let mut subscription = informer.subscribe();
    drain_initial(&mut subscription).await;
    harness
        .server()
        .faults()
        .drop_client(configmaps().verb(Verb::Watch), Duration::from_mins(5));
    harness.update("a", "2").await;
    let change = loop {
        if subscription.backlog() > 0 {
            break next(&mut subscription).await;
        }
        sleep(Duration::from_secs(1)).await;
    };
    assert!(matches!(change, Change::Updated { new, .. } if new.text() == "2"));
}
