//! Invariants 25 and 28 to 38: lifecycle of a controller.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use kube::api::{Patch, PatchParams};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::{
    sync::{Notify, Semaphore},
    time::{Instant, sleep},
};
use weft_apiserver::{Times, Verb};
use weft_runtime::{
    Action, Context, Controller, ControllerState, DegradedReason, Kind, Kinded, Mapper,
    MetadataOnly, Metrics, ObjectKey, PendingReason, Reasons, ReconcileError, Reconciler,
    WatchOptions, WatchSpec, prometheus_text, reconcile_with,
};

use crate::harness::{CustomKind, Harness, Note, configmaps, eventually, reaches};

/// Counts reconciles and lets the test hold them.
#[derive(Clone)]
struct Probe {
    alive: Arc<AtomicUsize>,
    begun: Arc<Mutex<BTreeMap<String, usize>>>,
    reasons: Arc<Mutex<Vec<Reasons>>>,
    permits: Arc<Semaphore>,
    held: Arc<AtomicBool>,
}

struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Probe {
    fn new() -> Self {
        Self {
            alive: Arc::default(),
            begun: Arc::default(),
            reasons: Arc::default(),
            permits: Arc::new(Semaphore::new(0)),
            held: Arc::default(),
        }
    }

    /// From now on reconciles wait for a permit.
    fn hold(&self) {
        self.held.store(true, SeqCst);
    }

    fn release(&self) {
        self.held.store(false, SeqCst);
        self.permits.add_permits(1000);
    }

    fn count(&self, name: &str) -> usize {
        self.begun.lock().unwrap().get(name).copied().unwrap_or(0)
    }

    fn total(&self) -> usize {
        self.begun.lock().unwrap().values().sum()
    }

    fn forget(&self) {
        self.begun.lock().unwrap().clear();
        self.reasons.lock().unwrap().clear();
    }
}

impl Reconciler<ObjectKey> for Probe {
    async fn reconcile(&self, context: Context<ObjectKey>) -> Result<Action, ReconcileError> {
        self.alive.fetch_add(1, SeqCst);
        let _alive = Alive(self.alive.clone());
        self.reasons.lock().unwrap().push(context.reasons());
        *self
            .begun
            .lock()
            .unwrap()
            .entry(context.key().name.to_string())
            .or_default() += 1;
        if self.held.load(SeqCst) {
            self.permits.acquire().await?.forget();
        }
        Ok(Action::await_change())
    }
}

async fn running<Q: weft_runtime::QueueKey>(controller: &Controller<Q>) {
    reaches(&mut controller.state(), |state| {
        *state == ControllerState::Running
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn invariant_28_states_are_observable_and_counted() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let custom = CustomKind::new(&harness);
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let probe = Probe::new();
    probe.hold();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .requires_kind(custom.kind.clone())
        .metrics(&metrics)
        .build(probe.clone());
    let mut state = controller.state();
    assert_eq!(*state.borrow(), ControllerState::Stopped);
    let exposed = |name: &str| {
        let line =
            format!("weft_runtime_controller_state{{controller=\"notes\",state=\"{name}\"}} 1");
        prometheus_text(&registry).contains(&line)
    };
    assert!(exposed("stopped"));

    controller.start();
    let missing = PendingReason::KindMissing(custom.kind.to_string());
    reaches(&mut state, |s| {
        *s == ControllerState::Waiting(missing.clone())
    })
    .await;
    assert!(exposed("waiting"));

    let faults = harness.server().faults();
    faults.delay(
        configmaps().verb(Verb::Watch),
        Duration::from_secs(10),
        Times::Always,
    );
    custom.install().await;
    reaches(&mut state, |s| *s == ControllerState::Syncing).await;
    assert!(exposed("syncing"));
    reaches(&mut state, |s| *s == ControllerState::Running).await;
    eventually("reconciling", || probe.total() == 1).await;

    let stop = tokio::spawn({
        let controller = controller.clone();
        async move { controller.stop().await }
    });
    reaches(&mut state, |s| *s == ControllerState::Draining).await;
    assert!(exposed("draining"));
    probe.release();
    assert_eq!(stop.await.unwrap().aborted, 0);
    assert_eq!(*state.borrow(), ControllerState::Stopped);
    let text = prometheus_text(&registry);
    let prefix = "weft_runtime_controller_transitions_total{controller=\"notes\"} ";
    let transitions = text
        .lines()
        .find_map(|line| line.strip_prefix(prefix))
        .unwrap();
    assert!(transitions.parse::<u32>().unwrap() >= 5, "{transitions}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invariant_29_calls_are_serialised_and_the_last_one_wins() {
    let harness = Harness::any().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let probe = Probe::new();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .build(probe.clone());
    assert_eq!(
        controller.stop().await.aborted,
        0,
        "stopping a stopped controller is nothing"
    );
    controller.start();
    controller.start();
    running(&controller).await;
    assert_eq!(
        controller.handle().info().starts,
        1,
        "starting a running controller is nothing"
    );

    for last_is_start in [true, false, true] {
        let mut storm = Vec::new();
        for call in 0..60 {
            let controller = controller.clone();
            storm.push(tokio::spawn(async move {
                match call % 3 {
                    0 => controller.start(),
                    1 => drop(controller.stop().await),
                    _ => drop(controller.restart().await),
                }
            }));
        }
        for call in storm {
            call.await.unwrap();
        }
        if last_is_start {
            controller.start();
            running(&controller).await;
        } else {
            controller.stop().await;
            assert_eq!(*controller.state().borrow(), ControllerState::Stopped);
            assert_eq!(probe.alive.load(SeqCst), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_30_no_reconcile_before_every_source_is_synced() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let faults = harness.server().faults();
    let secrets = weft_apiserver::Matcher::any().resource("secrets");
    faults.delay(secrets.clone(), Duration::from_secs(30), Times::Always);
    let cluster = harness.cluster();
    let probe = Probe::new();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .watches::<k8s_openapi::api::core::v1::Secret>(harness.spec(), Mapper::own_key())
        .sync_timeout(Duration::from_secs(10))
        .build(probe.clone());
    controller.start();
    let mut state = controller.state();
    let late = reaches(&mut state, |s| matches!(s, ControllerState::Degraded(_))).await;
    let missing = DegradedReason::SyncTimeout(vec!["secrets/v1".into()]);
    assert_eq!(
        late,
        ControllerState::Degraded(missing),
        "it says which source is missing"
    );
    assert_eq!(probe.total(), 0, "reconciled from half the state");
    running(&controller).await;
    eventually("reconciled", || probe.count("a") == 1).await;
}

#[tokio::test]
async fn invariant_31_after_stop_nothing_of_the_controller_is_left() {
    let harness = Harness::any().await;
    for index in 0..5 {
        harness.create(&format!("n{index}"), "1").await;
    }
    let cluster = harness.cluster();
    let probe = Probe::new();
    let inner = probe.clone();
    let cancelled = Arc::new(AtomicUsize::new(0));
    let seen = cancelled.clone();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .concurrency(3)
        .build(reconcile_with(move |context: Context<ObjectKey>| {
            let (inner, seen) = (inner.clone(), seen.clone());
            async move {
                inner.alive.fetch_add(1, SeqCst);
                let _alive = Alive(inner.alive.clone());
                context.cancelled().cancelled().await;
                seen.fetch_add(1, SeqCst);
                Ok(Action::requeue(Duration::from_millis(1)))
            }
        }));
    controller.start();
    eventually("three reconciles at once", || probe.alive.load(SeqCst) == 3).await;
    assert_eq!(controller.stop().await.aborted, 0);
    assert_eq!(probe.alive.load(SeqCst), 0, "a reconcile outlived stop");
    assert_eq!(cancelled.load(SeqCst), 3, "they were asked to end");
    assert_eq!(
        controller.handle().info().known,
        0,
        "delayed keys are gone too"
    );
    eventually("subscriptions released", || {
        cluster.cache().snapshot().is_empty()
    })
    .await;
    controller.trigger(harness.key("n0"));
    assert_eq!(
        controller.handle().info().queued,
        0,
        "a stopped controller takes no keys"
    );
}

#[tokio::test(start_paused = true)]
async fn invariant_31_reconciles_that_do_not_end_in_time_are_dropped_and_reported() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    harness.create("b", "1").await;
    let cluster = harness.cluster();
    let probe = Probe::new();
    probe.hold();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .concurrency(4)
        .grace(Duration::from_secs(20))
        .build(probe.clone());
    controller.start();
    eventually("two reconciles", || probe.alive.load(SeqCst) == 2).await;
    let start = Instant::now();
    let report = controller.stop().await;
    assert_eq!(
        (report.aborted, start.elapsed()),
        (2, Duration::from_secs(20))
    );
    assert_eq!(
        probe.alive.load(SeqCst),
        0,
        "dropped futures run their destructors"
    );
    // And it can run again.
    probe.release();
    probe.forget();
    controller.start();
    eventually("both again", || {
        probe.count("a") == 1 && probe.count("b") == 1
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn invariant_32_a_restart_reconciles_everything_once_and_lists_only_if_it_must() {
    let harness = Harness::embedded().await;
    for index in 0..4 {
        harness.create(&format!("n{index}"), "1").await;
    }
    let cluster = harness.cluster();
    let probe = Probe::new();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .build(probe.clone());
    let other = cluster.cache().informer::<Note>(&harness.spec());
    let stats = harness.server().stats();
    controller.start();
    eventually("first run", || probe.total() == 4).await;
    for _ in 0..3 {
        probe.forget();
        controller.restart().await;
        running(&controller).await;
        eventually("everything once", || probe.total() == 4).await;
        sleep(Duration::from_secs(5)).await;
        assert_eq!(probe.total(), 4);
        assert!(
            probe
                .reasons
                .lock()
                .unwrap()
                .iter()
                .all(|reason| reason.contains(Reasons::INITIAL))
        );
    }
    assert_eq!(
        stats.count(&configmaps().verb(Verb::Watch)),
        1,
        "the shared informer was kept"
    );
    controller.stop().await;
    drop(other);
    eventually("informer gone", || cluster.cache().snapshot().is_empty()).await;
    probe.forget();
    controller.start();
    eventually("everything again", || probe.total() == 4).await;
    assert_eq!(
        stats.count(&configmaps().verb(Verb::Watch)),
        2,
        "a new informer lists again"
    );
}

#[tokio::test]
async fn invariant_33_deletions_while_stopped_are_replayed_where_asked_for() {
    let harness = Harness::any().await;
    for replay in [true, false] {
        for name in ["kept", "gone"] {
            harness.create(name, "1").await;
        }
        let cluster = harness.cluster();
        let probe = Probe::new();
        let options = if replay {
            WatchOptions::default().replay_deletes()
        } else {
            WatchOptions::default()
        };
        let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
            // Another kind in the same type, which must not be mistaken for the first.
            .watches_with::<Note>(
                Kind::new("", "v1", "secrets", "Secret"),
                harness.spec(),
                Mapper::new(|secret: &Note| vec![ObjectKey::cluster(&secret.metadata.name)]),
                if replay {
                    WatchOptions::default().replay_deletes()
                } else {
                    WatchOptions::default()
                },
            )
            .watches_with::<Note>(
                Note::resource_kind(),
                harness.spec(),
                Mapper::own_key(),
                options,
            )
            .build(probe.clone());
        let shared = cluster.cache().informer::<Note>(&harness.spec());
        controller.start();
        eventually("first run", || probe.total() == 2).await;
        controller.stop().await;
        harness.delete("gone").await;
        eventually("seen by the informer", || {
            shared.lister().get(&harness.key("gone")).unwrap().is_none()
        })
        .await;
        probe.forget();
        controller.start();
        running(&controller).await;
        eventually("second run", || probe.count("kept") == 1).await;
        controller.stop().await;
        assert_eq!(probe.count("gone"), usize::from(replay));
        if replay {
            assert!(
                probe
                    .reasons
                    .lock()
                    .unwrap()
                    .iter()
                    .any(|reason| reason.contains(Reasons::DELETED))
            );
        }
        harness.delete("kept").await;
    }
}

#[tokio::test]
async fn invariant_34_a_controller_follows_its_definition() {
    let harness = Harness::any().await;
    let cluster = harness.cluster();
    let custom = CustomKind::new(&harness);
    let probe = Probe::new();
    let options = WatchOptions::default();
    let controller: Controller<ObjectKey> = Controller::builder("widgets", &cluster)
        .watches_with::<MetadataOnly>(
            custom.kind.clone(),
            harness.spec(),
            Mapper::own_key(),
            options,
        )
        .requires_kind(custom.kind.clone())
        .build(probe.clone());
    controller.start();
    let mut state = controller.state();
    let missing = ControllerState::Waiting(PendingReason::KindMissing(custom.kind.to_string()));
    for run in 1..=2 {
        reaches(&mut state, |s| *s == missing).await;
        custom.install().await;
        let installed = Instant::now();
        reaches(&mut state, |s| *s == ControllerState::Running).await;
        let took = installed.elapsed();
        // The server itself takes a moment until the definition is established.
        assert!(
            took < Duration::from_secs(5),
            "running only {took:?} after the installation"
        );
        custom.create(&harness.namespace, "w").await;
        eventually("reconciled", || probe.count("w") >= 1).await;
        probe.forget();
        custom.remove().await;
        reaches(&mut state, |s| *s == missing).await;
        eventually("informers evicted", || {
            !cluster
                .cache()
                .snapshot()
                .iter()
                .any(|info| info.kind == custom.kind.to_string())
        })
        .await;
        assert_eq!(controller.handle().info().starts, run);
        while !custom.is_gone().await {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_34_restart_comes_within_a_second_and_removal_leaves_no_loop() {
    let harness = Harness::embedded().await;
    let cluster = harness.cluster();
    let custom = CustomKind::new(&harness);
    let probe = Probe::new();
    let controller: Controller<ObjectKey> = Controller::builder("widgets", &cluster)
        .watches_with::<MetadataOnly>(
            custom.kind.clone(),
            harness.spec(),
            Mapper::own_key(),
            WatchOptions::default(),
        )
        .requires_kind(custom.kind.clone())
        .build(probe.clone());
    controller.start();
    let mut state = controller.state();
    reaches(&mut state, |s| matches!(s, ControllerState::Waiting(_))).await;
    custom.install().await;
    let installed = Instant::now();
    running(&controller).await;
    assert!(
        installed.elapsed() <= Duration::from_secs(1),
        "{:?}",
        installed.elapsed()
    );
    for _ in 0..2 {
        custom.remove().await;
        reaches(&mut state, |s| matches!(s, ControllerState::Waiting(_))).await;
        eventually_gone(&custom).await;
        custom.install().await;
        let installed = Instant::now();
        running(&controller).await;
        assert!(
            installed.elapsed() <= Duration::from_secs(1),
            "{:?}",
            installed.elapsed()
        );
    }
    custom.remove().await;
    reaches(&mut state, |s| matches!(s, ControllerState::Waiting(_))).await;
    eventually_gone(&custom).await;
    let widgets = weft_apiserver::Matcher::any().resource("widgets");
    let before = harness.server().stats().count(&widgets);
    sleep(Duration::from_mins(10)).await;
    let after = harness.server().stats().count(&widgets);
    assert_eq!(
        after, before,
        "a client keeps requesting a kind that is gone"
    );
}

async fn eventually_gone(custom: &CustomKind) {
    while !custom.is_gone().await {
        sleep(Duration::from_millis(10)).await;
    }
}

/// The definition is deleted and created again while its follower cannot see it.
#[tokio::test(start_paused = true)]
async fn invariant_34_a_definition_replaced_unnoticed_restarts_its_controller() {
    let harness = Harness::embedded().await;
    let cluster = harness.cluster();
    let custom = CustomKind::new(&harness);
    custom.install().await;
    let probe = Probe::new();
    let optional = WatchOptions::<MetadataOnly>::default().optional();
    let controller: Controller<ObjectKey> = Controller::builder("widgets", &cluster)
        .watches_with::<MetadataOnly>(
            custom.kind.clone(),
            harness.spec(),
            Mapper::own_key(),
            WatchOptions::default(),
        )
        .requires_kind(custom.kind.clone())
        .build(probe.clone());
    let relaxed: Controller<ObjectKey> = Controller::builder("relaxed", &cluster)
        .watches_with(
            custom.kind.clone(),
            WatchSpec::all(),
            Mapper::own_key(),
            optional,
        )
        .build(probe.clone());
    controller.start();
    relaxed.start();
    running(&controller).await;
    running(&relaxed).await;
    let definitions = weft_apiserver::Matcher::any().resource("customresourcedefinitions");
    let stall = harness.server().faults().stall_watches(definitions.clone());
    custom.remove().await;
    eventually_gone(&custom).await;
    custom.install().await;
    custom.create(&harness.namespace, "new").await;
    harness
        .server()
        .faults()
        .send_watch_error(&definitions, &weft_apiserver::InjectedWatchError::Expired);
    drop(stall);
    eventually("both see the new object", || probe.count("new") >= 2).await;
    running(&controller).await;
}

#[tokio::test(start_paused = true)]
async fn invariant_34_informers_of_a_removed_kind_end_even_if_it_is_not_followed() {
    let harness = Harness::embedded().await;
    let cluster = harness.cluster();
    let custom = CustomKind::new(&harness);
    custom.install().await;
    // Another kind is followed, so definitions are watched.
    let other = cluster.kind(&Note::resource_kind());
    let informer = cluster
        .cache()
        .informer_of::<MetadataOnly>(&custom.kind, &WatchSpec::all());
    informer.synced().await.unwrap();
    eventually("definitions are watched", || {
        cluster.cache().snapshot().len() == 2
    })
    .await;
    custom.remove().await;
    let mut state = informer.state();
    reaches(&mut state, |s| s.name() == "stopped").await;
    let error = informer.lister().list().unwrap_err();
    assert_eq!(error.reason, weft_runtime::StopReason::KindRemoved);
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn invariant_34_kinds_are_followed_though_the_informer_of_definitions_was_evicted() {
    let harness = Harness::embedded().await;
    let cluster = harness.cluster();
    let custom = CustomKind::new(&harness);
    let controller: Controller<ObjectKey> = Controller::builder("widgets", &cluster)
        .watches_with::<MetadataOnly>(
            custom.kind.clone(),
            harness.spec(),
            Mapper::own_key(),
            WatchOptions::default(),
        )
        .requires_kind(custom.kind.clone())
        .build(Probe::new());
    controller.start();
    let mut state = controller.state();
    reaches(&mut state, |s| {
        matches!(s, ControllerState::Waiting(PendingReason::KindMissing(_)))
    })
    .await;
    let reason = weft_runtime::StopReason::Evicted("test".into());
    cluster.cache().evict_matching(&reason, |_| true);
    custom.install().await;
    running(&controller).await;
}

#[tokio::test(start_paused = true)]
async fn invariant_7_an_optional_source_removed_by_force_degrades_too() {
    let harness = Harness::embedded().await;
    let cluster = harness.cluster();
    let optional = WatchOptions::<Note>::default().optional();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .watches_with(
            Note::resource_kind(),
            harness.spec(),
            Mapper::own_key(),
            optional,
        )
        .build(Probe::new());
    controller.start();
    running(&controller).await;
    let informers = || {
        cluster
            .cache()
            .snapshot()
            .iter()
            .any(|info| info.kind == "configmaps/v1")
    };
    eventually("joined", informers).await;
    let reason = weft_runtime::StopReason::Evicted("test".into());
    cluster
        .cache()
        .evict_matching(&reason, |key| &*key.kind.plural == "configmaps");
    reaches(&mut controller.state(), |s| {
        matches!(s, ControllerState::Degraded(_))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_source_whose_kind_vanished_is_stale_not_silent() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .build(Probe::new());
    controller.start();
    running(&controller).await;
    let faults = harness.server().faults();
    faults.respond(configmaps(), http::StatusCode::NOT_FOUND, Times::Always);
    faults.cut_watches(&configmaps(), weft_apiserver::Cut::MidFrame);
    let stale = reaches(&mut controller.state(), |s| {
        matches!(s, ControllerState::Degraded(_))
    })
    .await;
    assert!(matches!(
        stale,
        ControllerState::Degraded(DegradedReason::SourceStale { .. })
    ));
}

#[tokio::test]
async fn invariant_35_a_version_that_is_no_longer_served_counts_as_removed() {
    let harness = Harness::any().await;
    let cluster = harness.cluster();
    let custom = CustomKind::new(&harness);
    custom.install().await;
    let controller: Controller<ObjectKey> = Controller::builder("widgets", &cluster)
        .watches_with::<MetadataOnly>(
            custom.kind.clone(),
            harness.spec(),
            Mapper::own_key(),
            WatchOptions::default(),
        )
        .requires_kind(custom.kind.clone())
        .build(Probe::new());
    controller.start();
    running(&controller).await;
    custom.serve_v1(false).await;
    reaches(&mut controller.state(), |s| {
        matches!(s, ControllerState::Waiting(PendingReason::KindMissing(_)))
    })
    .await;
    custom.serve_v1(true).await;
    running(&controller).await;
    custom.remove().await;
}

#[tokio::test]
async fn an_optional_watch_joins_and_leaves_without_blocking_its_controller() {
    let harness = Harness::any().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let custom = CustomKind::new(&harness);
    let probe = Probe::new();
    let optional = WatchOptions::<MetadataOnly>::default().optional();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .watches_with(
            custom.kind.clone(),
            harness.spec(),
            Mapper::own_key(),
            optional,
        )
        .build(probe.clone());
    controller.start();
    running(&controller).await;
    eventually("the note without the widget", || probe.count("a") == 1).await;
    for run in 1..=2 {
        custom.install().await;
        custom.create(&harness.namespace, "w").await;
        eventually("the widget too", || probe.count("w") >= run).await;
        custom.remove().await;
        while !custom.is_gone().await {
            tokio::task::yield_now().await;
        }
        assert_eq!(*controller.state().borrow(), ControllerState::Running);
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_36_starts_and_stops_make_no_new_series() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    metrics.observe_cluster(&cluster);
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .metrics(&metrics)
        .build(Probe::new());
    let series = || {
        let text = prometheus_text(&registry);
        text.lines()
            .filter(|line| line.contains("notes") || line.contains("configmaps"))
            .count()
    };
    let mut counts = std::collections::BTreeSet::new();
    for _ in 0..20 {
        controller.start();
        running(&controller).await;
        counts.insert(series());
        controller.stop().await;
    }
    assert_eq!(counts.len(), 1, "{counts:?}");
    eventually("informer gone", || cluster.cache().snapshot().is_empty()).await;
    let text = prometheus_text(&registry);
    assert!(
        text.contains(
            "controller_runtime_reconcile_total{controller=\"notes\",result=\"success\"} 20"
        ),
        "{text}"
    );
    drop(controller);
    eventually("series removed", || series() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_mapping_that_panics_for_one_object_leaves_out_that_object_only() {
    let harness = Harness::embedded().await;
    for name in ["a", "bad", "c"] {
        harness.create(name, "1").await;
    }
    let probe = Probe::new();
    let mapper = Mapper::new(|note: &Note| {
        let name = &note.metadata.name;
        assert!(&**name != "bad" || note.text() == "cured", "on purpose");
        vec![ObjectKey::cluster(name)]
    });
    let controller = Controller::<ObjectKey>::builder("notes", &harness.cluster())
        .watches::<Note>(harness.spec(), mapper)
        .build(probe.clone());
    controller.start();
    eventually("the others are reconciled", || {
        probe.count("a") == 1 && probe.count("c") == 1
    })
    .await;
    assert_eq!(probe.count("bad"), 0);
    harness.update("c", "2").await;
    eventually("and go on", || probe.count("c") == 2).await;
    harness.update("bad", "cured").await;
    eventually("it is back when it changed", || probe.count("bad") == 1).await;
    assert_eq!(*controller.state().borrow(), ControllerState::Running);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_fails_each_time_leaves_the_only_worker_to_the_others() {
    let harness = Harness::embedded().await;
    harness.create("bad", "1").await;
    let probe = Probe::new();
    let reconciler = {
        let probe = probe.clone();
        reconcile_with(move |context: Context<ObjectKey>| {
            let probe = probe.clone();
            async move {
                let is_bad = &*context.key().name == "bad";
                let done = probe.reconcile(context).await;
                if is_bad {
                    return Err(ReconcileError::retry("on purpose"));
                }
                done
            }
        })
    };
    let controller = Controller::<ObjectKey>::builder("notes", &harness.cluster())
        .reconciles::<Note>(harness.spec())
        .concurrency(1)
        .build(reconciler);
    controller.start();
    eventually("it has failed often", || probe.count("bad") > 8).await;
    let begun = Instant::now();
    for number in 0..20 {
        let name = format!("good-{number}");
        harness.create(&name, "1").await;
        eventually("a good key is reconciled", || probe.count(&name) == 1).await;
    }
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn invariant_37_a_panic_is_an_error_of_one_key() {
    let harness = Harness::embedded().await;
    harness.create("bad", "1").await;
    harness.create("good", "1").await;
    let cluster = harness.cluster();
    let probe = Probe::new();
    let panics = Arc::new(AtomicUsize::new(0));
    let build = |recover: bool| {
        let (probe, panics) = (probe.clone(), panics.clone());
        Controller::<ObjectKey>::builder("notes", &cluster)
            .reconciles::<Note>(harness.spec())
            .recover_panics(recover)
            .build(reconcile_with(move |context: Context<ObjectKey>| {
                let (probe, panics) = (probe.clone(), panics.clone());
                async move {
                    assert!(
                        !(&*context.key().name == "bad" && panics.fetch_add(1, SeqCst) < 3),
                        "on purpose"
                    );
                    probe.reconcile(context).await
                }
            }))
    };
    let controller = build(true);
    controller.start();
    eventually("retried until it worked", || {
        probe.count("bad") == 1 && probe.count("good") == 1
    })
    .await;
    let info = controller.handle().info();
    assert_eq!((info.panicked, info.failed), (3, 3));
    assert_eq!(*controller.state().borrow(), ControllerState::Running);
    assert_eq!(info.last_error.as_deref(), Some("panic: on purpose"));
    controller.stop().await;

    panics.store(0, SeqCst);
    let strict = build(false);
    strict.start();
    reaches(&mut strict.state(), |s| {
        *s == ControllerState::Degraded(DegradedReason::Panicked)
    })
    .await;
}

#[tokio::test]
async fn invariant_38_cycles_leave_no_task_behind() {
    let harness = Harness::any().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .concurrency(4)
        .build(Probe::new());
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let cycle = async |times: usize| {
        for _ in 0..times {
            controller.start();
            running(&controller).await;
            controller.stop().await;
        }
        eventually("informer gone", || cluster.cache().snapshot().is_empty()).await;
    };
    cycle(10).await;
    let mut after_ten = 0;
    eventually("settled", || {
        let now = tasks();
        std::mem::replace(&mut after_ten, now) == now
    })
    .await;
    cycle(200).await;
    eventually("no task more than after ten cycles", || {
        tasks() <= after_ten
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn invariant_25_a_key_is_not_reconciled_from_a_store_older_than_its_own_writes() {
    let harness = Harness::embedded().await;
    harness.create("a", "0").await;
    let cluster = harness.cluster();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (notes, log, wrote) = (harness.notes(), seen.clone(), Arc::new(Notify::new()));
    let written = wrote.clone();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .read_own_writes(Duration::from_secs(30))
        .build(reconcile_with(move |context: Context<ObjectKey>| {
            let (notes, log, written) = (notes.clone(), log.clone(), written.clone());
            async move {
                let note = context.object::<Note>()?.expect("exists");
                log.lock().unwrap().push(note.text().to_owned());
                if note.text() != "done" {
                    let patch = Patch::Merge(json!({"data": {"text": "done"}}));
                    context
                        .tracked(notes)
                        .patch("a", &PatchParams::default(), &patch)
                        .await?;
                    written.notify_one();
                }
                Ok(Action::await_change())
            }
        }));
    let stall = harness
        .server()
        .faults()
        .stall_watches(weft_apiserver::Matcher::any().resource("none"));
    drop(stall);
    controller.start();
    running(&controller).await;
    wrote.notified().await;
    eventually("own write seen", || {
        seen.lock()
            .unwrap()
            .last()
            .is_some_and(|text| text == "done")
    })
    .await;
    assert_eq!(*seen.lock().unwrap(), ["0", "done"]);

    // A lagging store: the key waits, although it is triggered.
    let stall = harness.server().faults().stall_watches(configmaps());
    seen.lock().unwrap().clear();
    harness.update("a", "again").await;
    controller.trigger(harness.key("a"));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(
        *seen.lock().unwrap(),
        ["done"],
        "not its own write: reconciled at once"
    );
    drop(stall);
    wrote.notified().await;
    let stall = harness.server().faults().stall_watches(configmaps());
    let before = seen.lock().unwrap().len();
    controller.trigger(harness.key("a"));
    sleep(Duration::from_secs(5)).await;
    let reconciled: Vec<String> = seen.lock().unwrap()[before..].to_vec();
    assert!(
        reconciled.iter().all(|text| text == "done"),
        "saw a state before its own write: {reconciled:?}"
    );
    drop(stall);
}

#[tokio::test(start_paused = true)]
async fn invariant_25_waiting_for_a_write_has_an_end() {
    let harness = Harness::embedded().await;
    harness.create("a", "0").await;
    let cluster = harness.cluster();
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let (notes, log) = (harness.notes(), times.clone());
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .watches_with::<Note>(
            Note::resource_kind(),
            harness.spec().idle_timeout(Duration::from_hours(1)),
            Mapper::own_key(),
            WatchOptions::default(),
        )
        .read_own_writes(Duration::from_secs(30))
        .build(reconcile_with(move |context: Context<ObjectKey>| {
            let (notes, log) = (notes.clone(), log.clone());
            async move {
                log.lock().unwrap().push(Instant::now());
                let text = log.lock().unwrap().len().to_string();
                let patch = Patch::Merge(json!({"data": {"text": text}}));
                context
                    .tracked(notes)
                    .patch("a", &PatchParams::default(), &patch)
                    .await?;
                Ok(Action::await_change())
            }
        }));
    let informer = cluster
        .cache()
        .informer::<Note>(&harness.spec().idle_timeout(Duration::from_hours(1)));
    informer.synced().await.unwrap();
    let _stall = harness.server().faults().stall_watches(configmaps());
    controller.start();
    running(&controller).await;
    eventually("first", || times.lock().unwrap().len() == 1).await;
    controller.trigger(harness.key("a"));
    eventually("second", || times.lock().unwrap().len() == 2).await;
    let times = times.lock().unwrap();
    assert_eq!(times[1] - times[0], Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn invariant_26_terminal_errors_wait_for_a_change_and_others_are_retried() {
    let harness = Harness::embedded().await;
    harness.create("terminal", "1").await;
    harness.create("passing", "1").await;
    let cluster = harness.cluster();
    let attempts: Arc<Mutex<Vec<(String, u32)>>> = Arc::default();
    let log = attempts.clone();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .build(reconcile_with(move |context: Context<ObjectKey>| {
            let name = context.key().name.to_string();
            log.lock().unwrap().push((name.clone(), context.failures()));
            async move {
                match (name.as_str(), context.failures()) {
                    ("terminal", _) => Err(ReconcileError::terminal("bad specification")),
                    (_, 0..=2) => Err(ReconcileError::retry("not yet")),
                    _ => Ok(Action::await_change()),
                }
            }
        }));
    controller.start();
    let of = |name: &str| -> Vec<u32> {
        let attempts = attempts.lock().unwrap();
        attempts
            .iter()
            .filter(|(n, _)| n == name)
            .map(|(_, failures)| *failures)
            .collect()
    };
    eventually("retried", || of("passing") == [0, 1, 2, 3]).await;
    sleep(Duration::from_hours(1)).await;
    assert_eq!(of("terminal").len(), 1, "retried without a change");
    harness.update("terminal", "2").await;
    eventually("the change", || of("terminal").len() == 2).await;
    harness.update("passing", "2").await;
    eventually("failures forgotten", || {
        of("passing") == [0, 1, 2, 3, 0, 1, 2, 3]
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_that_takes_too_long_is_dropped_and_retried() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let probe = Probe::new();
    probe.hold();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .timeout(Duration::from_secs(10))
        .build(probe.clone());
    controller.start();
    eventually("retried", || probe.count("a") == 3).await;
    assert_eq!(probe.alive.load(SeqCst), 1);
    probe.release();
    eventually("done", || controller.handle().info().succeeded == 1).await;
}

#[tokio::test]
async fn watches_are_added_and_removed_while_it_runs() {
    let harness = Harness::any().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let probe = Probe::new();
    let controller: Controller<ObjectKey> =
        Controller::builder("dynamic", &cluster).build(probe.clone());
    controller.start();
    running(&controller).await;
    for run in 1..=2 {
        let id = controller.add_watch::<Note>(harness.spec(), Mapper::own_key());
        eventually("what exists is delivered", || probe.count("a") == run).await;
        assert!(controller.remove_watch(id).await);
        assert!(!controller.remove_watch(id).await);
        eventually("informer released", || {
            cluster.cache().snapshot().is_empty()
        })
        .await;
    }
    let _id = controller.add_watch::<Note>(
        WatchSpec::all().namespace(&harness.namespace),
        Mapper::own_key(),
    );
    eventually("third", || probe.count("a") == 3).await;
    controller.restart().await;
    eventually("an added watch is kept over a restart", || {
        probe.count("a") == 4
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn resync_delivers_again_at_low_priority() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let probe = Probe::new();
    let options = WatchOptions::<Note>::default().resync(Duration::from_mins(1));
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .watches_with(
            Note::resource_kind(),
            harness.spec(),
            Mapper::own_key(),
            options,
        )
        .build(probe.clone());
    controller.start();
    let start = Instant::now();
    eventually("resynced", || probe.count("a") == 4).await;
    assert!(
        (150..=210).contains(&start.elapsed().as_secs()),
        "{:?}",
        start.elapsed()
    );
    assert!(probe.reasons.lock().unwrap()[3].contains(Reasons::RESYNC));
}

#[tokio::test]
async fn dropping_the_last_handle_stops_a_controller() {
    let harness = Harness::any().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let probe = Probe::new();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .build(probe.clone());
    let handle = controller.handle();
    controller.start();
    eventually("running", || probe.count("a") == 1).await;
    drop(controller);
    harness.update("a", "2").await;
    eventually("a handle keeps it", || probe.count("a") == 2).await;
    drop(handle);
    eventually("informer released", || {
        cluster.cache().snapshot().is_empty()
    })
    .await;
}
