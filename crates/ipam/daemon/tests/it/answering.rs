//! Responses to plugins.

use std::time::Duration;

use futures::future::join_all;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt as _;
use weft_cns::{
    AddressFilter, AddressState, AddressesResponse, Attachment, GcRequest, GcResponse,
    IpConfigRequest, IpConfigResponse, IpConfigsResponse, ReturnCode, Serving, StatusResponse,
    path as paths,
};
use weft_ipam_daemon::socket_get;

use weft_listener::{ConnectionPool, Limits, PrivateSocket};

use super::world::{World, add, ask, delete, request, send, try_add};

fn serve(listener: PrivateSocket, router: axum::Router) -> tokio::task::JoinHandle<()> {
    let pool = ConnectionPool::new("test", Limits::PAGES);
    tokio::spawn(async move {
        weft_listener::serve(listener, &pool, router, std::future::pending()).await;
    })
}

fn addresses(count: u8) -> Vec<String> {
    (4..4 + count)
        .map(|last| format!("10.1.0.{last}"))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn asking_twice_gives_the_same_and_deleting_twice_is_fine() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    world.grant("n1", &addresses(16)).await;
    let daemon = world.start("n1", state.path()).await;
    let first = daemon.add("p0").await;
    assert_eq!(daemon.add("p0").await, first);
    assert_ne!(daemon.add("p1").await, first);
    assert_eq!(delete(&daemon.router, "p0").await, ReturnCode::SUCCESS);
    assert_eq!(delete(&daemon.router, "p0").await, ReturnCode::SUCCESS);
    assert_eq!(delete(&daemon.router, "never").await, ReturnCode::SUCCESS);
    assert_eq!(
        try_add(&daemon.router, "p0").await,
        Err(ReturnCode::INVALID_REQUEST),
        "its DEL came first"
    );
    assert_eq!(daemon.attached().await, 1);
}

#[tokio::test(start_paused = true)]
async fn an_add_waits_until_addresses_arrive_and_not_for_ever() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    world.grant("n1", &addresses(1)).await;
    let daemon = world.start("n1", state.path()).await;
    daemon.add("p0").await;
    let begun = tokio::time::Instant::now();
    assert_eq!(
        try_add(&daemon.router, "p1").await,
        Err(ReturnCode::FAILED_TO_ALLOCATE_IP_CONFIG)
    );
    assert_eq!(begun.elapsed().as_secs(), 25);
    let router = daemon.router.clone();
    let waits = tokio::spawn(async move { add(&router, "p2").await });
    daemon
        .becomes("waiting", |status| status.pool.waiting == 1)
        .await;
    world.grant("n1", &addresses(2)).await;
    assert_eq!(waits.await.unwrap().to_string(), "10.1.0.5");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_while_waiting_gets_nothing() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    world.grant("n1", &addresses(1)).await;
    let daemon = world.start("n1", state.path()).await;
    daemon.add("p0").await;
    let router = daemon.router.clone();
    let waits = tokio::spawn(async move { try_add(&router, "p1").await });
    daemon
        .becomes("waiting", |status| status.pool.waiting == 1)
        .await;
    waits.abort();
    daemon
        .becomes("left", |status| status.pool.waiting == 0)
        .await;
    world.grant("n1", &addresses(2)).await;
    daemon
        .becomes("free", |status| status.pool.available == 1)
        .await;
    assert_eq!(daemon.attached().await, 1);
    assert_eq!(daemon.add("p1").await.to_string(), "10.1.0.5");
}

#[tokio::test]
async fn a_client_that_disconnects_before_the_reply_is_durable_gets_nothing() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    world.grant("n1", &addresses(16)).await;
    let daemon = world.start("n1", state.path()).await;
    daemon
        .becomes("ready", |status| status.serving == Serving::Ready)
        .await;
    for round in 0..20 {
        let name = format!("p{round}");
        let asks = super::world::try_add(&daemon.router, &name);
        // Polled once: the request is in flight, its commit has hardly begun.
        assert!(futures::FutureExt::now_or_never(asks).is_none());
    }
    daemon
        .becomes("taken back", |status| {
            status.pool.assigned == 0 && status.pool.waiting == 0
        })
        .await;
}

#[tokio::test]
async fn fifty_adds_at_once_cost_a_handful_of_commits() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    world.grant("n1", &addresses(200)).await;
    let daemon = world.start("n1", state.path()).await;
    daemon
        .becomes("ready", |status| status.serving == Serving::Ready)
        .await;
    let before = daemon.count("weft_ipam_commits_total");
    let names: Vec<String> = (0..50).map(|pod| format!("p{pod}")).collect();
    let mut given = join_all(names.iter().map(|name| daemon.add(name))).await;
    given.sort();
    given.dedup();
    assert_eq!(given.len(), 50);
    let commits = daemon.count("weft_ipam_commits_total") - before;
    assert!(commits <= 5, "{commits} commits for 50 ADDs");
}

#[tokio::test(start_paused = true)]
async fn the_older_forms_answer_with_one_address() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    world.grant("n1", &addresses(2)).await;
    let daemon = world.start("n1", state.path()).await;
    let one = IpConfigRequest {
        pod_interface_id: "abc".to_owned(),
        orchestrator_context: request("p0").orchestrator_context,
        ..IpConfigRequest::default()
    };
    daemon
        .becomes("ready", |status| status.serving == Serving::Ready)
        .await;
    let answer: IpConfigResponse = ask(&daemon.router, paths::REQUEST_IP_CONFIG, &one).await;
    let info = &answer.pod_ip_info;
    assert_eq!(
        info.pod_ip_config.ip_address.unwrap().to_string(),
        "10.1.0.4"
    );
    assert_eq!(info.prefix_length(), 16);
    assert_eq!(info.gateway().unwrap().to_string(), "10.1.0.1");
    let released: Value = ask(&daemon.router, paths::RELEASE_IP_CONFIG, &one).await;
    assert_eq!(released["ReturnCode"], 0);
    assert_eq!(daemon.attached().await, 0);
}

#[tokio::test(start_paused = true)]
async fn check_debug_and_clean_up_look_at_the_same_pool() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    world.grant("n1", &addresses(4)).await;
    let daemon = world.start("n1", state.path()).await;
    let address = daemon.add("p0").await;
    daemon.add("p1").await;
    let held: IpConfigsResponse =
        ask(&daemon.router, paths::CHECK_IP_CONFIGS, &request("p0")).await;
    assert_eq!(held.pod_ip_info[0].pod_ip_config.ip_address, Some(address));
    let none: IpConfigsResponse =
        ask(&daemon.router, paths::CHECK_IP_CONFIGS, &request("p9")).await;
    assert_eq!(none.response.return_code, ReturnCode::NOT_FOUND);
    let filter = AddressFilter {
        states: vec![AddressState::Assigned],
    };
    let shown: AddressesResponse = ask(&daemon.router, paths::DEBUG_ADDRESSES, &filter).await;
    assert_eq!(shown.addresses.len(), 2);
    assert_eq!(shown.addresses[0].pod_info.as_ref().unwrap().pod_name, "p0");
    let data: Value = ask(&daemon.router, paths::DEBUG_REST_DATA, &json!({})).await;
    assert_eq!(
        data["HTTPRestServiceData"]["PodIPConfigState"]
            .as_object()
            .unwrap()
            .len(),
        4
    );
    let (_, text) = send(
        &daemon.router,
        Method::GET,
        "/v1/pods/default/p0",
        Vec::new(),
    )
    .await;
    assert!(text.contains(&address.to_string()), "{text}");
    // Young attachments are kept: their ADD may not be in the runtime's list yet.
    let only_first = GcRequest {
        network_name: "podnet".to_owned(),
        valid_attachments: vec![Attachment {
            container_id: "sandbox-p0".to_owned(),
            ifname: "eth0".to_owned(),
        }],
    };
    let answer: GcResponse = ask(&daemon.router, paths::GC, &only_first).await;
    assert_eq!(answer.released, 0);
    tokio::time::sleep(Duration::from_secs(241)).await;
    let nameless = GcRequest {
        network_name: String::new(),
        ..only_first.clone()
    };
    let answer: GcResponse = ask(&daemon.router, paths::GC, &nameless).await;
    let code = answer.response.return_code;
    assert_eq!((answer.released, code), (0, ReturnCode::INVALID_PARAMETER));
    let answer: GcResponse = ask(&daemon.router, paths::GC, &only_first).await;
    assert_eq!((answer.released, daemon.attached().await), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn invalid_requests_are_refused_and_change_nothing() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    world.grant("n1", &addresses(4)).await;
    let daemon = world.start("n1", state.path()).await;
    daemon
        .becomes("ready", |status| status.serving == Serving::Ready)
        .await;
    let post = |body: Vec<u8>| {
        send(
            &daemon.router,
            Method::POST,
            paths::REQUEST_IP_CONFIGS,
            body,
        )
    };
    assert_eq!(post(b"{".to_vec()).await.0, StatusCode::BAD_REQUEST);
    let huge = post(vec![b' '; 2 << 20]).await;
    assert_eq!(huge.0, StatusCode::PAYLOAD_TOO_LARGE);
    let (unknown, _) = send(&daemon.router, Method::POST, "/network/other", Vec::new()).await;
    assert_eq!(unknown, StatusCode::NOT_FOUND);
    let code = async |request: Value| {
        let answer: IpConfigsResponse =
            ask(&daemon.router, paths::REQUEST_IP_CONFIGS, &request).await;
        answer.response.return_code
    };
    let context = json!({"podName": "p", "podNamespace": "n"});
    assert_eq!(
        code(json!({"podInterfaceID": "a"})).await,
        ReturnCode::EMPTY_ORCHESTRATOR_CONTEXT
    );
    assert_eq!(
        code(json!({"orchestratorContext": context})).await,
        ReturnCode::INVALID_PARAMETER
    );
    let long = json!({"podInterfaceID": "a".repeat(600), "orchestratorContext": context});
    assert_eq!(code(long).await, ReturnCode::INVALID_PARAMETER);
    let desired = json!({"podInterfaceID": "a", "orchestratorContext": context, "desiredIPAddresses": ["10.9.9.9"]});
    assert_eq!(code(desired).await, ReturnCode::ADDRESS_UNAVAILABLE);
    assert_eq!(daemon.attached().await, 0);
}

#[tokio::test]
async fn the_socket_is_private_and_replaces_that_of_an_earlier_process() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    let daemon = world.start("n1", state.path()).await;
    let path = state.path().join("run/ipam.sock");
    drop(PrivateSocket::bind(&path).unwrap());
    let listener = PrivateSocket::bind(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let router = daemon.router.clone();
    let server = serve(listener, router);
    let status: StatusResponse = socket_get(&path, paths::STATUS).await.unwrap();
    assert_eq!((status.pool.available, status.pool.assigned), (0, 0));
    let taken = PrivateSocket::bind(&path).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    let _still: StatusResponse = socket_get(&path, paths::STATUS).await.unwrap();
    server.abort();
    let file = state.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(PrivateSocket::bind(&file).is_err());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[tokio::test]
async fn a_connection_that_is_closed_takes_its_request_back() {
    use tokio::io::AsyncWriteExt as _;
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    let daemon = world.start("n1", state.path()).await;
    let path = state.path().join("ipam.sock");
    let listener = PrivateSocket::bind(&path).unwrap();
    let router = daemon.router.clone();
    let server = serve(listener, router);
    let body = serde_json::to_string(&request("p0")).unwrap();
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: weft\r\nContent-Length: {}\r\n\r\n",
        paths::REQUEST_IP_CONFIGS,
        body.len()
    );
    let mut plugin = tokio::net::UnixStream::connect(&path).await.unwrap();
    plugin
        .write_all(format!("{head}{body}").as_bytes())
        .await
        .unwrap();
    daemon
        .becomes("waiting", |status| status.pool.waiting == 1)
        .await;
    drop(plugin);
    daemon
        .becomes("left", |status| status.pool.waiting == 0)
        .await;
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_finish_a_request_keep_no_plugin_out() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    world.grant("n1", &addresses(16)).await;
    let daemon = world.start("n1", state.path()).await;
    let path = state.path().join("ipam.sock");
    let server = serve(PrivateSocket::bind(&path).unwrap(), daemon.router.clone());
    let socket = path.clone();
    let flooding = move || weft_testkit::Flood::unix(&socket, 2_000).unwrap();
    let mut flood = tokio::task::spawn_blocking(flooding).await.unwrap();
    let asked = socket_get::<StatusResponse>(&path, paths::STATUS);
    let answer = tokio::time::timeout(Duration::from_secs(10), asked).await;
    answer.expect("an answer").unwrap();
    assert!(flood.is_cut_to(512));
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn repairs_of_the_installer_are_among_the_metrics() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    let daemon = world.start("n1", state.path()).await;
    for (repairs, shown) in [("3", 3), ("many", 3), ("4", 4)] {
        let request = http::Request::get(paths::STATUS)
            .header("weft-cni-repairs", repairs)
            .body(axum::body::Body::empty())
            .unwrap();
        let answer = daemon.router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), http::StatusCode::OK);
        assert_eq!(daemon.count("weft_ipam_cni_repairs"), shown);
    }
}
