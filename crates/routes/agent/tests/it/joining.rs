//! Nodes that join and leave, and the routes they get.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::world::{World, eventually};

#[tokio::test(start_paused = true)]
async fn a_node_gets_its_route_within_a_second_and_is_called_available() {
    let world = World::new();
    let running = world.start(World::settings());
    world.add_node(1).await;
    world.has_routes_to([1]).await;
    let joined = Instant::now();
    world.add_node(2).await;
    world.has_routes_to([1, 2]).await;
    let waited = joined.elapsed();
    assert!(waited < Duration::from_millis(1500), "waited {waited:?}");
    world
        .condition_becomes("node-2", "False/RouteCreated")
        .await;
    assert_eq!(running.calls("list"), 1, "an event costs no list");
    assert_eq!(running.calls("create"), 2);
    let count = "weft_routes_route_creation_delay_seconds_count";
    assert_eq!(running.count(count), 2);
    let sum = running.seconds("weft_routes_route_creation_delay_seconds_sum");
    assert!(sum < 3.0, "delays of {sum} s");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_takes_its_route_along() {
    let world = World::new();
    let _running = world.start(World::settings());
    for number in 1..=3 {
        world.add_node(number).await;
    }
    world.has_routes_to(1..=3).await;
    world.delete_node(2).await;
    world.has_routes_to([1, 3]).await;
}

#[tokio::test(start_paused = true)]
async fn a_steady_hour_costs_two_verifications_and_nothing_else() {
    let world = World::new();
    let running = world.start(World::settings());
    for number in 1..=3 {
        world.add_node(number).await;
    }
    world.has_routes_to(1..=3).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let lists = running.calls("list");
    let mutations = running.calls("create");
    // Heartbeats: what a kubelet writes every few minutes must start nothing.
    for beat in 0..6 {
        tokio::time::sleep(Duration::from_secs(600)).await;
        let ready = json!([{"type": "Ready", "status": "True", "reason": format!("beat-{beat}")}]);
        world.patch_status(1, json!({ "conditions": ready })).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(running.calls("list") - lists, 2);
    assert_eq!(running.calls("create"), mutations);
    assert_eq!(running.calls("delete"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_not_the_machines_gets_no_route_until_it_is() {
    let mut world = World::new();
    let machines = [("memory://1".into(), vec!["10.0.0.99".parse().unwrap()])];
    world.provider = world.provider.with_instances(machines.into());
    let running = world.start(World::settings());
    world.add_node(1).await;
    world.event_comes("node-1", "AddressNotOfInstance").await;
    assert_eq!(world.table(), World::routes_to([]));
    world
        .condition_becomes("node-1", "True/NoRouteCreated")
        .await;
    let refused = "weft_routes_refused{reason=\"AddressNotOfInstance\"}";
    assert_eq!(running.count(refused), 1);
    world.provider.change_instances(|known| {
        known.insert("memory://1".into(), vec!["10.0.0.1".parse().unwrap()]);
    });
    world.has_routes_to([1]).await;
    world
        .condition_becomes("node-1", "False/RouteCreated")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_without_a_machine_gets_no_route_where_machines_are_checked() {
    let mut world = World::new();
    let machines = [("memory://1".into(), vec!["10.0.0.1".parse().unwrap()])];
    world.provider = world.provider.with_instances(machines.into());
    let nameless = json!({
        "metadata": {"name": "node-2"},
        "spec": {"podCIDRs": ["10.244.2.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
    });
    world.create(nameless).await;
    world.add_node(1).await;
    let _running = world.start(World::settings());
    world.has_routes_to([1]).await;
    world.event_comes("node-2", "NoProviderId").await;
    assert_eq!(world.table(), World::routes_to([1]));
}

#[tokio::test(start_paused = true)]
async fn one_bad_node_is_named_and_all_others_are_served() {
    let world = World::new();
    let running = world.start(World::settings());
    let bad = json!({
        "metadata": {"name": "node-outside"},
        "spec": {"podCIDRs": ["192.168.7.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.66"}]},
    });
    world.create(bad).await;
    world.add_node(1).await;
    world.has_routes_to([1]).await;
    world.event_comes("node-outside", "PodCidrOutOfRange").await;
    let refused = "weft_routes_refused{reason=\"PodCidrOutOfRange\"}";
    eventually("counted", || running.count(refused) == 1).await;
    world
        .condition_becomes("node-outside", "True/NoRouteCreated")
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_excluded_node_gets_no_route_and_is_not_held_back() {
    let world = World::new();
    let _running = world.start(World::settings());
    let excluded = json!({
        "metadata": {"name": "node-9", "labels": {"routes.weft.dev/exclude": ""}},
        "spec": {"podCIDRs": ["10.244.9.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]},
    });
    world.create(excluded).await;
    world.add_node(1).await;
    world.has_routes_to([1]).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.table(), World::routes_to([1]));
    assert_eq!(world.condition("node-9").await, None);
}
