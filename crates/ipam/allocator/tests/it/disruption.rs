//! Objects that are deleted or restored by hand.

use std::{collections::BTreeMap, time::Duration};

use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;
use weft_ipam::{allocator::AllocatorSettings, objects::NodeNetworkConfig};

use weft_testserver::{call, path};

use super::world::World;

async fn served() -> World {
    let world = World::new().await;
    let spec = json!({"cidrs": ["10.0.0.0/24"]});
    world.add_pool("pods", spec).await;
    world.add_nodes(2).await;
    world
}

fn addresses(config: &NodeNetworkConfig) -> Vec<String> {
    let containers = config.status.network_containers.iter();
    let entries = containers.flat_map(|container| &container.ip_assignments);
    entries.map(|entry| entry.ip.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_config_deleted_by_hand_is_recreated_with_the_same_addresses() {
    let world = served().await;
    let _running = world.start();
    world.all_have(2, 16).await;
    let before = world.configs().await["node-0"].clone();
    let config = path("nodenetworkconfigs", "node-0");
    world.call(Method::DELETE, &config, &Value::Null).await;
    let made_again = |configs: &BTreeMap<String, NodeNetworkConfig>| {
        configs.get("node-0").is_some_and(|config| {
            config.metadata.uid != before.metadata.uid && addresses(config) == addresses(&before)
        })
    };
    world.until("made again", made_again).await;
    let events = world.events_about("node-0").await;
    let said = |event: &String| event.starts_with("ConfigDeleted");
    assert!(events.iter().any(said), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_registered_again_gets_its_blocks_back() {
    let world = served().await;
    let _running = world.start();
    world.all_have(2, 16).await;
    world
        .write_spec("node-0", json!({"requestedIPCount": 40}))
        .await;
    let grown = |configs: &BTreeMap<String, NodeNetworkConfig>| {
        configs["node-0"].status.assigned_ip_count == 48
    };
    world.until("grown", grown).await;
    let before = world.configs().await["node-0"].clone();
    let deleted = Instant::now();
    world.delete_node("node-0").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.add_node("node-0", json!({})).await;
    let uid = world.uid_of("node-0").await;
    let back = |configs: &BTreeMap<String, NodeNetworkConfig>| {
        configs.get("node-0").is_some_and(|config| {
            let owner = config.metadata.controlling_node();
            owner.is_some_and(|owner| **owner == *uid) && addresses(config) == addresses(&before)
        })
    };
    world.until("back", back).await;
    assert!(deleted.elapsed() < AllocatorSettings::default().node_grace);
}

#[tokio::test(start_paused = true)]
async fn a_config_that_lost_its_owner_gets_it_back() {
    let world = served().await;
    let _running = world.start();
    world.all_have(2, 16).await;
    let before = world.configs().await["node-0"].clone();
    let config = path("nodenetworkconfigs", "node-0");
    let bare = json!({"metadata": {"ownerReferences": null}});
    world.call(Method::PATCH, &config, &bare).await;
    world
        .until("owned", |configs| {
            configs["node-0"].metadata.owner_references == before.metadata.owner_references
        })
        .await;
    let after = world.configs().await["node-0"].clone();
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert_eq!(after.status, before.status);
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_deleted_goes_after_its_nodes() {
    let world = served().await;
    let _running = world.start();
    world.all_have(2, 16).await;
    let pool = path("ippools", "pods");
    world.call(Method::DELETE, &pool, &Value::Null).await;
    world.add_node("node-2", json!({})).await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    assert!(
        world
            .pool("pods")
            .await
            .metadata
            .deletion_timestamp
            .is_some()
    );
    let configs = world.configs().await;
    assert_eq!(addresses(&configs["node-0"]).len(), 1);
    assert_eq!(addresses(&configs["node-2"]).len(), 0);
    let events = world.events_about("pods").await;
    let said = |event: &String| event.starts_with("PoolInUse");
    assert!(events.iter().any(said), "{events:?}");
    for node in ["node-0", "node-1", "node-2"] {
        world.delete_node(node).await;
    }
    world.until("all went", BTreeMap::is_empty).await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    let found = call(&world.client, Method::GET, &pool, &Value::Null).await;
    assert!(found.is_err(), "{found:?}");
}
