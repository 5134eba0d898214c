//! Blocks of addresses for nodes: granted, released, and kept for deleted nodes.

use std::{collections::BTreeMap, time::Duration};

use http::Method;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use weft_ipam::{allocator::ClaimState, objects::FINALIZER};
use weft_runtime::{Gate, GateState};
use weft_testserver::path;

use super::world::World;

fn pool() -> serde_json::Value {
    json!({"cidrs": ["10.0.0.0/16"]})
}

#[tokio::test(start_paused = true)]
async fn fifty_nodes_get_what_they_ask_for_and_then_nothing_is_written() {
    let world = World::new().await;
    world.add_pool("pods", pool()).await;
    world.add_nodes(50).await;
    let running = world.start();
    world.all_have(50, 16).await;
    let configs = world.configs().await;
    let first = &configs["node-0"];
    let owner = &first.metadata.owner_references[0];
    assert_eq!(
        (&*owner.kind, &*owner.name, owner.controller),
        ("Node", "node-0", true)
    );
    assert_eq!(first.metadata.finalizers, [FINALIZER]);
    assert_eq!(first.spec.requested_ip_count, 16);
    for node in configs.keys() {
        world
            .write_spec(node, json!({"requestedIPCount": 40}))
            .await;
    }
    world.all_have(50, 48).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let status = world.pool("pods").await.status;
    let figures = status.figures.unwrap();
    assert_eq!((figures.claimed, figures.cooldown), (50 * 48, 0));
    assert_eq!(figures.total, figures.free + figures.claimed);
    assert_eq!(status.conditions[0].status, "True");
    let writes = world.writes();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.writes(), writes, "nothing changes");
    let claimed = "weft_allocator_addresses{pool=\"pods\",state=\"claimed\"}";
    assert_eq!(running.count(claimed), 50 * 48);
}

#[tokio::test(start_paused = true)]
async fn a_released_block_goes_to_another_node_only_after_its_cooldown() {
    let world = World::new().await;
    // Two blocks: the first and the last are split, since their ends are reserved.
    let spec = json!({"cidrs": ["10.0.0.0/26"], "cooldownSeconds": 60,
        "exhaustion": {"enterFreePercent": 0, "leaveFreePercent": 0}});
    world.add_pool("pods", spec).await;
    world.add_nodes(1).await;
    let _running = world.start();
    world.all_have(1, 16).await;
    world
        .write_spec("node-0", json!({"requestedIPCount": 32}))
        .await;
    world.all_have(1, 32).await;
    let config = world.configs().await["node-0"].to_config();
    let entry = config.status.entries().next().unwrap().1.clone();
    let net = entry.net().unwrap();
    let back = json!({"requestedIPCount": 16, "ipsNotInUse": [entry.name]});
    world.write_spec("node-0", back).await;
    world
        .until("taken back", |configs| {
            configs["node-0"].status.assigned_ip_count == 16
        })
        .await;
    let given_back = Instant::now();
    world
        .write_spec("node-0", json!({"requestedIPCount": 16, "ipsNotInUse": []}))
        .await;
    world.add_node("other", json!({})).await;
    world
        .until("another config", |configs| configs.contains_key("other"))
        .await;
    // More than the split blocks have: it gets the released block.
    world
        .write_spec("other", json!({"requestedIPCount": 40}))
        .await;
    world
        .until("given on", |configs| {
            configs.get("other").is_some_and(|config| {
                let config = config.to_config();
                let mut nets = config
                    .status
                    .entries()
                    .filter_map(|(_, entry)| entry.net().ok());
                nets.any(|other| net.contains(&other))
            })
        })
        .await;
    assert!(
        given_back.elapsed() >= Duration::from_secs(59),
        "{:?}",
        given_back.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_deleted_nodes_addresses_stay_its_own_until_the_grace_is_over() {
    let world = World::new().await;
    world.add_pool("pods", pool()).await;
    world.add_nodes(3).await;
    let _running = world.start();
    world.all_have(3, 16).await;
    let uid = world.configs().await["node-1"].metadata.uid.to_string();
    world.delete_node("node-1").await;
    let deleted = Instant::now();
    let held = async || {
        let claims = world.claims().await;
        let held = |state| state == ClaimState::Held;
        let mut of_node = claims
            .iter()
            .filter(|(_, claim)| *claim.holder.config.as_str() == *uid);
        of_node.any(|(_, claim)| held(claim.state))
    };
    while held().await {
        world.check().await;
        assert!(deleted.elapsed() < Duration::from_secs(600), "never freed");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(
        deleted.elapsed() >= Duration::from_secs(300),
        "{:?}",
        deleted.elapsed()
    );
    world
        .until("its config is gone", |configs| configs.len() == 2)
        .await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let figures = world.pool("pods").await.status.figures.unwrap();
    assert_eq!((figures.claimed, figures.cooldown), (32, 0));
    let writes = world.writes();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.writes(), writes, "nothing changes");
}

#[tokio::test(start_paused = true)]
async fn nodes_own_cidrs_are_published_without_claims() {
    let world = World::new().await;
    world.add_pool("own", json!({"nodeCIDRs": true})).await;
    world
        .add_node(
            "node-0",
            json!({"podCIDR": "10.5.0.0/24", "podCIDRs": ["10.5.0.0/24"]}),
        )
        .await;
    let _running = world.start();
    loop {
        let configs = world.configs().await;
        let config = configs.get("node-0");
        if config.is_some_and(|config| config.status.assigned_ip_count >= 16) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(world.claims().await.is_empty());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let writes = world.writes();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.writes(), writes, "nothing changes");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_not_the_leader_writes_nothing() {
    let world = World::new().await;
    world.add_pool("pods", pool()).await;
    world.add_nodes(2).await;
    let writes = world.writes();
    let (gate, states) = watch::channel(GateState::Closed { by: None });
    let _running = world.start_with(world.client.clone(), Gate::new(states));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.writes(), writes);
    gate.send(GateState::Open { until: None }).unwrap();
    world.all_have(2, 16).await;
}

/// The cells of a column of `kubectl get ippools`, by the names of pools.
async fn column(world: &World, name: &str) -> BTreeMap<String, Value> {
    let request = http::Request::get(path("ippools", ""))
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: Value = world.client.request(request).await.unwrap();
    let columns = table["columnDefinitions"].as_array().unwrap();
    let place = columns.iter().position(|column| column["name"] == name);
    let place = place.unwrap_or_else(|| panic!("no column {name}: {columns:?}"));
    let rows = table["rows"].as_array().unwrap().iter();
    rows.map(|row| {
        let pool = row["cells"][0].as_str().unwrap().to_owned();
        (pool, row["cells"][place].clone())
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_node_cidrs_has_no_figures_and_shows_none() {
    let world = World::new().await;
    let labelled = json!({"cidrs": ["10.0.0.0/24"], "nodeSelector": {"name": "node-0"}});
    world.add_pool("a-shared", labelled).await;
    world.add_pool("own", json!({"nodeCIDRs": true})).await;
    // As an earlier version wrote it.
    let zeros = json!({"status": {"total": 0, "free": 0, "claimed": 0, "cooldown": 0}});
    let status = format!("{}/status", path("ippools", "own"));
    world.call(Method::PATCH, &status, &zeros).await;
    world.add_nodes(1).await;
    let spec = json!({"podCIDR": "10.1.1.0/24", "podCIDRs": ["10.1.1.0/24"]});
    world.add_node("node-1", spec).await;
    let running = world.start();
    world
        .until_apart("both are served", |configs| {
            configs.len() == 2
                && configs
                    .values()
                    .all(|config| config.status.assigned_ip_count >= 16)
        })
        .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for name in ["Total", "Free", "Claimed", "Cooldown"] {
        let cells = column(&world, name).await;
        assert_eq!(cells["own"], Value::Null, "{name}");
        assert!(cells["a-shared"].is_i64(), "{name}: {cells:?}");
    }
    assert_eq!(column(&world, "Claimed").await["a-shared"], 16);
    assert_eq!(column(&world, "Ready").await["own"], "True");
    assert_eq!(world.pool("own").await.status.figures, None);
    let series = |pool: &str| format!("weft_allocator_addresses{{pool=\"{pool}\"");
    let metrics = running.metrics();
    assert!(metrics.contains(&series("a-shared")), "{metrics}");
    assert!(!metrics.contains(&series("own")), "{metrics}");
    let writes = world.writes();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.writes(), writes, "nothing changes");
}
