//! Objects that cannot be decoded or are refused do not affect others.

use http::Method;
use serde_json::{Value, json};

use super::world::World;
use weft_testserver::{call, path};

fn addresses(count: u8) -> Vec<String> {
    (4..4 + count)
        .map(|last| format!("10.1.0.{last}"))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn invalid_pods_do_not_count_and_affect_no_other() {
    let world = World::new().await;
    world.grant("n1", &addresses(8)).await;
    let state = tempfile::tempdir().unwrap();
    let odd = [
        (
            "does-not-decode",
            json!({"spec": {"nodeName": "n1", "hostNetwork": "yes"}}),
        ),
        (
            "no-list",
            json!({"spec": {"nodeName": "n1"}, "status": {"podIPs": "10.1.0.4"}}),
        ),
        (
            "absurd-addresses",
            json!({"spec": {"nodeName": "n1"}, "status": {"podIPs": [
                {"ip": "banana"}, {"ip": ""}, {"ip": "0.0.0.0"}, {"ip": "10.1.0.4/8"}, {"ip": "fe80::1%eth0"},
            ]}}),
        ),
        (
            "nothing",
            json!({"spec": {"nodeName": "n1"}, "status": null}),
        ),
    ];
    for (name, mut pod) in odd {
        pod["metadata"] = json!({"name": name, "namespace": "default"});
        let faults = world.server.faults();
        assert!(faults.inject_raw("pods", "default", name, pod));
    }
    world.add_pod("n1", "sound").await;
    let daemon = world.start("n1", state.path()).await;
    daemon.add("sound").await;
    // Pods with enough readable fields count: two here, and the valid one.
    daemon
        .becomes("counted", |status| status.pool.demand >= 3)
        .await;
    daemon.add("another").await;
    assert_eq!(
        daemon.attached().await,
        2,
        "nothing is adopted from invalid objects"
    );
}

#[tokio::test(start_paused = true)]
async fn a_config_that_does_not_decode_leaves_the_node_what_it_has_until_it_does_again() {
    let world = World::new().await;
    world.grant("n1", &addresses(4)).await;
    let state = tempfile::tempdir().unwrap();
    let daemon = world.start("n1", state.path()).await;
    daemon.add("before").await;
    let one = path("nodenetworkconfigs", "n1");
    let get = async || {
        call(&world.client, Method::GET, &one, &Value::Null)
            .await
            .unwrap()
    };
    let sound = get().await;
    let mut odd = sound.clone();
    odd["status"]["networkContainers"] = json!("none");
    let inject = |object: Value| {
        let faults = world.server.faults();
        assert!(faults.inject_raw(
            "nodenetworkconfigs.ipam.weft.dev",
            "kube-system",
            "n1",
            object
        ));
    };
    inject(odd);
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    daemon.add("meanwhile").await;
    // It is valid again, with one address more.
    world.grant("n1", &addresses(5)).await;
    daemon
        .becomes("larger", |status| {
            status.pool.available + status.pool.assigned == 5
        })
        .await;
}
