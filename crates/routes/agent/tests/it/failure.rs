//! Failures of the provider, of the API server and of single nodes.

use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;
use weft_apiserver::{Cut, FaultId, Matcher, Times, Verb};
use weft_routes::{
    Moment, NextHop, ProviderError,
    simulation::{CallKind, Fault, FaultKind, Profile},
};

use super::world::{World, eventually};

fn fails(call: Option<CallKind>, times: u32, error: ProviderError) -> Fault {
    Fault {
        call,
        from: Moment::START,
        until: Moment::seconds(3600),
        times,
        kind: FaultKind::Fails(error),
    }
}

#[tokio::test(start_paused = true)]
async fn one_failed_create_is_reported_and_retried_within_five_seconds() {
    let fault = fails(
        Some(CallKind::Create),
        1,
        ProviderError::Retry("bad gateway".into()),
    );
    let world = World::with(Profile::MEMORY, vec![fault]);
    let running = world.start(World::settings());
    let begun = Instant::now();
    world.add_node(1).await;
    world.has_routes_to([1]).await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    world
        .event_comes("node-1", "FailedToCreateRoute: Could not create route")
        .await;
    world
        .condition_becomes("node-1", "False/RouteCreated")
        .await;
    let failed = "weft_routes_steps_total{action=\"create\",outcome=\"retry\"}";
    assert_eq!(running.count(failed), 1);
}

#[tokio::test(start_paused = true)]
async fn five_minutes_without_a_provider_delay_routes_and_lose_none() {
    let outage = Fault {
        call: None,
        from: Moment::seconds(20),
        until: Moment::seconds(320),
        times: u32::MAX,
        kind: FaultKind::Fails(ProviderError::Retry("connection refused".into())),
    };
    let world = World::with(Profile::MEMORY, vec![outage]);
    let running = world.start(World::settings());
    world.add_node(1).await;
    world.has_routes_to([1]).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    world.add_node(2).await;
    world.delete_node(1).await;
    world
        .condition_becomes("node-2", "True/NoRouteCreated")
        .await;
    tokio::time::sleep(Duration::from_secs(240)).await;
    assert_eq!(
        world.table(),
        World::routes_to([1]),
        "nothing can have changed"
    );
    let tried = running.calls("create") + running.calls("delete");
    assert!(tried < 40, "{tried} calls into an outage of five minutes");
    world.has_routes_to([2]).await;
    world
        .condition_becomes("node-2", "False/RouteCreated")
        .await;
}

/// The server answers nothing from now on but what the test itself does: creates and deletes.
fn cut_off(world: &World) -> Vec<FaultId> {
    let faults = world.server.faults();
    let verbs = [
        Verb::List,
        Verb::Watch,
        Verb::Get,
        Verb::Patch,
        Verb::Update,
    ];
    let refused = verbs.map(|verb| {
        let requests = Matcher::any().verb(verb);
        faults.respond(requests, StatusCode::SERVICE_UNAVAILABLE, Times::Always)
    });
    faults.cut_watches(&Matcher::any(), Cut::MidFrame);
    refused.into()
}

#[tokio::test(start_paused = true)]
async fn five_minutes_without_the_api_server_miss_nothing() {
    let world = World::new();
    let _running = world.start(World::settings());
    for number in 1..=6 {
        world.add_node(number).await;
    }
    world.has_routes_to(1..=6).await;
    let refused = cut_off(&world);
    world.delete_node(1).await;
    world.delete_node(2).await;
    world.add_node(7).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(world.table(), World::routes_to(1..=6), "nothing is guessed");
    for fault in refused {
        world.server.faults().remove(fault);
    }
    world.has_routes_to(3..=7).await;
}

#[tokio::test(start_paused = true)]
async fn a_route_deleted_behind_our_back_is_found_by_verification() {
    let world = World::new();
    let running = world.start(World::settings());
    world.add_node(1).await;
    world.has_routes_to([1]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.provider.with_table(|table| table.table_mut().clear());
    let vanished = Instant::now();
    world.has_routes_to([1]).await;
    assert!(vanished.elapsed() <= Duration::from_secs(31 * 60));
    assert_eq!(
        running.count("weft_routes_drift_total{kind=\"vanished\"}"),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_foreign_route_in_the_range_is_left_alone() {
    let world = World::new();
    world.provider.with_table(|table| {
        let mut foreign =
            weft_routes::Route::to_node(weft_routes::Cidr::parse("10.244.200.0/24"), "");
        foreign.target = weft_routes::RouteTarget::Unknown;
        foreign.next_hop = Some(NextHop::Address("10.0.0.200".parse().unwrap()));
        table
            .table_mut()
            .insert(foreign.destination.clone(), foreign);
    });
    let running = world.start(World::settings());
    world.add_node(1).await;
    let wanted = {
        let mut wanted = World::routes_to([1]);
        wanted.insert("10.244.200.0/24".to_owned(), "10.0.0.200".to_owned());
        wanted
    };
    eventually("both", || world.table() == wanted).await;
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    assert_eq!(world.table(), wanted);
    assert_eq!(running.count("weft_routes_routes{state=\"left\"}"), 1);
    let status = running.board.read();
    assert!(status.table["10.244.200.0/24"].left_alone, "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_never_reports_an_address_is_named_after_a_minute() {
    let world = World::new();
    let running = world.start(World::settings());
    let silent = serde_json::json!({
        "metadata": {"name": "node-9"},
        "spec": {"podCIDRs": ["10.244.9.0/24"]},
    });
    world.create(silent).await;
    world.add_node(1).await;
    world.has_routes_to([1]).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        world.events("node-9").await,
        Vec::<String>::new(),
        "it may be joining"
    );
    world.event_comes("node-9", "NoAddress").await;
    world
        .condition_becomes("node-9", "True/NoRouteCreated")
        .await;
    assert_eq!(
        running.count("weft_routes_refused{reason=\"NoAddress\"}"),
        1
    );
    assert_eq!(running.calls("list"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_cannot_be_written_is_written_later_and_not_every_second() {
    let world = World::new();
    let running = world.start(World::settings());
    let faults = world.server.faults();
    let status = Matcher::any().resource("nodes").verb(Verb::Patch);
    let fault = faults.respond(status, StatusCode::FORBIDDEN, Times::Always);
    world.add_node(1).await;
    world.has_routes_to([1]).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let failed = running.count("weft_routes_condition_writes_total{outcome=\"error\"}");
    assert!((5..=20).contains(&failed), "{failed} writes in ten minutes");
    faults.remove(fault);
    world
        .condition_becomes("node-1", "False/RouteCreated")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_route_whose_making_was_not_answered_is_deleted_with_its_node() {
    let lost = Fault {
        kind: FaultKind::AnswerLost,
        ..fails(Some(CallKind::Create), 1, ProviderError::Uncertain)
    };
    let world = World::with(Profile::MEMORY, vec![lost]);
    let running = world.start(World::settings());
    world.add_node(1).await;
    let uncertain = "weft_routes_steps_total{action=\"create\",outcome=\"uncertain\"}";
    eventually("no answer", || running.count(uncertain) == 1).await;
    assert_eq!(world.table(), World::routes_to([1]), "it was made");
    world.delete_node(1).await;
    world.has_routes_to([]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_read_keeps_its_route_and_delays_no_other() {
    let world = World::left_by_a_stopped_controller([1, 2]).await;
    // A newer schema, say. A controller that starts now never saw the node in another state.
    let odd = serde_json::json!({"kind": "Node", "apiVersion": "v1",
        "metadata": {"name": "node-2", "uid": "odd"}, "spec": {"podCIDRs": 5}});
    assert!(world.server.faults().inject_raw("nodes", "", "node-2", odd));
    let _second = world.start(World::settings());
    world.add_node(3).await;
    world.has_routes_to(1..=3).await;
    tokio::time::sleep(Duration::from_secs(7200)).await;
    assert_eq!(world.table(), World::routes_to(1..=3));
    // Deletes wait while it cannot be decoded, and are carried out when it is gone.
    world.delete_node(1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.table(), World::routes_to(1..=3));
    world.delete_node(2).await;
    world.has_routes_to([3]).await;
}
