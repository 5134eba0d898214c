//! Invariants 1 to 8: one loop per informer key, counted handles, removal that every dependent
//! notices.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use weft_apiserver::Verb;
use weft_runtime::{
    Action, Cache, Change, Controller, ControllerState, DegradedReason, MetadataOnly, ObjectKey,
    StopReason, WatchSpec, reconcile_with,
};

use crate::harness::{Harness, Note, configmaps, drain_initial, eventually, next, reaches};

#[tokio::test]
async fn invariant_1_any_number_of_consumers_is_one_watch() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cache = Cache::new(harness.client.clone());
    let mut held = Vec::new();
    for _ in 0..50 {
        let informer = cache.informer::<Note>(&WatchSpec::all());
        informer.synced().await.unwrap();
        held.push((informer.subscribe(), informer.lister()));
    }
    let stats = harness.server().stats();
    assert_eq!(stats.open_watches(&configmaps()), 1);
    let asked =
        stats.count(&configmaps().verb(Verb::Watch)) + stats.count(&configmaps().verb(Verb::List));
    assert_eq!(asked, 1, "one streaming list serves them all");
    assert_eq!(
        held.iter()
            .filter(|(_, lister)| lister.len() == Ok(1))
            .count(),
        50
    );
}

#[tokio::test]
async fn invariant_1_another_projection_or_namespace_is_another_informer() {
    let harness = Harness::embedded().await;
    let cache = Cache::new(harness.client.clone());
    let all = WatchSpec::all();
    let kind = cache.informer::<Note>(&all).key().kind.clone();
    let first = cache.informer::<Note>(&all);
    let second = cache.informer_of::<MetadataOnly>(&kind, &all);
    let third = cache.informer::<Note>(&all.clone().namespace("default"));
    let (a, b, c) = tokio::join!(first.synced(), second.synced(), third.synced());
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert_eq!(harness.server().stats().open_watches(&configmaps()), 3);
}

#[tokio::test]
async fn invariant_2_selectors_that_mean_the_same_share_and_others_never() {
    let harness = Harness::embedded().await;
    let cache = Cache::new(harness.client.clone());
    let with = |labels: &str| cache.informer::<Note>(&WatchSpec::all().labels(labels).unwrap());
    let same = [
        with("a=1,b in (x,y)"),
        with(" b in ( y , x ) , a = 1"),
        with("a==1,b in (x, y)"),
    ];
    for informer in &same {
        assert_eq!(informer.key(), same[0].key());
        informer.synced().await.unwrap();
    }
    let other = with("a=1,b in (x)");
    assert_ne!(other.key(), same[0].key());
    other.synced().await.unwrap();
    let fields = |text: &str| {
        let spec = WatchSpec::all().fields(text).unwrap();
        cache.informer::<Note>(&spec).key().clone()
    };
    assert_eq!(
        fields("metadata.name=a,metadata.namespace!=b"),
        fields(" metadata.namespace!=b,metadata.name==a".trim())
    );
    assert_ne!(fields("metadata.name=a"), fields("metadata.name!=a"));
    assert_eq!(harness.server().stats().open_watches(&configmaps()), 2);
    assert!(
        WatchSpec::all().labels("a in (").is_err(),
        "a bad selector is an error at once"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn invariant_3_acquiring_is_free_of_races() {
    let harness = Harness::any().await;
    harness.create("a", "1").await;
    let cache = Cache::new(harness.client.clone());
    let spec = harness.spec();
    let together: Vec<_> = (0..64)
        .map(|_| {
            let (cache, spec) = (cache.clone(), spec.clone());
            tokio::spawn(async move { cache.informer::<Note>(&spec) })
        })
        .collect();
    let mut informers = Vec::new();
    for task in together {
        informers.push(task.await.unwrap());
    }
    assert_eq!(cache.snapshot().len(), 1);
    assert_eq!(cache.snapshot()[0].consumers, 64);
    informers.clear();

    // Acquiring while the last handle is dropped always gives a live informer.
    for _ in 0..300 {
        let old = cache.informer::<Note>(&spec);
        let drop_it = tokio::spawn(async move { drop(old) });
        let new = cache.informer::<Note>(&spec);
        drop_it.await.unwrap();
        new.synced()
            .await
            .expect("never a handle to a dead informer");
        assert_eq!(new.lister().len(), Ok(1));
    }
}

/// An informer that was evicted must not take its successor with it.
#[tokio::test]
async fn invariant_3_an_evicted_informer_does_not_remove_its_successor() {
    for _ in 0..200 {
        let harness = Harness::embedded().await;
        let cache = Cache::new(harness.client.clone());
        let old = cache.informer::<Note>(&WatchSpec::all());
        tokio::task::yield_now().await;
        cache.evict(old.key(), &StopReason::Evicted("test".into()));
        let key = old.key().clone();
        drop(old);
        let new = cache.informer::<Note>(&WatchSpec::all());
        new.synced().await.unwrap();
        let third = cache.informer::<Note>(&WatchSpec::all());
        third.synced().await.unwrap();
        assert_eq!(cache.snapshot().len(), 1);
        assert!(
            cache.evict(&key, &StopReason::Evicted("test".into())),
            "unlisted"
        );
        assert!(new.lister().list().is_err() && third.lister().list().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_4_the_last_handle_closes_the_connection_and_frees_the_store() {
    let harness = Harness::embedded().await;
    for index in 0..10 {
        harness.create(&format!("n{index}"), "x").await;
    }
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&WatchSpec::all());
    informer.synced().await.unwrap();
    let objects: Vec<Weak<Note>> = informer
        .lister()
        .list()
        .unwrap()
        .iter()
        .map(Arc::downgrade)
        .collect();
    assert_eq!(objects.len(), 10);
    let (key, second) = (informer.key().clone(), informer.clone());
    drop(informer);
    tokio::task::yield_now().await;
    assert_eq!(
        harness.server().stats().open_watches(&configmaps()),
        1,
        "one handle is left"
    );
    drop(second);
    cache.closed(&key).await;
    eventually("connection closed", || {
        harness.server().stats().open_watches(&configmaps()) == 0
    })
    .await;
    assert!(
        objects.iter().all(|object| object.upgrade().is_none()),
        "objects were not freed"
    );
    assert!(cache.snapshot().is_empty());
}

#[tokio::test(start_paused = true)]
async fn invariant_4_linger_bridges_a_gap_between_consumers() {
    let harness = Harness::embedded().await;
    let cache = Cache::builder(harness.client.clone())
        .linger(Duration::from_secs(5))
        .build();
    cache
        .informer::<Note>(&WatchSpec::all())
        .synced()
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let stats = harness.server().stats();
    assert_eq!(stats.open_watches(&configmaps()), 1, "it lingers");
    let again = cache.informer::<Note>(&WatchSpec::all());
    again.synced().await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(
        stats.count(&configmaps()),
        1,
        "the lingering informer was taken up"
    );
    let key = again.key().clone();
    drop(again);
    let start = tokio::time::Instant::now();
    cache.closed(&key).await;
    assert!(start.elapsed() >= Duration::from_secs(5) && start.elapsed() <= Duration::from_secs(6));
    eventually("connection closed", || {
        stats.open_watches(&configmaps()) == 0
    })
    .await;
}

#[tokio::test]
async fn invariant_5_dropping_needs_no_runtime_and_does_not_block() {
    let harness = Harness::embedded().await;
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&WatchSpec::all());
    informer.synced().await.unwrap();
    let (key, subscription, lister) = (
        informer.key().clone(),
        informer.subscribe(),
        informer.lister(),
    );
    let thread = std::thread::spawn(move || drop((informer, subscription, lister)));
    thread.join().expect("dropping outside a runtime is fine");
    cache.closed(&key).await;
    eventually("connection closed", || {
        harness.server().stats().open_watches(&configmaps()) == 0
    })
    .await;
}

#[tokio::test]
async fn invariant_6_a_reader_holds_its_informer_and_never_creates_one() {
    let harness = Harness::any().await;
    harness.create("a", "1").await;
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&harness.spec());
    informer.synced().await.unwrap();
    let (key, lister) = (informer.key().clone(), informer.lister());
    let index = informer.add_index("text", |note: &Note| vec![note.text().to_owned()]);
    drop(informer);
    harness.update("a", "2").await;
    eventually("the reader keeps following", || {
        lister.get(&harness.key("a")).unwrap().unwrap().text() == "2"
    })
    .await;
    assert_eq!(index.get(&"2".to_owned()).unwrap().len(), 1);
    assert!(cache.evict(&key, &StopReason::Evicted("test".into())));
    let error = lister.get(&harness.key("a")).unwrap_err();
    assert_eq!(error.reason, StopReason::Evicted("test".into()));
    assert!(index.get(&"2".to_owned()).is_err());
    assert!(
        cache.snapshot().is_empty(),
        "reading must not bring the informer back"
    );
}

#[tokio::test]
async fn invariant_7_every_dependent_is_notified_of_an_eviction() {
    let harness = Harness::any().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let informer = cluster.cache().informer::<Note>(&harness.spec());
    let mut subscription = informer.subscribe();
    drain_initial(&mut subscription).await;
    let mut informer_state = informer.state();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .build(reconcile_with(|_| async { Ok(Action::await_change()) }));
    controller.start();
    let mut state = controller.state();
    reaches(&mut state, |state| *state == ControllerState::Running).await;

    let reason = StopReason::Evicted("by the operator".into());
    assert!(cluster.cache().evict(informer.key(), &reason));
    assert!(
        !cluster.cache().evict(informer.key(), &reason),
        "it is gone already"
    );

    assert!(matches!(next(&mut subscription).await, Change::Closed(why) if why == reason));
    assert!(subscription.next().await.is_none(), "nothing follows");
    assert!(informer.lister().list().is_err());
    assert!(informer.synced().await.is_err());
    reaches(&mut informer_state, |state| state.name() == "stopped").await;
    let degraded = reaches(&mut state, |state| {
        matches!(state, ControllerState::Degraded(_))
    })
    .await;
    assert!(matches!(
        &degraded,
        ControllerState::Degraded(DegradedReason::SourceClosed { source, reason })
            if source == "configmaps/v1" && reason == "evicted: by the operator"
    ));
    // A new subscription to the dead informer is closed as well.
    let mut late = informer.subscribe();
    assert!(matches!(next(&mut late).await, Change::Closed(_)));
    controller.restart().await;
    reaches(&mut state, |state| *state == ControllerState::Running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invariant_8_a_consumer_that_panics_or_leaves_disturbs_no_other() {
    let harness = Harness::any().await;
    harness.create("a", "1").await;
    let cache = Cache::new(harness.client.clone());
    let spec = harness.spec();
    // The first consumer, whose task panics.
    let first = tokio::spawn({
        let (cache, spec) = (cache.clone(), spec.clone());
        async move {
            let mut subscription = cache.informer::<Note>(&spec).subscribe();
            drain_initial(&mut subscription).await;
            panic!("on purpose");
        }
    });
    let informer = cache.informer::<Note>(&spec);
    let mut other = informer.subscribe();
    drain_initial(&mut other).await;
    assert!(first.await.is_err());
    let broken = informer.add_index("broken", |note: &Note| {
        assert!(note.text() != "2", "on purpose");
        vec![0]
    });
    harness.update("a", "2").await;
    let change = next(&mut other).await;
    assert!(matches!(change, Change::Updated { new, .. } if new.text() == "2"));
    assert!(
        broken.get(&0).unwrap().is_empty(),
        "the object is left out of the broken index"
    );
    harness.update("a", "3").await;
    assert!(matches!(next(&mut other).await, Change::Updated { new, .. } if new.text() == "3"));
    assert_eq!(broken.get(&0).unwrap().len(), 1);
}

#[tokio::test]
async fn full_types_dynamic_objects_and_projections_are_cached_alike() {
    let harness = Harness::any().await;
    harness.create("a", "1").await;
    let cache = Cache::new(harness.client.clone());
    let full = cache.informer::<ConfigMap>(&harness.spec());
    let kind = full.key().kind.clone();
    let dynamic = cache.informer_of::<kube::api::DynamicObject>(&kind, &harness.spec());
    full.synced().await.unwrap();
    dynamic.synced().await.unwrap();
    let key = harness.key("a");
    assert_eq!(
        full.lister()
            .get(&key)
            .unwrap()
            .unwrap()
            .data
            .as_ref()
            .unwrap()["text"],
        "1"
    );
    let object = dynamic.lister().get(&key).unwrap().unwrap();
    assert_eq!(object.types.as_ref().unwrap().kind, "ConfigMap");
    assert_eq!(object.data["data"]["text"], "1");
}

#[tokio::test]
async fn indexes_follow_the_store_also_when_added_late() {
    let harness = Harness::any().await;
    for (name, text) in [("a", "x"), ("b", "x"), ("c", "y")] {
        harness.create(name, text).await;
    }
    let cache = Cache::new(harness.client.clone());
    let informer = cache.informer::<Note>(&harness.spec());
    informer.synced().await.unwrap();
    let index = informer.add_index("text", |note: &Note| vec![note.text().to_owned()]);
    let names = |text: &str| -> Vec<String> {
        let keys = index.keys(&text.to_owned()).unwrap();
        keys.iter()
            .map(|key| key.name.to_string())
            .filter(|name| name.len() == 1)
            .collect()
    };
    assert_eq!(
        (names("x"), names("y")),
        (vec!["a".into(), "b".into()], vec!["c".into()])
    );
    harness.update("a", "y").await;
    eventually("moved", || names("y") == ["a", "c"] && names("x") == ["b"]).await;
    harness.delete("b").await;
    eventually("removed", || names("x").is_empty()).await;
}
