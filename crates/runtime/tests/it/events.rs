//! Events and conditions as the API server stores them.

use k8s_openapi::api::{core::v1::Node, events::v1::Event};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::json;
use weft_runtime::{
    Condition, EventLevel, EventNote, EventRecorder, Kinded, ObjectKey, set_condition,
};

use crate::harness::Harness;

fn note(text: &str) -> EventNote {
    EventNote {
        level: EventLevel::Warning,
        reason: "RouteFailed",
        action: "CreateRoute",
        note: text.to_owned(),
    }
}

async fn events(api: &Api<Event>, of: &str) -> Vec<Event> {
    let list = api.list(&ListParams::default()).await.unwrap();
    let about = |event: &Event| {
        event
            .regarding
            .as_ref()
            .is_some_and(|r| r.name.as_deref() == Some(of))
    };
    list.into_iter().filter(about).collect()
}

async fn wait_for(api: &Api<Event>, of: &str, wanted: impl Fn(&[Event]) -> bool) -> Vec<Event> {
    let wait = async {
        loop {
            let events = events(api, of).await;
            if wanted(&events) {
                return events;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), wait)
        .await
        .expect("events")
}

#[tokio::test]
async fn repeated_events_become_a_series_and_others_are_events_of_their_own() {
    let harness = Harness::any().await;
    let object = harness.create("a", "1").await;
    let kind = k8s_openapi::api::core::v1::ConfigMap::resource_kind();
    let recorder = EventRecorder::new(harness.client.clone(), "weft.dev/test", "test-0");
    for _ in 0..3 {
        recorder.record(&kind, &object, note("no quota"));
    }
    recorder.record(&kind, &object, note(&"é".repeat(2000)));
    let api: Api<Event> = Api::namespaced(harness.client.clone(), &harness.namespace);
    let events = wait_for(&api, "a", |events| {
        events.len() == 2
            && events
                .iter()
                .any(|event| event.series.as_ref().is_some_and(|s| s.count == 3))
    })
    .await;
    let repeated = events.iter().find(|event| event.series.is_some()).unwrap();
    assert_eq!(repeated.note.as_deref(), Some("no quota"));
    assert_eq!(repeated.type_.as_deref(), Some("Warning"));
    assert_eq!(repeated.reason.as_deref(), Some("RouteFailed"));
    assert_eq!(
        repeated.reporting_controller.as_deref(),
        Some("weft.dev/test")
    );
    assert_eq!(
        repeated.regarding.as_ref().unwrap().uid,
        object.metadata.uid
    );
    let long = events.iter().find(|event| event.series.is_none()).unwrap();
    assert_eq!(long.note.as_ref().unwrap().len(), 1024);
}

#[tokio::test]
async fn an_object_cannot_flood_the_server_with_events() {
    let harness = Harness::any().await;
    let object = harness.create("noisy", "1").await;
    let other = harness.create("other", "1").await;
    let kind = k8s_openapi::api::core::v1::ConfigMap::resource_kind();
    let recorder = EventRecorder::new(harness.client.clone(), "weft.dev/test", "test-0");
    for index in 0..100 {
        recorder.record(&kind, &object, note(&format!("failure {index}")));
    }
    recorder.record(&kind, &other, note("written all the same"));
    let api: Api<Event> = Api::namespaced(harness.client.clone(), &harness.namespace);
    wait_for(&api, "other", |events| events.len() == 1).await;
    assert_eq!(events(&api, "noisy").await.len(), 25);
}

#[tokio::test]
async fn events_about_cluster_scoped_objects_live_in_default() {
    let harness = Harness::any().await;
    let name = format!("{}-node", harness.namespace);
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    let nodes: Api<Node> = Api::all(harness.client.clone());
    let node = nodes.create(&PostParams::default(), &node).await.unwrap();
    let recorder = EventRecorder::new(harness.client.clone(), "weft.dev/test", "test-0");
    recorder.record(&Node::resource_kind(), &node, note("no route"));
    let api: Api<Event> = Api::namespaced(harness.client.clone(), "default");
    wait_for(&api, &name, |events| events.len() == 1).await;

    // A condition, written once, with other status fields left alone.
    let condition = Condition {
        kind: "NetworkUnavailable".into(),
        status: Some(false),
        reason: "RouteCreated".into(),
        message: "a route exists".into(),
        observed_generation: None,
    };
    let key = ObjectKey::cluster(&name);
    let kind = Node::resource_kind();
    let set = || set_condition(&harness.client, &kind, &key, "weft-controller", &condition);
    assert!(set().await.unwrap(), "written");
    let version = nodes.get(&name).await.unwrap().metadata.resource_version;
    assert!(!set().await.unwrap(), "nothing to write");
    let node = nodes.get(&name).await.unwrap();
    assert_eq!(node.metadata.resource_version, version);
    let conditions = node.status.unwrap().conditions.unwrap();
    assert_eq!(conditions[0].reason.as_deref(), Some("RouteCreated"));
    assert!(conditions[0].last_transition_time.is_some());
    let none = ObjectKey::cluster("none");
    let unknown = set_condition(&harness.client, &kind, &none, "weft-controller", &condition);
    let error = unknown.await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot write condition NetworkUnavailable of none"
    );
}
