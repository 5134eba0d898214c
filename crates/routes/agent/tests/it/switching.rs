//! Switching between watch mode and poll mode.

use std::time::Duration;

use weft_routes_agent::Mode;

use super::world::{World, eventually};

/// The feature gate on, off and on again, with nodes coming and going all the time and a process
/// restart at every turn: the KEP has no such test.
#[tokio::test(start_paused = true)]
async fn the_gate_can_be_switched_under_churn() {
    let world = World::new();
    let modes = [
        Mode::Watch,
        Mode::Poll(Duration::from_secs(10)),
        Mode::Watch,
        Mode::Poll(Duration::from_secs(30)),
        Mode::Watch,
    ];
    let mut present: Vec<u8> = Vec::new();
    let mut next = 1;
    for mode in modes {
        let mut settings = World::settings();
        settings.mode = mode;
        let running = world.start(settings);
        for _ in 0..6 {
            come(&world, &mut present, &mut next).await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            if present.len() > 4 {
                world.delete_node(present.remove(0)).await;
            }
        }
        world.has_routes_to(present.clone()).await;
        // Long enough for a pass that sees and records what the last one made.
        tokio::time::sleep(Duration::from_secs(60)).await;
        running.controller.stop().await;
        drop(running);
        // Churn goes on while no controller runs.
        come(&world, &mut present, &mut next).await;
        world.delete_node(present.remove(0)).await;
        world.delete_node(present.remove(0)).await;
    }
}

async fn come(world: &World, present: &mut Vec<u8>, next: &mut u8) {
    world.add_node(*next).await;
    present.push(*next);
    *next += 1;
}

#[tokio::test(start_paused = true)]
async fn polling_lists_every_period_and_deletes_what_is_in_the_range_as_upstream_does() {
    let world = World::new();
    let mut settings = World::settings();
    settings.mode = Mode::Poll(Duration::from_secs(10));
    world.provider.with_table(|table| {
        let stray =
            weft_routes::Route::to_node(weft_routes::Cidr::parse("10.244.200.0/24"), "gone");
        table.table_mut().insert(stray.destination.clone(), stray);
        let mut peering =
            weft_routes::Route::to_node(weft_routes::Cidr::parse("10.244.201.0/24"), "");
        peering.target = weft_routes::RouteTarget::Unknown;
        peering.mark = weft_routes::Mark::Foreign;
        table
            .table_mut()
            .insert(peering.destination.clone(), peering);
    });
    let running = world.start(settings);
    world.add_node(1).await;
    let mut wanted = World::routes_to([1]);
    wanted.insert("10.244.201.0/24".to_owned(), String::new());
    eventually("the stray one goes, the foreign one stays", || {
        world.table() == wanted
    })
    .await;
    world
        .condition_becomes("node-1", "False/RouteCreated")
        .await;
    let lists = running.calls("list");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let hourly = running.calls("list") - lists;
    assert!((359..=361).contains(&hourly), "{hourly} lists in an hour");
    let passes = running.sum("route_controller_route_sync_total", "outcome");
    assert!(passes >= hourly, "{passes} passes");
}
