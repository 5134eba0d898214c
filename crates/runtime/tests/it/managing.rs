//! Invariants 39 and 42: start order, removal, health and status pages.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::StatusCode;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::{Semaphore, oneshot},
};
use weft_apiserver::{AuthorizationMode, Times, User, Verb};
use weft_runtime::{
    Access, Action, Cluster, Component, ComponentRun, ComponentScope, Controller, ControllerState,
    DegradedReason, HealthCheck, HealthLimits, Manager, ManagerError, ObjectKey, Phase,
    StatusServer, StopReason, TlsFiles, reconcile_with,
};

use crate::harness::{Harness, Note, configmaps, eventually, reaches};

type Journal = Arc<Mutex<Vec<String>>>;

struct Recorded {
    name: &'static str,
    phase: Phase,
    journal: Journal,
    /// Becomes ready when it gets a permit.
    permits: Arc<Semaphore>,
    fails: bool,
}

impl Component for Recorded {
    fn name(&self) -> &str {
        self.name
    }

    fn phase(&self) -> Phase {
        self.phase
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun {
        Box::pin(async move {
            self.journal.lock().unwrap().push(format!("+{}", self.name));
            // Becoming ready takes a while; later phases wait for it.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let _permit = self.permits.acquire().await?;
            scope.ready();
            if self.fails {
                return Err("it broke".into());
            }
            scope.stopped().await;
            self.journal.lock().unwrap().push(format!("-{}", self.name));
            Ok(())
        })
    }
}

fn component(name: &'static str, phase: Phase, journal: &Journal) -> Recorded {
    Recorded {
        name,
        phase,
        journal: journal.clone(),
        permits: Arc::new(Semaphore::new(1)),
        fails: false,
    }
}

struct Running {
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<weft_runtime::ExitReport, ManagerError>>,
}

fn run(manager: &Manager) -> Running {
    let (stop, stopped) = oneshot::channel();
    let manager = manager.clone();
    let task = tokio::spawn(async move { manager.run(async { drop(stopped.await) }).await });
    Running { stop, task }
}

#[tokio::test(start_paused = true)]
async fn invariant_39_phases_start_in_order_and_stop_in_reverse() {
    let harness = Harness::embedded().await;
    let journal = Journal::default();
    let manager = Manager::builder("test", harness.cluster()).build().unwrap();
    // Added in another order than they start.
    for (name, phase) in [
        ("leader", Phase::Leader),
        ("always", Phase::Always),
        ("cache", Phase::Cache),
        ("server", Phase::Server),
        ("webhook", Phase::Webhook),
    ] {
        manager
            .add_component(component(name, phase, &journal))
            .unwrap();
    }
    let running = run(&manager);
    let seen = || journal.lock().unwrap().join(" ");
    eventually("all started", || {
        seen() == "+server +webhook +cache +always +leader"
    })
    .await;

    // Added late: starts at once, since its phase has begun. And it can be removed.
    let late = manager
        .add_component(component("late", Phase::Always, &journal))
        .unwrap();
    eventually("late started", || seen().ends_with("+late")).await;
    assert!(
        manager
            .add_component(component("late", Phase::Always, &journal))
            .is_err(),
        "names are unique"
    );
    assert!(manager.remove(late).await);
    assert!(seen().ends_with("-late"));
    assert!(!manager.remove(late).await);

    journal.lock().unwrap().clear();
    running.stop.send(()).unwrap();
    running.task.await.unwrap().unwrap();
    assert_eq!(seen(), "-leader -always -cache -webhook -server");
}

#[tokio::test(start_paused = true)]
async fn invariant_39_stopping_early_starts_nothing() {
    let harness = Harness::embedded().await;
    let journal = Journal::default();
    let manager = Manager::builder("test", harness.cluster()).build().unwrap();
    manager
        .add_component(component("server", Phase::Server, &journal))
        .unwrap();
    manager
        .add_component(component("leader", Phase::Leader, &journal))
        .unwrap();
    let running = run(&manager);
    eventually("first phase", || !journal.lock().unwrap().is_empty()).await;
    running.stop.send(()).unwrap();
    running.task.await.unwrap().unwrap();
    assert_eq!(*journal.lock().unwrap(), ["+server", "-server"]);
}

#[tokio::test(start_paused = true)]
async fn a_component_that_fails_stops_everything_in_order_and_is_named() {
    let harness = Harness::embedded().await;
    let journal = Journal::default();
    let manager = Manager::builder("test", harness.cluster()).build().unwrap();
    manager
        .add_component(component("server", Phase::Server, &journal))
        .unwrap();
    let failing = Recorded {
        fails: true,
        ..component("broken", Phase::Always, &journal)
    };
    manager.add_component(failing).unwrap();
    let error = run(&manager).task.await.unwrap().unwrap_err();
    assert!(
        matches!(&error, ManagerError::Component { name, source } if name == "broken" && source.to_string() == "it broke")
    );
    assert_eq!(*journal.lock().unwrap(), ["+server", "+broken", "-server"]);
}

#[tokio::test(start_paused = true)]
async fn controllers_are_managed_and_the_exit_report_names_what_was_cut_short() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let manager = Manager::builder("test", cluster.clone())
        .grace(Duration::from_secs(5))
        .build()
        .unwrap();
    let stuck: Controller<ObjectKey> = Controller::builder("stuck", &cluster)
        .reconciles::<Note>(harness.spec())
        .metrics(manager.metrics())
        .build(reconcile_with(|_| std::future::pending()));
    let id = manager.add(&stuck).unwrap();
    assert!(manager.add(&stuck).is_err(), "names are unique");
    let running = run(&manager);
    eventually("working", || stuck.handle().info().active_workers == 1).await;
    let text = weft_runtime::prometheus_text(manager.registry());
    assert!(
        text.contains("running_managed_controllers{name=\"stuck\",manager=\"test\"} 1"),
        "{text}"
    );
    running.stop.send(()).unwrap();
    let report = running.task.await.unwrap().unwrap();
    assert_eq!(report.aborted, [("stuck".to_owned(), 1)]);
    assert_eq!(report.took, Duration::from_secs(5));
    assert!(manager.remove(id).await);
    assert!(manager.controllers().is_empty());
}

async fn request(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    path: &str,
    token: Option<&str>,
) -> (u16, String) {
    request_of_host(stream, "localhost", path, token).await
}

async fn request_of_host(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    host: &str,
    path: &str,
    token: Option<&str>,
) -> (u16, String) {
    let authorization = token
        .map(|token| format!("Authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    let text =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{authorization}\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Err(error) => panic!("{error}"),
    }
    let answer = String::from_utf8(answer).unwrap();
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (code, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    request(&mut stream, path, None).await
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[tokio::test]
async fn invariant_42_ready_means_synced_once_and_not_draining() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let gate = Arc::new(Semaphore::new(0));
    let permits = gate.clone();
    let faults = harness.server().faults();
    let outage = faults.respond(
        configmaps().verb(Verb::Watch),
        StatusCode::SERVICE_UNAVAILABLE,
        Times::Always,
    );
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .build(reconcile_with(move |_| {
            let permits = permits.clone();
            async move {
                permits.acquire().await?.forget();
                Ok(Action::await_change())
            }
        }));
    let limits = HealthLimits {
        stuck_watch: Some(Duration::from_millis(50)),
        stuck_reconcile: Some(Duration::from_millis(50)),
    };
    let manager = Manager::builder("test", cluster)
        .health_limits(limits)
        .build()
        .unwrap();
    manager.add(&controller).unwrap();
    let server = StatusServer::bind(&manager, loopback()).unwrap();
    let address = server.address();
    manager.add_component(server).unwrap();
    let running = run(&manager);

    reaches(&mut controller.state(), |state| {
        *state == ControllerState::Syncing
    })
    .await;
    let (code, text) = get(address, "/readyz").await;
    assert_eq!(code, 500);
    assert!(
        text.contains("[-]controllers failed: notes is syncing"),
        "{text}"
    );
    let stuck = async { while get(address, "/livez").await.0 == 200 {} };
    tokio::time::timeout(Duration::from_secs(30), stuck)
        .await
        .expect("a stuck watch fails /livez");
    let (_, text) = get(address, "/livez").await;
    assert!(
        text.contains("[-]watches failed: configmaps/v1 could not be followed"),
        "{text}"
    );

    faults.remove(outage);
    reaches(&mut controller.state(), |state| {
        *state == ControllerState::Running
    })
    .await;
    assert_eq!(get(address, "/readyz").await, (200, "ok".into()));
    let stuck = async {
        loop {
            let (code, text) = get(address, "/livez").await;
            if code == 500 && text.contains("[-]reconciles failed: a reconcile of notes has run") {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), stuck)
        .await
        .expect("a stuck reconcile fails /livez");
    let (_, verbose) = get(address, "/readyz?verbose").await;
    assert_eq!(
        verbose,
        "[+]ping ok\n[+]shutdown ok\n[+]start ok\n[+]controllers ok\nreadyz check passed\n"
    );

    running.stop.send(()).unwrap();
    reaches(&mut controller.state(), |state| {
        *state == ControllerState::Draining
    })
    .await;
    let (code, text) = get(address, "/readyz").await;
    assert!(
        code == 500 && text.contains("[-]shutdown failed: draining"),
        "{text}"
    );
    gate.add_permits(10);
    running.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn invariant_7_a_degraded_controller_shows_in_health_and_metrics() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let manager = Manager::builder("test", cluster.clone()).build().unwrap();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .metrics(manager.metrics())
        .build(reconcile_with(|_| async { Ok(Action::await_change()) }));
    manager.add(&controller).unwrap();
    let server = StatusServer::bind(&manager, loopback()).unwrap();
    let address = server.address();
    manager.add_component(server).unwrap();
    manager.add_health_check(HealthCheck::readiness("extra", || Err("not today".into())));
    let running = run(&manager);
    reaches(&mut controller.state(), |state| {
        *state == ControllerState::Running
    })
    .await;
    let (_, informers) = get(address, "/debug/informers").await;
    let informers: serde_json::Value = serde_json::from_str(&informers).unwrap();
    assert_eq!(informers[0]["kind"], "configmaps/v1");
    assert_eq!(informers[0]["objects"], 1);
    for field in [
        "consumers",
        "wireBytes",
        "resourceVersion",
        "ageSeconds",
        "errors",
    ] {
        assert!(!informers[0][field].is_null(), "{field}");
    }
    cluster
        .cache()
        .evict_matching(&StopReason::Evicted("test".into()), |_| true);
    reaches(&mut controller.state(), |state| {
        matches!(
            state,
            ControllerState::Degraded(DegradedReason::SourceClosed { .. })
        )
    })
    .await;
    let (_, metrics) = get(address, "/metrics").await;
    assert!(
        metrics
            .contains("weft_runtime_controller_state{controller=\"notes\",state=\"degraded\"} 1")
    );
    let (code, text) = get(address, "/readyz").await;
    assert!(
        code == 500 && text.contains("notes is degraded: configmaps/v1: evicted: test"),
        "{text}"
    );
    assert!(text.contains("[-]extra failed: not today"), "{text}");
    let (_, controllers) = get(address, "/debug/controllers").await;
    let controllers: serde_json::Value = serde_json::from_str(&controllers).unwrap();
    assert_eq!(
        controllers[0]["state"],
        "degraded: configmaps/v1: evicted: test"
    );
    let (code, heap) = get(address, "/debug/heap").await;
    assert!(code == 200 && heap.contains("anonymousBytes"), "{heap}");
    running.stop.send(()).unwrap();
    running.task.await.unwrap().unwrap();
}

type SelfSigned = rcgen::CertifiedKey<rcgen::KeyPair>;

/// A certificate for localhost, in files of this directory.
fn certificate(directory: &std::path::Path) -> (SelfSigned, TlsFiles) {
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = TlsFiles {
        certificate: directory.join("tls.crt"),
        key: directory.join("tls.key"),
    };
    std::fs::write(&files.certificate, signed.cert.pem()).unwrap();
    std::fs::write(&files.key, signed.signing_key.serialize_pem()).unwrap();
    (signed, files)
}

/// A client that trusts this certificate.
fn connector(signed: &SelfSigned) -> tokio_rustls::TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(signed.cert.der().clone()).unwrap();
    let config = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tokio_rustls::TlsConnector::from(Arc::new(config))
}

/// Far more than the listener has room for.
const FLOOD: usize = 2_000;

async fn flood(address: SocketAddr, count: usize) -> weft_testkit::Flood {
    let flooding = move || weft_testkit::Flood::tcp(address, count).unwrap();
    tokio::task::spawn_blocking(flooding).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_finish_a_handshake_delay_no_probe() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let harness = Harness::embedded().await;
    let manager = Manager::builder("test", harness.cluster()).build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (signed, files) = certificate(directory.path());
    let page = StatusServer::bind(&manager, loopback()).unwrap().tls(files);
    let address = page.address();
    manager.add_component(page).unwrap();
    let running = run(&manager);
    let connector = connector(&signed);
    let probe = async || {
        let tcp = TcpStream::connect(address).await.unwrap();
        let name = "localhost".try_into().unwrap();
        let mut stream = connector.connect(name, tcp).await.unwrap();
        request(&mut stream, "/livez", None).await.0
    };
    for count in [1, 4, FLOOD] {
        let mut flood = flood(address, count).await;
        // Less than a handshake may take: without eviction the probe waits for those.
        let answer = tokio::time::timeout(Duration::from_secs(4), probe()).await;
        assert_eq!(answer.expect("an answer"), 200);
        assert!(flood.is_cut_to(256));
    }
    running.stop.send(()).unwrap();
    running.task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_finish_a_request_delay_no_probe() {
    let harness = Harness::embedded().await;
    let manager = Manager::builder("test", harness.cluster()).build().unwrap();
    let page = StatusServer::bind(&manager, loopback()).unwrap();
    let address = page.address();
    manager.add_component(page).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    manager
        .add_component(weft_runtime::ControlServer::bind(&manager, &socket).unwrap())
        .unwrap();
    let running = run(&manager);
    let on_the_page = flood(address, FLOOD).await;
    let path = socket.clone();
    let flooding = move || weft_testkit::Flood::unix(&path, FLOOD).unwrap();
    let on_the_socket = tokio::task::spawn_blocking(flooding).await.unwrap();
    let limit = Duration::from_secs(10);
    let answer = tokio::time::timeout(limit, get(address, "/livez")).await;
    assert_eq!(answer.expect("an answer").0, 200);
    let asked = weft_runtime::socket_get::<serde_json::Value>(&socket, "/debug/controllers");
    let answer = tokio::time::timeout(limit, asked).await;
    answer.expect("an answer on the control socket").unwrap();
    for mut flood in [on_the_page, on_the_socket] {
        assert!(flood.is_cut_to(256));
    }
    running.stop.send(()).unwrap();
    running.task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_wait_for_a_review_delay_no_probe() {
    let harness = Harness::embedded().await;
    let manager = Manager::builder("test", harness.cluster()).build().unwrap();
    // An API server that does not answer.
    let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, io::Error>>()
    });
    let page = StatusServer::bind(&manager, loopback())
        .unwrap()
        .access(Access::Review(kube::Client::new(silent, "default")));
    let address = page.address();
    manager.add_component(page).unwrap();
    let running = run(&manager);
    let connect = async || TcpStream::connect(address).await.unwrap();
    let mut waiting = Vec::new();
    // More than are reviewed at the same time.
    for _ in 0..32 {
        let mut client = connect().await;
        let request =
            "GET /debug/heap HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        waiting.push(client);
    }
    // Less than a review may take, and enough for one that comes before those above.
    let (limit, once) = (Duration::from_secs(8), Duration::from_secs(1));
    let refused = async {
        let refused = async || {
            request(&mut connect().await, "/debug/heap", Some("x"))
                .await
                .1
        };
        while !tokio::time::timeout(once, refused())
            .await
            .is_ok_and(|answer| answer.contains("too many are being reviewed"))
        {}
    };
    let outcome = tokio::time::timeout(limit, refused).await;
    outcome.expect("one more is refused at once");
    let answer = tokio::time::timeout(limit, get(address, "/livez")).await;
    assert_eq!(answer.expect("an answer").0, 200);
    drop(waiting);
    running.stop.send(()).unwrap();
    running.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn pages_on_loopback_answer_no_web_site_that_resolves_to_it() {
    let harness = Harness::embedded().await;
    let manager = Manager::builder("test", harness.cluster()).build().unwrap();
    let page = StatusServer::bind(&manager, loopback()).unwrap();
    let address = page.address();
    manager.add_component(page).unwrap();
    let running = run(&manager);
    let own = address.to_string();
    for (host, expected) in [
        (&*own, 200),
        ("localhost:1234", 200),
        ("[::1]", 200),
        ("evil.example", 421),
        ("evil.example:10249", 421),
        ("127.0.0.1.evil.example", 421),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let (code, text) = request_of_host(&mut stream, host, "/debug/informers", None).await;
        assert_eq!(code, expected, "{host}: {text}");
    }
    running.stop.send(()).unwrap();
    running.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn diagnostics_can_be_kept_behind_tls_and_token_review() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = weft_apiserver::ApiServer::builder()
        .authorization_mode(AuthorizationMode::Rbac)
        .token("of-the-operator", User::admin())
        .token("of-nobody", User::new("nobody", []))
        .build();
    let cluster = Cluster::new("test", server.client());
    let manager = Manager::builder("test", cluster.clone()).build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (signed, files) = certificate(directory.path());
    let page = StatusServer::bind(&manager, loopback())
        .unwrap()
        .tls(files)
        .access(Access::Review(cluster.client().clone()));
    let address = page.address();
    manager.add_component(page).unwrap();
    let running = run(&manager);

    let connector = connector(&signed);
    for (path, token, expected) in [
        ("/livez", None, 200),
        ("/metrics", None, 200),
        ("/debug/informers", None, 401),
        ("/debug/informers", Some("unknown"), 401),
        ("/debug/informers", Some("of-nobody"), 403),
        ("/debug/informers", Some("of-the-operator"), 200),
        ("/debug/controllers", Some("of-the-operator"), 200),
        ("/debug/heap", None, 401),
    ] {
        let tcp = TcpStream::connect(address).await.unwrap();
        let mut stream = connector
            .connect("localhost".try_into().unwrap(), tcp)
            .await
            .unwrap();
        let (code, text) = request(&mut stream, path, token).await;
        assert_eq!(code, expected, "{path} with {token:?}: {text}");
    }
    running.stop.send(()).unwrap();
    running.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn invariant_42_nothing_is_ready_before_everything_has_started() {
    let harness = Harness::embedded().await;
    let manager = Manager::builder("test", harness.cluster()).build().unwrap();
    let server = StatusServer::bind(&manager, loopback()).unwrap();
    let address = server.address();
    manager.add_component(server).unwrap();
    let journal = Journal::default();
    let permits = Arc::new(Semaphore::new(0));
    let slow = Recorded {
        permits: permits.clone(),
        ..component("slow", Phase::Webhook, &journal)
    };
    manager.add_component(slow).unwrap();
    let running = run(&manager);
    eventually("the slow one is starting", || {
        !journal.lock().unwrap().is_empty()
    })
    .await;
    let (code, text) = get(address, "/readyz").await;
    assert!(code == 500 && text.contains("[-]start failed"), "{text}");
    permits.add_permits(1);
    let ready = async { while get(address, "/readyz").await.0 != 200 {} };
    tokio::time::timeout(Duration::from_secs(30), ready)
        .await
        .expect("ready");
    running.stop.send(()).unwrap();
    running.task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_an_election_leader_only_controllers_run() {
    let harness = Harness::embedded().await;
    let cluster = harness.cluster();
    let manager = Manager::builder("test", cluster.clone()).build().unwrap();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .leader_only()
        .build(reconcile_with(|_| async { Ok(Action::await_change()) }));
    manager.add(&controller).unwrap();
    let running = run(&manager);
    reaches(&mut controller.state(), |state| {
        *state == ControllerState::Running
    })
    .await;
    running.stop.send(()).unwrap();
    running.task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_component_that_panics_is_named_and_does_not_block_the_stop() {
    struct Panicking;
    impl Component for Panicking {
        fn name(&self) -> &'static str {
            "panicking"
        }
        fn phase(&self) -> Phase {
            Phase::Cache
        }
        fn run(self: Arc<Self>, _scope: ComponentScope) -> ComponentRun {
            panic!("on purpose")
        }
    }
    let harness = Harness::embedded().await;
    let manager = Manager::builder("test", harness.cluster()).build().unwrap();
    manager.add_component(Panicking).unwrap();
    let error = run(&manager).task.await.unwrap().unwrap_err();
    assert!(matches!(error, ManagerError::Component { name, .. } if name == "panicking"));
}

#[tokio::test]
async fn a_port_in_use_is_an_error_of_the_start() {
    let harness = Harness::embedded().await;
    let manager = Manager::builder("test", harness.cluster()).build().unwrap();
    let first = StatusServer::bind(&manager, loopback()).unwrap();
    let error = StatusServer::bind(&manager, first.address())
        .err()
        .expect("refused");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}
