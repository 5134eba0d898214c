//! Azure's objects, reactive scaling, and dual stack.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use weft_apiserver::ApiServer;
use weft_cns::Serving;
use weft_ipam::ScalingMode;
use weft_ipam::objects::{AZURE_GROUP, NetworkObjects};
use weft_ipam_daemon::IpamSettings;

use super::world::{World, try_add};
use weft_testserver::{call, path};

const AZURE: &str = "/apis/acn.azure.com/v1alpha/namespaces/kube-system/nodenetworkconfigs";

/// A cluster that has Azure's definition of NodeNetworkConfigs and not Weft's.
async fn azure() -> World {
    let server = ApiServer::builder().build();
    let world = World {
        client: server.client(),
        server,
    };
    let text = include_str!("../../../../../deploy/crds/nodenetworkconfigs.yaml");
    let text = text.replace("ipam.weft.dev", AZURE_GROUP);
    let text = text.replace("name: v1alpha1", "name: v1alpha");
    let mut definition: Value = serde_saphyr::from_str(&text).unwrap();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let spec = schema["properties"]["spec"]["properties"].as_object_mut();
    spec.unwrap().remove("demandIPCount").unwrap();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let made = call(&world.client, Method::POST, definitions, &definition).await;
    made.unwrap();
    while call(&world.client, Method::GET, AZURE, &Value::Null)
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world
}

#[tokio::test(start_paused = true)]
async fn azures_own_objects_are_read_and_written_as_its_controller_expects() {
    let world = azure().await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let node = call(&world.client, Method::POST, "/api/v1/nodes", &node).await;
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "controller": true,
        "uid": node.unwrap()["metadata"]["uid"]});
    let config = json!({"apiVersion": "acn.azure.com/v1alpha", "kind": "NodeNetworkConfig",
        "metadata": {"name": "n1", "namespace": "kube-system", "ownerReferences": [owner]}});
    call(&world.client, Method::POST, AZURE, &config)
        .await
        .unwrap();
    let own = format!("{AZURE}/n1");
    let entry = json!({"name": "a-uuid", "ip": "10.1.0.4"});
    let status = json!({"status": {
        "assignedIPCount": 1,
        "scaler": {"batchSize": 16, "requestThresholdPercent": 50, "maxIPCount": 250},
        "networkContainers": [{"id": "nc", "subnetName": "pool",
            "subnetAddressSpace": "10.1.0.0/16", "ipAssignments": [entry]}],
    }});
    let page = format!("{own}/status");
    let written = call(&world.client, Method::PATCH, &page, &status).await;
    written.unwrap();
    for pod in 0..9 {
        world.add_pod("n1", &format!("p{pod}")).await;
    }
    let state = tempfile::tempdir().unwrap();
    let mut settings = IpamSettings::new("n1", state.path());
    settings.objects = NetworkObjects {
        group: AZURE_GROUP.to_owned(),
        ..NetworkObjects::default()
    };
    settings.monitor.write_demand = false;
    let daemon = world.start_with(settings, "machine", "boot").await;
    assert_eq!(daemon.add("p0").await.to_string(), "10.1.0.4");
    daemon
        .becomes("asked", |status| status.pool.requested == 32)
        .await;
    let config = call(&world.client, Method::GET, &own, &Value::Null).await;
    assert_eq!(config.unwrap()["spec"], json!({"requestedIPCount": 32}));
}

#[tokio::test(start_paused = true)]
async fn driven_by_requests_the_pool_grows_by_a_batch_when_it_runs_low_and_not_before() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    let _allocator = world.allocator(&["n1"], Duration::from_millis(100));
    let mut settings = IpamSettings::new("n1", state.path());
    settings.monitor.mode = ScalingMode::Requests;
    let daemon = world.start_with(settings, "machine", "boot").await;
    daemon
        .becomes("16", |status| status.pool.available == 16)
        .await;
    for pod in 0..40 {
        world.add_pod("n1", &format!("p{pod}")).await;
    }
    for pod in 0..8 {
        daemon.add(&format!("p{pod}")).await;
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.requested("n1").await, 16, "pods do not count");
    daemon.add("p8").await;
    daemon
        .becomes("32", |status| status.pool.available == 32 - 9)
        .await;
    assert_eq!(world.requested("n1").await, 32);
}

/// Writes a status with these addresses of both families.
async fn grant_both(world: &World, fours: &[&str], sixes: &[&str]) {
    let container = |id: &str, field: &str, subnet: &str, addresses: &[&str]| {
        let entries: Vec<Value> = addresses
            .iter()
            .map(|address| json!({"name": format!("id-{address}"), "ip": address}))
            .collect();
        json!({"id": id, "subnetName": "pool", field: subnet, "ipAssignments": entries,
            "version": 1 + addresses.len()})
    };
    let status = json!({"status": {
        "scaler": {"batchSize": 16, "requestThresholdPercent": 50, "maxIPCount": 250},
        "networkContainers": [
            container("four", "subnetAddressSpace", "10.1.0.0/16", fours),
            container("six", "subnetAddressSpaceV6", "fd00::/64", sixes),
        ],
    }});
    let path = format!("{}/status", path("nodenetworkconfigs", "n1"));
    let written = call(&world.client, Method::PATCH, &path, &status);
    written.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_an_address_of_each_family_or_none() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    grant_both(&world, &["10.1.0.4", "10.1.0.5"], &["fd00::4"]).await;
    let daemon = world.start("n1", state.path()).await;
    daemon
        .becomes("ready", |status| status.serving == Serving::Ready)
        .await;
    let texts = |addresses: Vec<std::net::IpAddr>| -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    };
    let first = try_add(&daemon.router, "p0").await.map(texts);
    assert_eq!(
        first.as_deref(),
        Ok(&["10.1.0.4".to_owned(), "fd00::4".to_owned()][..])
    );
    let router = daemon.router.clone();
    let waits = tokio::spawn(async move { try_add(&router, "p1").await });
    daemon
        .becomes("waiting", |status| status.pool.waiting == 1)
        .await;
    assert_eq!(daemon.attached().await, 1, "one family alone is not enough");
    let status = daemon.status().await;
    let families = status.pool.families.iter();
    let counts: Vec<(&str, u64, u64)> = families
        .map(|(name, counts)| (&**name, counts.assigned, counts.available))
        .collect();
    assert_eq!(counts, [("ipv4", 1, 1), ("ipv6", 1, 0)]);
    let one_family = (status.pool.assigned, status.pool.available);
    assert_eq!(one_family, (1, 0), "of the scarcer family, never the sum");
    let shown = weft_ipam_daemon::report::status_text(&status);
    let lines: Vec<Vec<&str>> = (shown.lines())
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[1], ["addresses", "IPv4", "IPv6"]);
    assert_eq!(lines[2], ["assigned", "1", "1"]);
    assert_eq!(lines[3], ["free", "1", "0"]);
    assert_eq!(
        lines[7..9],
        [vec!["quarantined", "0", "0"], vec!["waiting", "1", "1"]]
    );
    let azure = "{subnet=\"pool\",subnet_cidr=\"10.1.0.0/16\",podnet_arm_id=\"\",customer_metric=\"customer metric\"}";
    let held = daemon.count(&format!("cx_ipam_pod_allocated_ips{azure}"));
    assert_eq!(held, 1, "as many as pods");
    grant_both(&world, &["10.1.0.4", "10.1.0.5"], &["fd00::4", "fd00::5"]).await;
    let second = waits.await.unwrap().map(texts);
    assert_eq!(
        second.as_deref(),
        Ok(&["10.1.0.5".to_owned(), "fd00::5".to_owned()][..])
    );
    daemon.stop().await;
    let daemon = world.start("n1", state.path()).await;
    assert_eq!(try_add(&daemon.router, "p0").await.map(texts), first);
}
