//! The daemon after a restart, a reboot, a move to another machine, and a damaged store.

use std::{fs, time::Duration};

use http::Method;
use serde_json::{Value, json};
use weft_cns::{ReturnCode, Serving, StatusResponse};
use weft_ipam_daemon::store::file;

use weft_testserver::{call, path};

use super::world::{Running, World, delete, try_add};

fn addresses(count: u8) -> Vec<String> {
    (4..4 + count)
        .map(|last| format!("10.1.0.{last}"))
        .collect()
}

/// A cluster whose daemon assigned addresses to `kept` and `gone`, and stopped after the DEL of
/// `gone`.
async fn used(state: &std::path::Path) -> (World, std::net::IpAddr) {
    let world = World::new().await;
    world.grant("n1", &addresses(8)).await;
    let daemon = world.start("n1", state).await;
    let kept = daemon.add("kept").await;
    daemon.add("gone").await;
    delete(&daemon.router, "gone").await;
    daemon.stop().await;
    (world, kept)
}

async fn ready(daemon: &Running) {
    daemon
        .becomes("ready", |status| status.serving == Serving::Ready)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_attachments_and_refuses_late_adds() {
    let state = tempfile::tempdir().unwrap();
    let (world, kept) = used(state.path()).await;
    let daemon = world.start("n1", state.path()).await;
    assert_eq!(daemon.add("kept").await, kept);
    assert_eq!(
        try_add(&daemon.router, "gone").await,
        Err(ReturnCode::INVALID_REQUEST)
    );
    assert_eq!(daemon.attached().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_restart_without_api_server_serves_what_is_known() {
    let state = tempfile::tempdir().unwrap();
    let (_, kept) = used(state.path()).await;
    let server = weft_apiserver::ApiServer::builder().build();
    let empty = World {
        client: server.client(),
        server,
    };
    let daemon = empty.start("n1", state.path()).await;
    assert_eq!(daemon.add("kept").await, kept);
    assert_eq!(delete(&daemon.router, "kept").await, ReturnCode::SUCCESS);
    assert_eq!(
        try_add(&daemon.router, "new").await,
        Err(ReturnCode::FAILED_TO_ALLOCATE_IP_CONFIG)
    );
}

#[tokio::test(start_paused = true)]
async fn a_reboot_ends_attachments_and_tombstones() {
    let state = tempfile::tempdir().unwrap();
    let (world, _) = used(state.path()).await;
    let daemon = world
        .start_as("n1", state.path(), "machine", "boot-2")
        .await;
    ready(&daemon).await;
    assert_eq!(daemon.attached().await, 0);
    daemon.add("gone").await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_of_another_machine_brings_no_pods_along() {
    let state = tempfile::tempdir().unwrap();
    let (world, _) = used(state.path()).await;
    world.add_pod("n1", "runs").await;
    world.show_address("runs", "10.1.0.4").await;
    let daemon = world
        .start_as("n1", state.path(), "machine-2", "boot")
        .await;
    ready(&daemon).await;
    assert_eq!(daemon.attached().await, 1, "the pod that runs here");
    let given = daemon.add("new").await;
    assert_eq!(given.to_string(), "10.1.0.5");
}

/// Deletes the Node and registers another of its name, as a kubelet that restarts does.
async fn register_again(world: &World) -> String {
    let nodes = "/api/v1/nodes";
    let path = format!("{nodes}/n1");
    let deleted = call(&world.client, Method::DELETE, &path, &Value::Null);
    deleted.await.unwrap();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let node = call(&world.client, Method::POST, nodes, &node).await;
    node.unwrap()["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Events about the node: reason, and its text.
async fn events(world: &World, uid: &str) -> Vec<(String, String)> {
    let path = "/apis/events.k8s.io/v1/events";
    let list = call(&world.client, Method::GET, path, &Value::Null).await;
    let list = list.unwrap();
    let about = list["items"].as_array().unwrap().iter();
    let own = about
        .filter(|event| event["regarding"]["kind"] == "Node" && event["regarding"]["uid"] == uid);
    let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
    own.map(|event| (text(event, "reason"), text(event, "note")))
        .collect()
}

/// Waits for this many events about the node.
async fn reported(world: &World, uid: &str, count: usize) -> Vec<(String, String)> {
    let wait = async {
        while events(world, uid).await.len() < count {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let came = tokio::time::timeout(Duration::from_secs(600), wait).await;
    let reported = events(world, uid).await;
    assert!(came.is_ok(), "only {reported:?}");
    reported
}

#[tokio::test(start_paused = true)]
async fn a_node_that_registers_again_says_what_is_wrong_until_it_is_right() {
    let state = tempfile::tempdir().unwrap();
    let world = World::new().await;
    world.grant("n1", &addresses(8)).await;
    let daemon = world.start("n1", state.path()).await;
    ready(&daemon).await;
    let before = daemon.status().await;
    let gateways: Vec<String> = (before.gateways.iter())
        .map(|gateway| format!("{}/{}", gateway.ip_address.unwrap(), gateway.prefix_length))
        .collect();
    assert_eq!(gateways, ["10.1.0.1/16"]);
    let uid = register_again(&world).await;
    let says = |status: &StatusResponse| {
        status.serving == Serving::Unavailable && status.reason.contains("of a deleted Node")
    };
    daemon.becomes("closed", says).await;
    let status = daemon.status().await;
    assert!(!status.starting, "no short absence, so CNI STATUS fails");
    assert_eq!(status.gateways, [], "a bridge is left as it is meanwhile");
    let shown = weft_ipam_daemon::report::status_text(&status);
    assert!(shown.starts_with("not ready: the NodeNetworkConfig is of a deleted Node"));
    let first = reported(&world, &uid, 1).await;
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(first[0].0, "AddressesUnavailable");
    assert!(first[0].1.contains("of a deleted Node"), "{first:?}");
    // What the controller does after the grace period.
    let config = path("nodenetworkconfigs", "n1");
    let deleted = call(&world.client, Method::DELETE, &config, &Value::Null);
    // The server may have collected it with its owner.
    let _collected = deleted.await;
    let owner =
        json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": true});
    let fresh = json!({
        "apiVersion": "ipam.weft.dev/v1alpha1", "kind": "NodeNetworkConfig",
        "metadata": {"name": "n1", "namespace": "kube-system", "ownerReferences": [owner]},
    });
    let all = path("nodenetworkconfigs", "");
    call(&world.client, Method::POST, &all, &fresh)
        .await
        .unwrap();
    world.grant("n1", &["10.1.0.99".to_owned()]).await;
    ready(&daemon).await;
    let last = reported(&world, &uid, 2).await;
    assert!(
        last.iter()
            .any(|(reason, _)| reason == "AddressesAvailable")
    );
}

#[tokio::test(start_paused = true)]
async fn a_start_is_no_event_and_is_told_apart_from_trouble() {
    let state = tempfile::tempdir().unwrap();
    let server = weft_apiserver::ApiServer::builder().build();
    let empty = World {
        client: server.client(),
        server,
    };
    let daemon = empty.start("n1", state.path()).await;
    let status = daemon.status().await;
    assert_eq!(
        (status.serving, status.starting),
        (Serving::Unavailable, true)
    );
    daemon.stop().await;
    let state = tempfile::tempdir().unwrap();
    let (world, _) = used(state.path()).await;
    let daemon = world.start("n1", state.path()).await;
    ready(&daemon).await;
    assert!(!daemon.status().await.starting);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let node = call(&world.client, Method::GET, "/api/v1/nodes/n1", &Value::Null).await;
    let uid = node.unwrap()["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(events(&world, &uid).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_node_recreated_under_a_running_daemon_gets_nothing_of_its_predecessor() {
    let state = tempfile::tempdir().unwrap();
    let world = World::new().await;
    world.grant("n1", &addresses(8)).await;
    let daemon = world.start("n1", state.path()).await;
    let kept = daemon.add("kept").await;
    let nodes = "/api/v1/nodes";
    let delete = async |path: &str| {
        let deleted = call(&world.client, Method::DELETE, path, &Value::Null);
        deleted.await.unwrap();
    };
    delete(&format!("{nodes}/n1")).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    call(&world.client, Method::POST, nodes, &node)
        .await
        .unwrap();
    let closed = |status: &StatusResponse| status.serving != Serving::Ready;
    daemon.becomes("closed", closed).await;
    assert_eq!(
        try_add(&daemon.router, "new").await,
        Err(ReturnCode::FAILED_TO_ALLOCATE_IP_CONFIG)
    );
    assert_eq!(daemon.add("kept").await, kept);
    delete(&format!("{nodes}/n1")).await;
    // The old one is collected with its owner.
    let config = path("nodenetworkconfigs", "n1");
    let get = || call(&world.client, Method::GET, &config, &Value::Null);
    while get().await.is_ok() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    world.add_node("n1").await;
    world.grant("n1", &["10.1.0.99".to_owned()]).await;
    assert_eq!(daemon.add("newer").await.to_string(), "10.1.0.99");
    // A deleted object says nothing, either.
    delete(&config).await;
    daemon.becomes("closed", closed).await;
}

/// A store that is gone or empty while its counter exists is not a first start.
#[tokio::test(start_paused = true)]
async fn a_store_that_was_removed_or_emptied_is_lost_and_not_new() {
    for empty in [false, true] {
        let state = tempfile::tempdir().unwrap();
        let (world, kept) = used(state.path()).await;
        world.add_pod("n1", "kept").await;
        world.show_address("kept", &kept.to_string()).await;
        fs::remove_file(file(state.path())).unwrap();
        if empty {
            fs::write(file(state.path()), "").unwrap();
        }
        let daemon = world.start("n1", state.path()).await;
        ready(&daemon).await;
        assert_eq!(daemon.count("weft_ipam_stores_lost_total"), 1);
        assert_eq!(
            try_add(&daemon.router, "early").await,
            Err(ReturnCode::FAILED_TO_ALLOCATE_IP_CONFIG)
        );
        assert_eq!(daemon.attached().await, 1, "the pod that shows its address");
    }
}

/// Checks that a damaged store is noticed, kept aside, and rebuilt from the pods.
async fn survives(damage: impl Fn(&mut Vec<u8>)) {
    let state = tempfile::tempdir().unwrap();
    let (world, kept) = used(state.path()).await;
    world.add_pod("n1", "kept").await;
    world.show_address("kept", &kept.to_string()).await;
    let store = file(state.path());
    let mut bytes = fs::read(&store).unwrap();
    damage(&mut bytes);
    fs::write(&store, &bytes).unwrap();
    let daemon = world.start("n1", state.path()).await;
    ready(&daemon).await;
    assert_eq!(daemon.count("weft_ipam_stores_lost_total"), 1);
    let aside = state.path().join("addresses.redb.damaged-1");
    assert_eq!(
        fs::read(aside).unwrap().len(),
        bytes.len(),
        "the damaged file is unchanged"
    );
    assert_eq!(
        try_add(&daemon.router, "early").await,
        Err(ReturnCode::FAILED_TO_ALLOCATE_IP_CONFIG),
        "an unreported sandbox may use it"
    );
    // Addresses observed only now may have been granted and assigned before the loss.
    world.grant("n1", &addresses(12)).await;
    daemon
        .becomes("larger", |status| status.pool.cooling == 11)
        .await;
    assert_eq!(
        try_add(&daemon.router, "early").await,
        Err(ReturnCode::FAILED_TO_ALLOCATE_IP_CONFIG),
        "the same for addresses granted later"
    );
    let reason = daemon.status().await.reason;
    assert!(reason.contains("store was lost"), "{reason}");
    tokio::time::sleep(std::time::Duration::from_secs(240)).await;
    for pod in 0..7 {
        assert_ne!(daemon.add(&format!("new-{pod}")).await, kept);
    }
    daemon.stop().await;
    let daemon = world.start("n1", state.path()).await;
    assert_eq!(daemon.count("weft_ipam_stores_lost_total"), 0);
    assert_eq!(daemon.attached().await, 8);
}

#[tokio::test(start_paused = true)]
async fn a_truncated_store_is_lost_and_not_trusted() {
    survives(|bytes| bytes.truncate(bytes.len() / 3)).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_of_garbage_is_lost_and_not_trusted() {
    survives(|bytes| bytes.fill(0x5a)).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_with_changed_rows_is_lost_and_not_trusted() {
    survives(|bytes| {
        let needle = b"sandbox-kept";
        let places: Vec<usize> = (0..bytes.len() - needle.len())
            .filter(|at| &bytes[*at..*at + needle.len()] == needle)
            .collect();
        assert!(!places.is_empty());
        for at in places {
            bytes[at] = b'S';
        }
    })
    .await;
}
