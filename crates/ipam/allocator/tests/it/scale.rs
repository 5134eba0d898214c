//! The cost of many nodes: time until they get their first addresses, and heartbeats.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::world::{Running, World};

/// Adds nodes at once, each requesting this many addresses, and waits until all have them.
pub(crate) async fn cold_start(nodes: usize, addresses: u32) -> Duration {
    let world = World::new().await;
    let scaler = json!({"batchSize": addresses, "maxIPCount": addresses});
    let spec = json!({"cidrs": ["10.0.0.0/8"], "scaler": scaler});
    world.add_pool("pods", spec).await;
    world.add_nodes(nodes).await;
    let begun = Instant::now();
    let _running = world.start();
    loop {
        let configs = world.configs().await;
        let served = configs
            .values()
            .filter(|config| config.status.assigned_ip_count >= i64::from(addresses));
        if served.count() == nodes {
            let took = begun.elapsed();
            world.check().await;
            return took;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// `WEFT_ALLOCATOR_NODES=5000` measures the documented figure.
#[tokio::test]
async fn many_nodes_are_served_within_a_minute() {
    let nodes = std::env::var("WEFT_ALLOCATOR_NODES");
    let nodes = nodes.map_or(200, |nodes| nodes.parse().unwrap());
    let took = cold_start(nodes, 250).await;
    eprintln!("{nodes} nodes with 250 addresses each: {took:?}");
    assert!(took < Duration::from_secs(60), "{took:?}");
}

impl World {
    async fn patch_node(&self, name: &str, subresource: &str, body: &Value) {
        let path = format!("/api/v1/nodes/{name}{subresource}");
        self.call(Method::PATCH, &path, body).await;
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_cause_no_plan_and_labels_do() {
    let world = World::new().await;
    world
        .add_pool("pods", json!({"cidrs": ["10.0.0.0/24"]}))
        .await;
    world.add_nodes(3).await;
    let blocks = world.start();
    let cidrs = world.start_pod_cidrs(&[("10.244.0.0/16", 24)]);
    world.all_have(3, 16).await;
    // Until the figures of the pool are written, and before the next audit.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let plans = |running: &Running| running.count("weft_allocator_plan_duration_seconds_count");
    let before = [&blocks, &cidrs].map(plans);
    for beat in 0..20 {
        let ready = json!({"type": "Ready", "status": "True", "reason": format!("beat-{beat}")});
        let status = json!({"status": {"conditions": [ready]}});
        world.patch_node("node-1", "/status", &status).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!([&blocks, &cidrs].map(plans), before);
    let labelled = json!({"metadata": {"labels": {"zone": "b"}}});
    world.patch_node("node-1", "", &labelled).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = [&blocks, &cidrs].map(plans);
    assert!(after[0] > before[0] && after[1] > before[1], "{after:?}");
}
