//! The RBAC rules in `deploy/routes` are sufficient, and grant nothing more.

use http::Method;
use serde_json::{Value, json};
use weft_apiserver::{ApiServer, AuthorizationMode};
use weft_providers::MemoryProvider;
use weft_routes::simulation::Profile;

use super::world::World;
use weft_testserver::{account, apply, call, too_many_rights_on_nodes, until};

const MANIFEST: &str = include_str!("../../../../../deploy/routes/deployment.yaml");

#[tokio::test(start_paused = true)]
async fn the_route_controller_writes_one_condition_of_nodes_and_nothing_else() {
    let server = ApiServer::builder()
        .authorization_mode(AuthorizationMode::Rbac)
        .build();
    let admin = server.client();
    // The record is named after provider and cluster, and the manifest is for hcloud's.
    let manifest = MANIFEST.replace("weft-routes-hcloud-", "weft-routes-memory-");
    apply(&admin, &manifest).await;
    apply(&admin, &too_many_rights_on_nodes("weft-routes")).await;
    let node = json!({
        "metadata": {"name": "node-1", "labels": {"kept": "1"}},
        "spec": {"podCIDRs": ["10.244.1.0/24"], "providerID": "memory://1"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "m"}],
        },
    });
    call(&admin, Method::POST, "/api/v1/nodes", &node)
        .await
        .unwrap();
    let client = server.client_as(account("weft-routes"));
    let send = async |method: Method, target: &str, body: &Value| {
        let path = format!("/api/v1/nodes{target}");
        match call(&client, method, &path, body).await {
            Ok(_) => "done".to_owned(),
            Err(error) => error.to_string(),
        }
    };
    // A policy is enforced a moment after it was made.
    let tried = json!({"metadata": {"annotations": {"tried": "1"}}});
    let refused = async || send(Method::PATCH, "/node-1/status", &tried).await != "done";
    until("the policy", refused).await;
    let world = World {
        client: client.clone(),
        server,
        provider: MemoryProvider::new(Profile::MEMORY, Vec::new()),
    };
    let _running = world.start(World::settings());
    let stored = async || {
        let read = call(&admin, Method::GET, "/api/v1/nodes/node-1", &Value::Null).await;
        read.unwrap()
    };
    let condition = |node: &Value, kind: &str| {
        let conditions = node["status"]["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|one| one["type"] == kind);
        found.cloned().unwrap_or_default()
    };
    let available = async || condition(&stored().await, "NetworkUnavailable")["status"] == "False";
    until("a route", available).await;
    let before = stored().await;
    assert_eq!(condition(&before, "Ready")["reason"], "R");
    let own = condition(&before, "NetworkUnavailable");
    let (metadata, conditions) = ("the metadata of nodes", "conditions of nodes only");
    let (other, status_only) = ("NetworkUnavailable only", "the status of nodes only");
    let ready = json!({"type": "Ready", "status": "False", "reason": "R", "message": "m"});
    let unknown = json!({"type": "Unknown", "status": "False", "reason": "R", "message": "m"});
    let attempts = [
        (json!({"metadata": {"labels": {"a": "b"}}}), metadata),
        (json!({"metadata": {"labels": null}}), metadata),
        (json!({"metadata": {"annotations": {"a": "b"}}}), metadata),
        (json!({"status": {"phase": "Terminated"}}), conditions),
        (json!({"status": {"addresses": null}}), conditions),
        (json!({"status": {"capacity": {"cpu": "1"}}}), conditions),
        (json!({"status": {"conditions": [ready, own]}}), other),
        (json!({"status": {"conditions": [own]}}), other),
        (
            json!({"status": {"conditions": [condition(&before, "Ready"), own, unknown]}}),
            other,
        ),
    ];
    for (body, expected) in attempts {
        let answer = send(Method::PATCH, "/node-1/status", &body).await;
        assert!(answer.contains(expected), "{body}: {answer}");
    }
    let cordoned = json!({"spec": {"unschedulable": true}});
    let answer = send(Method::PATCH, "/node-1", &cordoned).await;
    assert!(answer.contains(status_only), "{answer}");
    let fresh = json!({"metadata": {"name": "node-2"}});
    let answer = send(Method::POST, "", &fresh).await;
    assert!(answer.contains(status_only), "{answer}");
    assert_eq!(stored().await, before);
}
