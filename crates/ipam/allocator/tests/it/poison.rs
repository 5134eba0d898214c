//! Objects that cannot be decoded or are refused do not affect others.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;
use weft_apiserver::{Matcher, Times, Verb};

use weft_testserver::path;

use super::world::World;

/// Maximum time until a node gets its addresses next to a poison object: much more than it takes,
/// and less than the longest back-off.
const SOON: Duration = Duration::from_secs(5);

impl World {
    async fn raw(&self, plural: &str, name: &str) -> Value {
        self.call(Method::GET, &path(plural, name), &Value::Null)
            .await
    }

    /// Stores a state of an object that validation would refuse.
    async fn poison(&self, plural: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.raw(plural, name).await;
        change(&mut object);
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let namespace = namespace.to_owned();
        let faults = self.server.faults();
        let resource = format!("{plural}.ipam.weft.dev");
        assert!(faults.inject_raw(&resource, &namespace, name, object));
    }

    /// Requests this many addresses, and waits for them no longer than a healthy cluster needs.
    async fn is_served_soon(&self, node: &str, addresses: i64) {
        let spec = json!({"requestedIPCount": addresses});
        self.write_spec(node, spec).await;
        let begun = Instant::now();
        let held = async || {
            let config = self.raw("nodenetworkconfigs", node).await;
            config["status"]["assignedIPCount"].as_i64().unwrap_or(0)
        };
        while held().await < addresses {
            let waited = begun.elapsed();
            assert!(
                waited < SOON,
                "{node} has {} after {waited:?}",
                held().await
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn served() -> World {
    let world = World::new().await;
    let spec = json!({"cidrs": ["10.0.0.0/22"]});
    world.add_pool("pods", spec).await;
    world.add_nodes(3).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_config_that_does_not_decode_stops_no_other_node() {
    let world = served().await;
    let running = world.start();
    world.all_have(3, 16).await;
    let odd = |object: &mut Value| object["spec"]["requestedIPCount"] = json!("many");
    world.poison("nodenetworkconfigs", "node-1", odd).await;
    world.is_served_soon("node-0", 32).await;
    // Nor for a process that has never observed it in a valid state.
    running.controller.stop().await;
    drop(running);
    let _second = world.start();
    world.is_served_soon("node-0", 64).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    world.is_served_soon("node-2", 32).await;
    let kept = world.raw("nodenetworkconfigs", "node-1").await;
    assert_eq!(
        kept["status"]["assignedIPCount"], 16,
        "it keeps its addresses"
    );
    // It continues when it is valid again.
    let sound = |object: &mut Value| object["spec"]["requestedIPCount"] = json!(16);
    world.poison("nodenetworkconfigs", "node-1", sound).await;
    world.is_served_soon("node-1", 32).await;
    world.check().await;
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_always_refused_for_one_node_delays_no_other() {
    let world = served().await;
    let running = world.start();
    world.all_have(3, 16).await;
    for code in [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::FORBIDDEN] {
        let config = Matcher::any().resource("nodenetworkconfigs").name("node-1");
        let writes = config.verb(Verb::Update);
        let refused = world
            .server
            .faults()
            .respond(writes.clone(), code, Times::Always);
        let before = world.server.stats().count(&writes);
        let wanted = world.raw("nodenetworkconfigs", "node-1").await["status"]["assignedIPCount"]
            .as_i64()
            .unwrap();
        let spec = json!({"requestedIPCount": wanted + 16});
        world.write_spec("node-1", spec).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        let tries = world.server.stats().count(&writes) - before;
        assert!((2..60).contains(&tries), "{tries} tries in 10 min");
        for node in ["node-0", "node-2"] {
            let held = world.raw("nodenetworkconfigs", node).await;
            let held = held["status"]["assignedIPCount"].as_i64().unwrap();
            world.is_served_soon(node, held + 16).await;
        }
        world.server.faults().remove(refused);
        world
            .until("node-1 is served", |configs| {
                configs["node-1"].status.assigned_ip_count >= wanted + 16
            })
            .await;
    }
    let series = r#"weft_allocator_writes_total{object="config_status",outcome="error"}"#;
    assert!(running.count(series) > 0);
    world.check().await;
}

#[tokio::test(start_paused = true)]
async fn huge_requests_of_one_node_do_not_affect_others() {
    let world = served().await;
    let _running = world.start();
    world.all_have(3, 16).await;
    let names: Vec<String> = (0..20_000)
        .map(|number| format!("no-such-{number}"))
        .collect();
    let specs = [
        json!({"requestedIPCount": i64::MAX, "demandIPCount": i64::MAX}),
        json!({"requestedIPCount": i64::MIN, "demandIPCount": -5}),
        json!({"requestedIPCount": 16, "ipsNotInUse": names}),
        Value::Null,
    ];
    for (round, spec) in (1..).zip(specs) {
        let absurd = |object: &mut Value| object["spec"] = spec;
        world.poison("nodenetworkconfigs", "node-1", absurd).await;
        world.is_served_soon("node-0", 16 + 16 * round).await;
        world.check().await;
    }
    // Entries that cannot be read, or belong to another node, are not assigned.
    let others = world.raw("nodenetworkconfigs", "node-0").await;
    let others = others["status"]["networkContainers"][0]["ipAssignments"][0].clone();
    world
        .poison("nodenetworkconfigs", "node-1", |object| {
            object["spec"] = json!({"requestedIPCount": 16});
            object["status"]["networkContainers"][0]["ipAssignments"] = json!([
                {"name": "a", "ip": "0.0.0.0/0"}, {"name": "b", "ip": "banana"},
                {"name": "c", "ip": "fd00::/120"}, others, {"name": "", "ip": ""},
            ]);
        })
        .await;
    world.is_served_soon("node-2", 32).await;
    let owners = world.claims().await.into_iter().filter(|(net, _)| {
        others["ip"]
            .as_str()
            .unwrap()
            .parse::<ipnet::IpNet>()
            .unwrap()
            == *net
    });
    let owners: Vec<String> = owners.map(|(_, claim)| format!("{claim:?}")).collect();
    assert_eq!(owners.len(), 1, "{owners:?}");
    assert!(owners[0].contains("node-0"), "{owners:?}");
}

#[tokio::test(start_paused = true)]
async fn absurd_pools_stop_no_other_pool() {
    let world = served().await;
    let running = world.start();
    world.all_have(3, 16).await;
    let absurd = [
        ("all", json!({"cidrs": ["0.0.0.0/0"]})),
        ("all-v6", json!({"cidrs": ["::/0"]})),
        ("text", json!({"cidrs": "10.9.0.0/16"})),
        ("words", json!({"cidrs": ["banana"]})),
        (
            "number",
            json!({"cidrs": ["10.9.0.0/16"], "blockPrefixV4": 200, "cooldownSeconds": -1}),
        ),
        ("same", json!({"cidrs": ["10.0.0.0/22"]})),
        ("nothing", json!(null)),
        (
            "scaler",
            json!({"cidrs": ["10.8.0.0/24"], "scaler": {"batchSize": -1}, "nodeSelector": {"a": "b"}}),
        ),
    ];
    for (name, spec) in absurd {
        let object = json!({"apiVersion": "ipam.weft.dev/v1alpha1", "kind": "IPPool",
            "metadata": {"name": name}, "spec": spec});
        assert!(
            world
                .server
                .faults()
                .inject_raw("ippools.ipam.weft.dev", "", name, object)
        );
    }
    world.is_served_soon("node-0", 32).await;
    running.controller.stop().await;
    drop(running);
    let _second = world.start();
    world.is_served_soon("node-1", 32).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let ready = async |name: &str| {
        let pool = world.raw("ippools", name).await;
        pool["status"]["conditions"][0]["status"].clone()
    };
    assert_eq!(ready("pods").await, "True");
    assert_eq!(ready("same").await, "False");
    // The API server refuses a status for an object that its schema refuses, but accepts an event.
    for (name, reason) in [
        ("all", "InvalidRange"),
        ("all-v6", "InvalidRange"),
        ("words", "InvalidRange"),
        ("number", "InvalidNumber"),
        ("same", "Overlap"),
        ("nothing", "InvalidRange"),
    ] {
        let events = world.events_about(name).await;
        let named = events.iter().any(|event| event.starts_with(reason));
        assert!(named, "{name}: {events:?}");
    }
}

/// A shard that a process has never observed in a valid state: its claims are not made again.
#[tokio::test(start_paused = true)]
async fn a_shard_that_does_not_decode_stops_no_other_pool_and_frees_nothing() {
    let world = served().await;
    let other = json!({"cidrs": ["10.7.0.0/24"], "nodeSelector": {"name": "apart"}});
    world.add_pool("apart", other).await;
    world.add_node("apart", json!({})).await;
    let first = world.start();
    world.all_have(4, 16).await;
    let claimed = world.claims().await.len();
    first.controller.stop().await;
    drop(first);
    let shards = path("ippoolshards", "");
    let shards = world.call(Method::GET, &shards, &Value::Null).await;
    let shard = shards["items"].as_array().unwrap().iter();
    let mut shard = shard.filter(|shard| shard["spec"]["pool"] == "pods");
    let name = shard.next().unwrap()["metadata"]["name"].clone();
    let name = name.as_str().unwrap();
    let odd = |object: &mut Value| object["spec"]["sequence"] = json!("x");
    world.poison("ippoolshards", name, odd).await;
    let _second = world.start();
    world.is_served_soon("apart", 32).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    world.is_served_soon("apart", 48).await;
    let kept = world.raw("ippoolshards", name).await;
    assert_eq!(kept["spec"]["sequence"], "x", "left alone");
    let sound = |object: &mut Value| object["spec"]["sequence"] = json!(1000);
    world.poison("ippoolshards", name, sound).await;
    world.is_served_soon("node-0", 32).await;
    assert!(world.claims().await.len() > claimed);
    world.check().await;
}
