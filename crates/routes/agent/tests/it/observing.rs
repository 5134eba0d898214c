//! Observe mode.

use std::time::Duration;

use super::world::{World, eventually};

#[tokio::test(start_paused = true)]
async fn observe_mode_counts_and_writes_nothing() {
    let world = World::new();
    let mut settings = World::settings();
    settings.observe = true;
    let running = world.start(settings);
    world.add_node(1).await;
    let planned = "weft_routes_planned_steps_total{action=\"create\"}";
    eventually("planned", || running.count(planned) == 1).await;
    let version = world.server.resource_version();
    tokio::time::sleep(Duration::from_secs(7 * 24 * 3600)).await;
    assert_eq!(
        running.count(planned),
        1,
        "each planned step is counted once"
    );
    assert_eq!(world.table(), World::routes_to([]));
    assert_eq!(world.condition("node-1").await, None);
    assert_eq!(
        world.server.resource_version(),
        version,
        "no object was written"
    );
    assert!(running.board.read().observing);
}
