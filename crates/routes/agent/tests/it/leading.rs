//! Start, stop and leader election of the route controller.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};
use weft_routes::simulation::Profile;
use weft_runtime::{ControllerState, Gate, GateState};

use super::world::{World, eventually};

#[tokio::test(start_paused = true)]
async fn a_stopped_controller_changes_nothing_and_catches_up_when_started() {
    let world = World::new();
    let running = world.start(World::settings());
    world.add_node(1).await;
    world.has_routes_to([1]).await;
    running.controller.stop().await;
    world.add_node(2).await;
    world.delete_node(1).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.table(), World::routes_to([1]));
    running.controller.start();
    world.has_routes_to([2]).await;
}

#[tokio::test(start_paused = true)]
async fn a_route_of_ours_whose_node_left_while_no_controller_ran_is_deleted_later() {
    let world = World::left_by_a_stopped_controller([1, 2]).await;
    world.delete_node(2).await;
    let _second = world.start(World::settings());
    world.has_routes_to([1]).await;
}

#[tokio::test(start_paused = true)]
async fn no_mutation_outlives_the_right_to_lead() {
    let slow = Profile {
        mutation: Duration::from_secs(50),
        ..Profile::MEMORY
    };
    let world = World::with(slow, Vec::new());
    let ends = Instant::now() + Duration::from_secs(10);
    let (gate, states) = watch::channel(GateState::Open { until: Some(ends) });
    let running = world.start_behind(Gate::new(states), World::settings());
    world.add_node(1).await;
    let uncertain = "weft_routes_steps_total{action=\"create\",outcome=\"uncertain\"}";
    eventually("given up", || running.count(uncertain) == 1).await;
    assert!(Instant::now() >= ends && Instant::now() < ends + Duration::from_secs(1));
    gate.send(GateState::Closed { by: Some(ends) }).unwrap();
    let mut state = running.controller.state();
    let waits = state.wait_for(|state| matches!(state, ControllerState::Waiting(_)));
    waits.await.unwrap();
    let lists = running.calls("list");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(
        running.calls("list"),
        lists,
        "who does not lead asks nothing"
    );
}
