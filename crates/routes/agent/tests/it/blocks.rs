//! Blocks that nodes hold by their NodeNetworkConfigs.

use std::{collections::BTreeMap, time::Duration};

use http::Method;
use serde_json::{Value, json};
use weft_ipam::objects::NetworkObjects;
use weft_routes_agent::RoutesSettings;

use super::world::{World, eventually};
use weft_testserver::{call, install, path};

const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/\
                   nodenetworkconfigs.ipam.weft.dev";

fn settings() -> RoutesSettings {
    RoutesSettings {
        blocks: Some(NetworkObjects::default()),
        ..World::settings()
    }
}

impl World {
    async fn request(&self, method: Method, path: &str, body: &Value) {
        call(&self.client, method, path, body).await.unwrap();
    }

    /// Makes the object of a node, which holds nothing.
    async fn add_config(&self, number: u8) {
        let config = json!({
            "apiVersion": "ipam.weft.dev/v1alpha1", "kind": "NodeNetworkConfig",
            "metadata": {"name": format!("node-{number}"), "namespace": "kube-system"},
        });
        let all = path("nodenetworkconfigs", "");
        self.request(Method::POST, &all, &config).await;
    }

    async fn publish(&self, number: u8, blocks: &[&str]) {
        let entries: Vec<Value> = blocks
            .iter()
            .map(|block| json!({"name": format!("id-{block}"), "ip": block}))
            .collect();
        let status = json!({"status": {"networkContainers": [
            {"id": "nc", "subnetName": "pool", "ipAssignments": entries, "version": 1},
        ]}});
        let name = format!("node-{number}");
        let path = format!("{}/status", path("nodenetworkconfigs", &name));
        self.request(Method::PATCH, &path, &status).await;
    }

    async fn has(&self, nodes: &[u8], blocks: &[(&str, &str)]) {
        let mut wanted: BTreeMap<String, String> = Self::routes_to(nodes.iter().copied());
        let more = blocks.iter();
        wanted.extend(more.map(|(block, hop)| ((*block).to_owned(), (*hop).to_owned())));
        eventually(&format!("{wanted:?}"), || self.table() == wanted).await;
    }
}

/// Long enough for anything that would go wrong; paused time costs nothing.
async fn a_while() {
    tokio::time::sleep(Duration::from_secs(7200)).await;
}

#[tokio::test(start_paused = true)]
async fn blocks_are_routed_beside_pod_cidrs_and_follow_their_owner() {
    let world = World::new();
    install(&world.client).await;
    for number in 1..=2 {
        world.add_node(number).await;
        world.add_config(number).await;
    }
    let running = world.start(settings());
    world.has(&[1, 2], &[]).await;
    world
        .publish(1, &["10.244.100.0/28", "10.244.1.16/28", "10.244.101.5"])
        .await;
    let both = [
        ("10.244.100.0/28", "10.0.0.1"),
        ("10.244.101.5/32", "10.0.0.1"),
    ];
    world.has(&[1, 2], &both).await;
    world.publish(1, &["10.244.101.5"]).await;
    world.publish(2, &["10.244.100.0/28"]).await;
    let moved = [
        ("10.244.100.0/28", "10.0.0.2"),
        ("10.244.101.5/32", "10.0.0.1"),
    ];
    world.has(&[1, 2], &moved).await;
    world.publish(1, &[]).await;
    world.publish(2, &[]).await;
    world.has(&[1, 2], &[]).await;
    let measured = running.count("weft_routes_route_creation_delay_seconds_count");
    assert_eq!(
        measured, 2,
        "blocks are nothing that a joining node waits for"
    );
}

#[tokio::test(start_paused = true)]
async fn without_the_kind_pod_cidrs_are_routed_and_blocks_stay_where_they_are() {
    let world = World::new();
    install(&world.client).await;
    for number in 1..=2 {
        world.add_node(number).await;
        world.add_config(number).await;
    }
    world.publish(1, &["10.244.100.0/28"]).await;
    world.publish(2, &["10.244.101.0/28"]).await;
    let running = world.start(settings());
    let blocks = [
        ("10.244.100.0/28", "10.0.0.1"),
        ("10.244.101.0/28", "10.0.0.2"),
    ];
    world.has(&[1, 2], &blocks).await;
    world.request(Method::DELETE, CRD, &Value::Null).await;
    world.add_node(3).await;
    world.has(&[1, 2, 3], &blocks).await;
    a_while().await;
    world.has(&[1, 2, 3], &blocks).await;

    // A controller that starts without the kind does not know the blocks either.
    running.controller.stop().await;
    drop(running);
    let _running = world.start(settings());
    world.add_node(4).await;
    world.has(&[1, 2, 3, 4], &blocks).await;
    a_while().await;
    world.has(&[1, 2, 3, 4], &blocks).await;

    // Routes to a node that is gone lead nowhere.
    world.delete_node(2).await;
    world.has(&[1, 3, 4], &blocks[..1]).await;

    // A complete list shows that no node holds a block any more.
    let definition = include_str!("../../../../../deploy/crds/nodenetworkconfigs.yaml");
    let definition: Value = serde_saphyr::from_str(definition).unwrap();
    let all = CRD.rsplit_once('/').unwrap().0;
    world.request(Method::POST, all, &definition).await;
    world.has(&[1, 3, 4], &[]).await;
}

#[tokio::test(start_paused = true)]
async fn without_route_blocks_no_block_is_routed() {
    let world = World::new();
    install(&world.client).await;
    world.add_node(1).await;
    world.add_config(1).await;
    world.publish(1, &["10.244.100.0/28"]).await;
    let _running = world.start(World::settings());
    world.has(&[1], &[]).await;
    a_while().await;
    world.has(&[1], &[]).await;
}
