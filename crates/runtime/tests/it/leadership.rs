//! Invariants 40 and 41: two processes, one leader, and a deadline for everything it does.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{HeaderValue, Request, header};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, client::Body};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep},
};
use tower::util::MapRequest;
use weft_apiserver::{Fault, FaultId, Matcher, Times, User, Verb};
use weft_runtime::{
    Action, Cluster, Component, ComponentRun, ComponentScope, Context, Controller, ControllerState,
    LeaderConfig, Manager, ObjectKey, PendingReason, Phase, reconcile_with,
};

use crate::harness::{Harness, Note, configmaps, eventually, reaches};

/// A process of the test: a manager with one leader-only controller.
struct Process {
    name: &'static str,
    manager: Manager,
    controller: Controller<ObjectKey>,
    active: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    run: tokio::task::JoinHandle<()>,
}

/// Beginnings and ends of reconciles, by process.
type Journal = Arc<Mutex<Vec<(&'static str, &'static str, Instant)>>>;

struct Active {
    name: &'static str,
    count: Arc<AtomicUsize>,
    journal: Journal,
}

impl Active {
    fn new(name: &'static str, count: &Arc<AtomicUsize>, journal: &Journal) -> Self {
        count.fetch_add(1, SeqCst);
        journal
            .lock()
            .unwrap()
            .push((name, "begins", Instant::now()));
        Self {
            name,
            count: count.clone(),
            journal: journal.clone(),
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.count.fetch_sub(1, SeqCst);
        self.journal
            .lock()
            .unwrap()
            .push((self.name, "ends", Instant::now()));
    }
}

/// A client with a user agent of its own, so that it can be cut off alone.
fn client(harness: &Harness, name: &'static str) -> Client {
    let service = harness.server().service(User::admin());
    let named = MapRequest::new(service, move |mut request: Request<Body>| {
        request
            .headers_mut()
            .insert(header::USER_AGENT, HeaderValue::from_static(name));
        request
    });
    Client::new(named, "default")
}

impl Process {
    /// Reconciles last until `finish` is notified; `None` means for ever.
    fn start(
        harness: &Harness,
        name: &'static str,
        journal: &Journal,
        finish: Option<Arc<Notify>>,
    ) -> Self {
        let cluster = Cluster::new(name, client(harness, name));
        let active = Arc::new(AtomicUsize::new(0));
        let (count, log) = (active.clone(), journal.clone());
        let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
            .reconciles::<Note>(harness.spec())
            .leader_only()
            .build(reconcile_with(move |_: Context<ObjectKey>| {
                let (count, log, finish) = (count.clone(), log.clone(), finish.clone());
                async move {
                    let _active = Active::new(name, &count, &log);
                    match finish {
                        Some(finish) => finish.notified().await,
                        None => std::future::pending().await,
                    }
                    Ok(Action::await_change())
                }
            }));
        let manager = Manager::builder(name, cluster)
            .leader_election(LeaderConfig::new(&harness.namespace, "lease", name))
            .build()
            .unwrap();
        manager.add(&controller).unwrap();
        let (stop, stopped) = oneshot::channel();
        let running = manager.clone();
        let run = tokio::spawn(async move {
            running.run(async { drop(stopped.await) }).await.unwrap();
        });
        Self {
            name,
            manager,
            controller,
            active,
            stop: Some(stop),
            run,
        }
    }

    async fn leads(&self) {
        reaches(&mut self.manager.leadership().unwrap(), |status| {
            status.is_leader
        })
        .await;
    }

    async fn follows(&self) {
        let waiting = ControllerState::Waiting(PendingReason::NotLeading);
        reaches(&mut self.controller.state(), |state| *state == waiting).await;
    }

    fn cut_off(&self, harness: &Harness) -> FaultId {
        let matcher = Matcher::any().user_agent(self.name);
        harness
            .server()
            .faults()
            .inject(matcher, Fault::Disconnect, Times::Always)
    }

    async fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        (&mut self.run).await.unwrap();
    }
}

async fn holder(harness: &Harness) -> String {
    let api: Api<Lease> = Api::namespaced(harness.client.clone(), &harness.namespace);
    api.get("lease")
        .await
        .unwrap()
        .spec
        .unwrap()
        .holder_identity
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn invariant_40_an_old_leader_has_ended_before_a_new_one_begins() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let journal = Journal::default();
    // Reconciles that never end by themselves: only being dropped ends them.
    let first = Process::start(&harness, "first", &journal, None);
    first.leads().await;
    eventually("first works", || first.active.load(SeqCst) == 1).await;
    let second = Process::start(&harness, "second", &journal, None);
    second.follows().await;

    let cut = first.cut_off(&harness);
    let cut_at = Instant::now();
    second.leads().await;
    eventually("second works", || second.active.load(SeqCst) == 1).await;
    let (ended, began) = {
        let journal = journal.lock().unwrap();
        let at = |who: &str, what: &str| {
            journal
                .iter()
                .find(|(n, w, _)| *n == who && *w == what)
                .expect("happened")
                .2
        };
        (at("first", "ends"), at("second", "begins"))
    };
    assert!(
        ended < began,
        "both worked at a time: until {:?}, from {:?}",
        ended - cut_at,
        began - cut_at
    );
    assert!(
        ended - cut_at <= Duration::from_secs(14),
        "ended {:?} after the cut",
        ended - cut_at
    );

    // The process stays, follows, and leads again when it can.
    first.follows().await;
    harness.server().faults().remove(cut);
    let mut second = second;
    second.stop().await;
    first.leads().await;
    eventually("first works again", || first.active.load(SeqCst) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn invariant_40_a_standby_keeps_its_informers_warm() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let (journal, done) = (Journal::default(), Arc::new(Notify::new()));
    let mut first = Process::start(&harness, "first", &journal, Some(done.clone()));
    first.leads().await;
    let second = Process::start(&harness, "second", &journal, Some(done.clone()));
    second.follows().await;
    let watches = configmaps().verb(Verb::Watch).user_agent("second");
    let stats = harness.server().stats();
    eventually("standby has listed", || stats.count(&watches) == 1).await;
    done.notify_waiters();
    first.stop().await;
    second.leads().await;
    eventually("second works", || second.active.load(SeqCst) == 1).await;
    assert_eq!(stats.count(&watches), 1, "taking over needed a list");
}

#[tokio::test(start_paused = true)]
async fn invariant_41_the_lease_is_released_only_after_the_work_has_ended() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let (journal, finish) = (Journal::default(), Arc::new(Notify::new()));
    let mut first = Process::start(&harness, "first", &journal, Some(finish.clone()));
    first.leads().await;
    eventually("first works", || first.active.load(SeqCst) == 1).await;
    let second = Process::start(&harness, "second", &journal, None);
    second.follows().await;

    first.stop.take().unwrap().send(()).unwrap();
    reaches(&mut first.controller.state(), |state| {
        *state == ControllerState::Draining
    })
    .await;
    // Longer than the lease lasts: it is renewed while the work goes on.
    sleep(Duration::from_secs(25)).await;
    assert_eq!(holder(&harness).await, "first");
    assert_eq!(second.active.load(SeqCst), 0);
    finish.notify_waiters();
    let finished = Instant::now();
    (&mut first.run).await.unwrap();
    assert_eq!(first.active.load(SeqCst), 0);
    second.leads().await;
    let waited = finished.elapsed();
    assert!(
        waited <= Duration::from_secs(4),
        "the released lease was waited for: {waited:?}"
    );
    let journal = journal.lock().unwrap();
    let order: Vec<_> = journal.iter().map(|(who, what, _)| (*who, *what)).collect();
    assert_eq!(order[..2], [("first", "begins"), ("first", "ends")]);
}

#[tokio::test(start_paused = true)]
async fn invariant_40_mutations_have_a_deadline_inside_the_lease() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cluster = Cluster::new("only", client(&harness, "only"));
    let outcome: Arc<Mutex<Option<(bool, Instant)>>> = Arc::default();
    let seen = outcome.clone();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .leader_only()
        .build(reconcile_with(move |context: Context<ObjectKey>| {
            let seen = seen.clone();
            async move {
                let deadline = context.deadline().expect("leaders have a deadline");
                assert!(deadline <= Instant::now() + Duration::from_secs(15));
                let finished = context.fenced(sleep(Duration::from_hours(1))).await;
                *seen.lock().unwrap() = Some((finished.is_some(), Instant::now()));
                Ok(Action::await_change())
            }
        }));
    let manager = Manager::builder("only", cluster)
        .leader_election(LeaderConfig::new(&harness.namespace, "lease", "only"))
        .build()
        .unwrap();
    manager.add(&controller).unwrap();
    let run = tokio::spawn(async move { manager.run(std::future::pending()).await });
    reaches(&mut controller.state(), |state| {
        *state == ControllerState::Running
    })
    .await;
    let start = Instant::now();
    eventually("the mutation ended", || outcome.lock().unwrap().is_some()).await;
    let (finished, at) = outcome.lock().unwrap().unwrap();
    assert!(!finished, "it ran past the lease");
    assert!(at - start <= Duration::from_secs(15));
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn a_lease_taken_by_another_process_ends_the_work_at_once() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let journal = Journal::default();
    let first = Process::start(&harness, "first", &journal, None);
    first.leads().await;
    eventually("first works", || first.active.load(SeqCst) == 1).await;
    let api: Api<Lease> = Api::namespaced(harness.client.clone(), &harness.namespace);
    let theft = serde_json::json!({"spec": {"holderIdentity": "thief"}});
    api.patch(
        "lease",
        &kube::api::PatchParams::default(),
        &kube::api::Patch::Merge(theft),
    )
    .await
    .unwrap();
    let stolen = Instant::now();
    first.follows().await;
    assert_eq!(first.active.load(SeqCst), 0);
    assert!(
        stolen.elapsed() <= Duration::from_secs(3),
        "{:?}",
        stolen.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_manager_can_exit_when_leadership_is_lost() {
    let harness = Harness::embedded().await;
    let cluster = Cluster::new("only", client(&harness, "only"));
    let manager = Manager::builder("only", cluster)
        .leader_election(LeaderConfig::new(&harness.namespace, "lease", "only"))
        .exit_on_leadership_loss()
        .build()
        .unwrap();
    let run = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run(std::future::pending()).await }
    });
    reaches(&mut manager.leadership().unwrap(), |status| {
        status.is_leader
    })
    .await;
    harness.server().faults().inject(
        Matcher::any().user_agent("only"),
        Fault::Disconnect,
        Times::Always,
    );
    let error = run.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "leadership was lost");
}

#[tokio::test(start_paused = true)]
async fn invariant_40_losing_the_lease_shortens_a_drain_that_is_under_way() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let journal = Journal::default();
    let mut first = Process::start(&harness, "first", &journal, None);
    first.leads().await;
    eventually("first works", || first.active.load(SeqCst) == 1).await;
    let second = Process::start(&harness, "second", &journal, None);
    second.follows().await;
    // Asked to stop, with thirty seconds of grace; a moment later it is cut off.
    first.stop.take().unwrap().send(()).unwrap();
    reaches(&mut first.controller.state(), |state| {
        *state == ControllerState::Draining
    })
    .await;
    first.cut_off(&harness);
    eventually("second works", || second.active.load(SeqCst) == 1).await;
    let journal = journal.lock().unwrap();
    let order: Vec<_> = journal.iter().map(|(who, what, _)| (*who, *what)).collect();
    assert_eq!(
        order,
        [("first", "begins"), ("first", "ends"), ("second", "begins")]
    );
}

/// Counts its runs, and never ends by itself.
struct Term {
    alive: Arc<AtomicUsize>,
    begun: Arc<AtomicUsize>,
}

impl Component for Term {
    fn name(&self) -> &'static str {
        "term"
    }

    fn phase(&self) -> Phase {
        Phase::Leader
    }

    fn run(self: Arc<Self>, _scope: ComponentScope) -> ComponentRun {
        Box::pin(async move {
            let journal = Journal::default();
            let _alive = Active::new("term", &self.alive, &journal);
            self.begun.fetch_add(1, SeqCst);
            std::future::pending().await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_41_a_component_of_the_leader_has_ended_when_the_lease_is_given_up() {
    let harness = Harness::embedded().await;
    let cluster = Cluster::new("only", client(&harness, "only"));
    let manager = Manager::builder("only", cluster)
        .leader_election(LeaderConfig::new(&harness.namespace, "lease", "only"))
        .grace(Duration::from_secs(5))
        .build()
        .unwrap();
    let (alive, begun) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let term = Term {
        alive: alive.clone(),
        begun: begun.clone(),
    };
    manager.add_component(term).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let run = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run(async { drop(stopped.await) }).await }
    });
    eventually("first term", || begun.load(SeqCst) == 1).await;
    let mut status = manager.leadership().unwrap();
    let faults = harness.server().faults();
    let cut = faults.inject(
        Matcher::any().user_agent("only"),
        Fault::Disconnect,
        Times::Always,
    );
    reaches(&mut status, |status| !status.is_leader).await;
    eventually("its work has ended", || alive.load(SeqCst) == 0).await;
    faults.remove(cut);
    eventually("second term", || begun.load(SeqCst) == 2).await;
    stop.send(()).unwrap();
    let report = run.await.unwrap().unwrap();
    assert_eq!(report.aborted, [("term".to_owned(), 1)]);
    assert_eq!(alive.load(SeqCst), 0, "it outlived the lease");
    assert_eq!(holder(&harness).await, "", "released");
}
