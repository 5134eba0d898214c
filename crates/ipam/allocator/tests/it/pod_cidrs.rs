//! Pod CIDRs of nodes: assigned, freed, and kept while they are published.

use std::{collections::BTreeMap, time::Duration};

use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;
use weft_ipam::{allocator::AllocatorSettings, objects::NodeNetworkConfig};

use super::world::World;

async fn cidrs(world: &World) -> BTreeMap<String, Vec<String>> {
    let nodes = world.call(Method::GET, "/api/v1/nodes", &Value::Null).await;
    let nodes = nodes["items"].as_array().unwrap().iter();
    nodes
        .map(|node| {
            let cidrs = node["spec"]["podCIDRs"].as_array();
            let cidrs = cidrs.into_iter().flatten();
            let cidrs = cidrs.map(|cidr| cidr.as_str().unwrap().to_owned());
            let name = node["metadata"]["name"].as_str().unwrap().to_owned();
            (name, cidrs.collect())
        })
        .collect()
}

async fn all_have(world: &World, families: usize) {
    for _ in 0..20_000 {
        if cidrs(world)
            .await
            .values()
            .all(|cidrs| cidrs.len() == families)
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {:?}", cidrs(world).await);
}

#[tokio::test(start_paused = true)]
async fn nodes_get_distinct_ranges_of_both_families() {
    let world = World::new().await;
    world
        .add_node(
            "early",
            json!({"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00::/64"]}),
        )
        .await;
    world.add_nodes(20).await;
    let ranges = [("10.244.0.0/16", 24), ("fd00::/56", 64)];
    let first = world.start_pod_cidrs(&ranges);
    let _second = world.start_pod_cidrs(&ranges);
    all_have(&world, 2).await;
    let cidrs = cidrs(&world).await;
    let mut given: Vec<&String> = cidrs.values().flatten().collect();
    given.sort();
    given.dedup();
    assert_eq!(given.len(), 42, "{cidrs:?}");
    assert!(
        cidrs
            .values()
            .all(|cidrs| cidrs[0].ends_with(".0/24") && cidrs[1].ends_with("/64"))
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    let writes = world.writes();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.writes(), writes, "nothing changes");
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_range_is_freed_when_its_node_is_gone_and_a_node_without_one_is_reported() {
    let world = World::new().await;
    world.add_nodes(3).await;
    let _running = world.start_pod_cidrs(&[("10.244.0.0/23", 24)]);
    loop {
        let have = cidrs(&world).await;
        if have.values().filter(|cidrs| !cidrs.is_empty()).count() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let have = cidrs(&world).await;
    let without = have.iter().find(|(_, cidrs)| cidrs.is_empty()).unwrap().0;
    let events = world.events_about(without).await;
    assert!(
        events
            .iter()
            .any(|event| event.starts_with("CIDRNotAvailable")),
        "{events:?}"
    );
    let with = have.iter().find(|(_, cidrs)| !cidrs.is_empty()).unwrap().0;
    world.delete_node(with).await;
    let deleted = Instant::now();
    all_have(&world, 1).await;
    assert!(deleted.elapsed() >= AllocatorSettings::default().node_grace);
}

/// The shipped configuration: pod CIDRs from `pod-cidr`, and addresses from them.
#[tokio::test(start_paused = true)]
async fn a_range_is_not_free_while_the_config_of_a_removed_node_publishes_it() {
    let world = World::new().await;
    world.add_pool("own", json!({"nodeCIDRs": true})).await;
    world.add_nodes(2).await;
    let _cidrs = world.start_pod_cidrs(&[("10.244.0.0/23", 24)]);
    let _addresses = world.start();
    let served = |node: &'static str| {
        move |configs: &BTreeMap<String, NodeNetworkConfig>| {
            let config = configs.get(node);
            config.is_some_and(|config| config.status.assigned_ip_count > 0)
        }
    };
    world
        .until_apart("node-0 is served", served("node-0"))
        .await;
    world
        .until_apart("node-1 is served", served("node-1"))
        .await;
    world.delete_node("node-0").await;
    world.add_node("node-2", json!({})).await;
    world
        .until_apart("node-2 is served", served("node-2"))
        .await;
    assert!(!world.configs().await.contains_key("node-0"));
}

/// The shipped configuration again. The garbage collector deletes the config of the former Node.
#[tokio::test(start_paused = true)]
async fn a_node_registered_again_gets_its_range_and_addresses_back_within_the_grace_period() {
    let world = World::new().await;
    world.add_pool("own", json!({"nodeCIDRs": true})).await;
    world.add_nodes(3).await;
    let ranges = [("10.244.0.0/16", 24), ("fd00::/56", 64)];
    let mut controllers = vec![world.start_pod_cidrs(&ranges), world.start()];
    all_have(&world, 2).await;
    let served = |node: &'static str, uid: String| {
        move |configs: &BTreeMap<String, NodeNetworkConfig>| {
            configs.get(node).is_some_and(|config| {
                let owner = config.metadata.controlling_node();
                owner.is_some_and(|owner| **owner == *uid) && config.status.assigned_ip_count > 0
            })
        }
    };
    let uid = world.uid_of("node-1").await;
    world
        .until_apart("node-1 is served", served("node-1", uid.clone()))
        .await;
    let before = cidrs(&world).await["node-1"].clone();
    for restart in [false, true] {
        let deleted = Instant::now();
        world.delete_node("node-1").await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        if restart {
            controllers.clear();
            controllers.extend([world.start_pod_cidrs(&ranges), world.start()]);
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        world.add_node("node-1", json!({})).await;
        let again = world.uid_of("node-1").await;
        assert_ne!(again, uid);
        all_have(&world, 2).await;
        assert_eq!(cidrs(&world).await["node-1"], before, "restart: {restart}");
        world
            .until_apart("node-1 is served again", served("node-1", again))
            .await;
        assert!(deleted.elapsed() < AllocatorSettings::default().node_grace);
    }
    // Nothing of it is freed when the grace period of the former Nodes is over.
    tokio::time::sleep(2 * AllocatorSettings::default().node_grace).await;
    world.add_node("node-3", json!({})).await;
    all_have(&world, 2).await;
    let cidrs = cidrs(&world).await;
    assert_eq!(cidrs["node-1"], before);
    assert_ne!(cidrs["node-3"], before);
}
