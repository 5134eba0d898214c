//! Exhausted and invalid pools.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use weft_testserver::path;

use super::world::World;

#[tokio::test(start_paused = true)]
async fn an_exhausted_pool_is_reported_and_serves_waiting_nodes_when_it_can() {
    let world = World::new().await;
    let spec = json!({"cidrs": ["10.0.0.0/26"], "cooldownSeconds": 5});
    world.add_pool("small", spec).await;
    world.add_nodes(5).await;
    let running = world.start();
    // 61 addresses for five nodes that want 16 each.
    world
        .until("exhausted", |configs| {
            let full = configs.values().filter(|config| {
                let mut containers = config.status.network_containers.iter();
                containers.any(|nc| nc.status.as_deref() == Some("NCUpdateSubnetFullError"))
            });
            full.count() > 0
        })
        .await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    world.check().await;
    let state = path("clustersubnetstates", "small");
    let state = world.call(Method::GET, &state, &Value::Null).await;
    assert_eq!(state["status"]["exhausted"], true);
    assert!(world.pool("small").await.status.exhausted);
    let exhausted = "weft_allocator_pool_exhausted{pool=\"small\"}";
    assert_eq!(running.count(exhausted), 1);
    let configs = world.configs().await;
    let sum: i64 = configs
        .values()
        .map(|config| config.status.assigned_ip_count)
        .sum();
    assert_eq!(sum, 61, "everything but the ends of the range is assigned");
    // In equal shares: a node that releases all makes room for the others.
    let counts: Vec<i64> = configs
        .values()
        .map(|config| config.status.assigned_ip_count)
        .collect();
    assert!(
        counts.iter().all(|count| [12, 13].contains(count)),
        "{counts:?}"
    );
    let mut all = configs.iter();
    let (giver, config) = all.next().unwrap();
    let (waiting, before) = all.next().unwrap();
    let (waiting, before) = (waiting.clone(), before.status.assigned_ip_count);
    let names = config.to_config();
    let names: Vec<&str> = names
        .status
        .entries()
        .map(|(_, entry)| entry.name.as_str())
        .collect();
    let back = json!({"requestedIPCount": 0, "ipsNotInUse": names});
    world.write_spec(giver, back).await;
    // A waiting node gets it without a new request.
    world
        .until("served", |configs| {
            configs[&waiting].status.assigned_ip_count > before
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn invalid_pools_are_reported_and_the_others_are_served() {
    let world = World::new().await;
    let only = |name: &str| json!({"name": name});
    let spec = json!({"cidrs": ["10.0.0.0/16"], "nodeSelector": only("node-0")});
    world.add_pool("good", spec).await;
    // The clock of the server has to advance for one to be older.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let spec = json!({"cidrs": ["10.0.128.0/17"], "nodeSelector": only("node-1")});
    world.add_pool("overlapping", spec).await;
    for (name, spec) in [
        (
            "nonsense",
            json!({"cidrs": ["10.9.0.0/99"], "nodeSelector": {"name": "nobody"}}),
        ),
        (
            "negative",
            json!({"cidrs": ["10.8.0.0/16"], "cooldownSeconds": -5, "nodeSelector": {"name": "nobody"}}),
        ),
        (
            "zero",
            json!({"cidrs": ["10.7.0.0/16"], "scaler": {"batchSize": 0},
            "nodeSelector": {"name": "node-2"}}),
        ),
    ] {
        let pool = json!({"apiVersion": "ipam.weft.dev/v1alpha1", "kind": "IPPool",
            "metadata": {"name": name, "uid": name, "generation": 1}, "spec": spec});
        let raw = world.server.faults();
        assert!(raw.inject_raw("ippools.ipam.weft.dev", "", name, pool));
    }
    world.add_nodes(3).await;
    let running = world.start();
    world
        .until("node-0 and node-2 are served", |configs| {
            let has = |name: &str| {
                configs
                    .get(name)
                    .is_some_and(|config| config.status.assigned_ip_count >= 16)
            };
            has("node-0") && has("node-2")
        })
        .await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let configs = world.configs().await;
    assert_eq!(configs["node-1"].status.assigned_ip_count, 0);
    assert_eq!(running.count("weft_allocator_flawed_pools"), 3);
    for (pool, complaint) in [
        (
            "overlapping",
            "Overlap: 10.0.128.0/17 overlaps 10.0.0.0/16 of pool good",
        ),
        (
            "nonsense",
            "InvalidRange: cidrs: \"10.9.0.0/99\" is not a CIDR",
        ),
        (
            "negative",
            "InvalidNumber: cooldownSeconds: -5 is not between",
        ),
        ("zero", "InvalidScaler: scaler batchSize 0 is not positive"),
    ] {
        let events = world.events_about(pool).await;
        let reported = events.iter().any(|event| event.contains(complaint));
        assert!(reported, "{pool}: {events:?}");
    }
    let ready = &world.pool("overlapping").await.status.conditions[0];
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", "Overlap")
    );
}
