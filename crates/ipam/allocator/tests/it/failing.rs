//! Two leaders, crashes at any write, and refused writes.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use http::StatusCode;
use serde_json::json;
use weft_apiserver::{Matcher, Times, Verb};
use weft_runtime::Gate;

use super::{lossy::Lossy, world::World};

#[tokio::test(start_paused = true)]
async fn two_leaders_give_no_address_twice() {
    let world = World::new().await;
    let spec = json!({"cidrs": ["10.0.0.0/22"], "cooldownSeconds": 1});
    world.add_pool("pods", spec).await;
    let first = world.start();
    let _second = world.start();
    world.add_nodes(12).await;
    world.all_have(12, 16).await;
    // One of them observes nothing new for a while, and goes on writing.
    let stall = world
        .server
        .faults()
        .stall_watches(Matcher::any().resource("ippoolshards"));
    for round in 0..6 {
        for number in 0..12 {
            let node = format!("node-{number}");
            let config = world.configs().await[&node].to_config();
            let mut entries = config.status.entries().map(|(_, entry)| entry.name.clone());
            let spec = if round % 2 == 0 {
                json!({"requestedIPCount": 16 + 16 * ((number + round) % 4), "ipsNotInUse": []})
            } else {
                let back: Vec<_> = entries.next().into_iter().collect();
                json!({"requestedIPCount": 16, "ipsNotInUse": back})
            };
            world.write_spec(&node, spec).await;
            world.check().await;
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
        world.check().await;
    }
    drop(stall);
    for number in 0..12 {
        let spec = json!({"requestedIPCount": 32, "ipsNotInUse": []});
        world.write_spec(&format!("node-{number}"), spec).await;
    }
    world.all_have(12, 32).await;
    drop(first);
}

/// For every write in the life cycle of three nodes, one of which is removed: the process that made
/// it gets no response and dies, and another one goes on.
#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_write_leaves_nothing_that_the_next_cannot_finish() {
    let mut last = 1;
    loop {
        let world = World::new().await;
        world
            .add_pool(
                "pods",
                json!({"cidrs": ["10.0.0.0/24"], "cooldownSeconds": 1}),
            )
            .await;
        world.add_nodes(3).await;
        let (client, writes) = Lossy::client(&world.server, last);
        let first = world.start_with(client, Gate::always_open());
        let story = async {
            world.all_have(3, 16).await;
            world
                .write_spec("node-0", json!({"requestedIPCount": 32}))
                .await;
            world.all_have(3, 16).await;
            world.delete_node("node-2").await;
            world
                .until("node-2 is gone", |configs| configs.len() == 2)
                .await;
        };
        let dies = async {
            while writes.load(SeqCst) < last {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let survived = tokio::select! {
            () = story => true,
            () = dies => false,
        };
        first.controller.stop().await;
        drop(first);
        if survived {
            assert!(last > 15, "only {last} writes");
            return;
        }
        world.check().await;
        let _second = world.start();
        // The scenario can be completed from every interruption.
        if !world.configs().await.contains_key("node-0") {
            world.all_have(3, 16).await;
        }
        world
            .write_spec("node-0", json!({"requestedIPCount": 32}))
            .await;
        world
            .until("node-0 is served", |configs| {
                configs["node-0"].status.assigned_ip_count >= 32
            })
            .await;
        tokio::time::sleep(Duration::from_secs(1200)).await;
        world.check().await;
        let configs = world.configs().await;
        let used: i64 = configs
            .values()
            .map(|config| config.status.assigned_ip_count)
            .sum();
        let figures = world.pool("pods").await.status.figures.unwrap();
        assert_eq!(figures.claimed, used, "nothing is lost after write {last}");
        assert_eq!(figures.free + figures.claimed, figures.total);
        last += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn refused_writes_are_retried_until_they_succeed() {
    let world = World::new().await;
    world
        .add_pool("pods", json!({"cidrs": ["10.0.0.0/24"]}))
        .await;
    world.add_nodes(2).await;
    let _running = world.start();
    world.all_have(2, 16).await;
    // Refused many times, and served in the end.
    world.server.faults().respond(
        Matcher::any()
            .resource("nodenetworkconfigs")
            .verb(Verb::Update),
        StatusCode::INTERNAL_SERVER_ERROR,
        Times::Next(5),
    );
    world
        .write_spec("node-0", json!({"requestedIPCount": 32}))
        .await;
    world
        .until("served", |configs| {
            configs["node-0"].status.assigned_ip_count >= 32
        })
        .await;
}
