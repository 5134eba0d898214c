//! Number of addresses a node requests.

use std::time::Duration;

use futures::future::join_all;

use super::world::World;

#[tokio::test(start_paused = true)]
async fn a_burst_from_one_pod_to_thirty_six_costs_one_write_and_no_failed_add() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    world.add_pod("n1", "p0").await;
    let _allocator = world.allocator(&["n1"], Duration::from_secs(1));
    let daemon = world.start("n1", state.path()).await;
    daemon.add("p0").await;
    daemon
        .becomes("16", |status| status.pool.available == 15)
        .await;
    let writes = world.spec_writes("n1").await;
    for pod in 1..36 {
        world.add_pod("n1", &format!("p{pod}")).await;
    }
    let names: Vec<String> = (1..36).map(|pod| format!("p{pod}")).collect();
    let mut addresses = join_all(names.iter().map(|name| daemon.add(name))).await;
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 35);
    daemon
        .becomes("48", |status| status.pool.available == 12)
        .await;
    assert_eq!(world.requested("n1").await, 48);
    assert_eq!(world.spec_writes("n1").await - writes, 1);
}

#[tokio::test(start_paused = true)]
async fn two_daemons_on_one_api_server_ask_for_themselves_only() {
    let world = World::new().await;
    world.add_node("n2").await;
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for pod in 0..20 {
        world.add_pod("n2", &format!("q{pod}")).await;
    }
    world.add_pod("n1", "p0").await;
    let _allocator = world.allocator(&["n1", "n2"], Duration::from_millis(100));
    let first = world.start("n1", one.path()).await;
    let second = world.start("n2", other.path()).await;
    let ours = first.add("p0").await;
    let theirs = second.add("q0").await;
    assert_ne!(ours, theirs);
    second
        .becomes("32", |status| status.pool.available == 31)
        .await;
    assert_eq!(world.requested("n1").await, 16);
    assert_eq!(world.requested("n2").await, 32);
}

#[tokio::test(start_paused = true)]
async fn surplus_addresses_are_released_after_the_stabilisation_window() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    for pod in 0..20 {
        world.add_pod("n1", &format!("p{pod}")).await;
    }
    let _allocator = world.allocator(&["n1"], Duration::from_millis(100));
    let daemon = world.start("n1", state.path()).await;
    daemon
        .becomes("32", |status| status.pool.available == 32)
        .await;
    for pod in 0..20 {
        let path = format!("/api/v1/namespaces/default/pods/p{pod}?gracePeriodSeconds=0");
        let none = serde_json::Value::Null;
        let gone = weft_testserver::call(&world.client, http::Method::DELETE, &path, &none);
        gone.await.unwrap();
    }
    let wanted = |status: &weft_cns::StatusResponse| {
        status.pool.available == 16 && status.pool.pending_release == 0
    };
    daemon.becomes("16", wanted).await;
    assert_eq!(world.requested("n1").await, 16);
    // Released names do not stay in the list.
    while !world.config("n1").await["spec"]["ipsNotInUse"].is_null() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_without_its_del_gives_its_address_back() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    world.add_pod("n1", "stays").await;
    let _allocator = world.allocator(&["n1"], Duration::from_millis(100));
    let daemon = world.start("n1", state.path()).await;
    daemon.add("stays").await;
    daemon.add("leaks").await;
    tokio::time::sleep(Duration::from_secs(240)).await;
    assert_eq!(daemon.attached().await, 2, "its pod may only be late");
    tokio::time::sleep(Duration::from_secs(120)).await;
    let swept = |status: &weft_cns::StatusResponse| status.pool.assigned == 1;
    daemon.becomes("swept", swept).await;
    assert_eq!(daemon.count("weft_ipam_notices_total{what=\"swept\"}"), 1);
}

#[tokio::test(start_paused = true)]
async fn no_buffer_is_requested_from_a_nearly_exhausted_subnet() {
    let world = World::new().await;
    let state = tempfile::tempdir().unwrap();
    let _allocator = world.allocator(&["n1"], Duration::from_millis(100));
    for pod in 0..5 {
        world.add_pod("n1", &format!("p{pod}")).await;
    }
    let daemon = world.start("n1", state.path()).await;
    daemon
        .becomes("16", |status| status.pool.available == 16)
        .await;
    world.exhaust("other").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.requested("n1").await, 16, "not a subnet of ours");
    world.exhaust("pool").await;
    daemon
        .becomes("5 and one", |status| status.pool.requested == 6)
        .await;
}
