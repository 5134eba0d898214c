//! The rights in `deploy/controller` and `deploy/node` are enough, and not too many.

use http::Method;
use kube::Client;
use serde_json::{Value, json};
use weft_apiserver::{ApiServer, AuthorizationMode, User};
use weft_runtime::Gate;

use super::{
    cluster::{call, install, path},
    world::World,
};

const RIGHTS: [&str; 2] = [
    include_str!("../../../../../deploy/controller/rights.yaml"),
    include_str!("../../../../../deploy/node/rights.yaml"),
];
const ACCOUNTS: [&str; 2] = [
    "system:serviceaccounts",
    "system:serviceaccounts:kube-system",
];

/// Applies a manifest as an administrator would.
async fn apply(client: &Client, manifest: &str) {
    let objects: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
    for object in objects {
        let version = object["apiVersion"].as_str().unwrap();
        let root = if version == "v1" { "/api" } else { "/apis" };
        let kind = object["kind"].as_str().unwrap().to_lowercase();
        let plural = match kind.strip_suffix('y') {
            Some(stem) => format!("{stem}ies"),
            None => format!("{kind}s"),
        };
        let scope = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("namespaces/{namespace}/"),
            None => String::new(),
        };
        let path = format!("{root}/{version}/{scope}{plural}");
        call(client, Method::POST, &path, &object).await.unwrap();
    }
}

async fn guarded() -> World {
    let server = ApiServer::builder()
        .authorization_mode(AuthorizationMode::Rbac)
        .build();
    install(&server.client()).await;
    for manifest in RIGHTS {
        apply(&server.client(), manifest).await;
    }
    World::on(server)
}

fn account(name: &str) -> User {
    User::new(
        &format!("system:serviceaccount:kube-system:{name}"),
        ACCOUNTS,
    )
}

#[tokio::test(start_paused = true)]
async fn an_agent_writes_the_spec_of_its_own_node_and_nothing_else() {
    let world = guarded().await;
    world
        .add_pool("pods", json!({"cidrs": ["10.0.0.0/25"]}))
        .await;
    world.add_nodes(8).await;
    let controller = world.server.client_as(account("weft-controller"));
    // The whole life of the allocator, exhaustion included.
    let _running = world.start_with(controller, Gate::always_open());
    world
        .until("exhausted", |configs| {
            let mut containers = configs
                .values()
                .flat_map(|config| &config.status.network_containers);
            configs.len() == 8
                && containers.any(|nc| nc.status.as_deref() == Some("NCUpdateSubnetFullError"))
        })
        .await;
    let agent = account("weft-node").with_extra("authentication.kubernetes.io/node-name", "node-0");
    let agent = world.server.client_as(agent);
    let patch = async |client: &Client, target: &str, body: Value| {
        let path = path("nodenetworkconfigs", target);
        call(client, Method::PATCH, &path, &body)
            .await
            .map_err(|error| error.to_string())
    };
    let spec = json!({"spec": {"requestedIPCount": 8}});
    // A policy is enforced a moment after it was made.
    while patch(&agent, "node-1", spec.clone()).await.is_ok() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let error = patch(&agent, "node-1", spec.clone()).await.unwrap_err();
    assert!(error.contains("its own node only"), "{error}");
    patch(&agent, "node-0", spec.clone()).await.unwrap();
    let marked = json!({"metadata": {"annotations": {"attempt": "1"}}});
    patch(&agent, "node-0", marked).await.unwrap();
    let bare = json!({"metadata": {"finalizers": null}});
    let error = patch(&agent, "node-0", bare).await.unwrap_err();
    assert!(error.contains("finalizers and owners"), "{error}");
    let error = patch(&agent, "node-0/status", json!({"status": {}}))
        .await
        .unwrap_err();
    assert!(error.contains("cannot patch"), "{error}");
    let nameless = world.server.client_as(account("weft-node"));
    let error = patch(&nameless, "node-0", spec).await.unwrap_err();
    assert!(error.contains("its own node only"), "{error}");
}
