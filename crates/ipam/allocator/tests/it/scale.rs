//! Time until many nodes get their first addresses.

use std::time::{Duration, Instant};

use serde_json::json;

use super::world::World;

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
