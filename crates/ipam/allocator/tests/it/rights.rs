//! The RBAC rules and admission policies in `deploy/controller` and `deploy/node` are sufficient
//! and minimal.

use http::Method;
use kube::Client;
use serde_json::{Value, json};
use weft_apiserver::{ApiServer, AuthorizationMode};
use weft_runtime::Gate;

use weft_testserver::{account, apply, call, install, path, too_many_rights_on_nodes, until};

use super::world::World;

const RIGHTS: [&str; 2] = [
    include_str!("../../../../../deploy/controller/rights.yaml"),
    include_str!("../../../../../deploy/node/rights.yaml"),
];

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

#[tokio::test(start_paused = true)]
async fn an_agent_writes_the_spec_of_its_own_node_and_nothing_else() {
    let world = guarded().await;
    world
        .add_pool("pods", json!({"cidrs": ["10.0.0.0/25"]}))
        .await;
    world.add_nodes(8).await;
    let controller = world.server.client_as(account("weft-controller"));
    // The whole life cycle, exhaustion included.
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
    // A policy is enforced a moment after it was created.
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

/// RBAC rules beyond those in `deploy/node`, so that only the policy can refuse.
const TOO_MANY_RIGHTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: too-many, namespace: kube-system}
rules:
  - apiGroups: [ipam.weft.dev]
    resources: [nodenetworkconfigs, nodenetworkconfigs/status]
    verbs: [get, create, update, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: too-many, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: too-many}
subjects: [{kind: ServiceAccount, name: weft-node, namespace: kube-system}]
";

fn config(node: &str) -> Value {
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": node, "controller": true,
        "uid": format!("uid-of-{node}")});
    json!({"apiVersion": "ipam.weft.dev/v1alpha1", "kind": "NodeNetworkConfig",
        "metadata": {"name": node, "namespace": "kube-system",
            "finalizers": ["ipam.weft.dev/ipam"], "ownerReferences": [owner]},
        "spec": {"requestedIPCount": 16}})
}

/// Requests of an agent.
struct Attempts {
    admin: Client,
    agent: Client,
}

impl Attempts {
    async fn send(&self, method: Method, target: &str, body: &Value) -> String {
        let path = path("nodenetworkconfigs", target);
        match call(&self.agent, method, &path, body).await {
            Ok(_) => "done".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// The current object with a part replaced.
    async fn put(&self, name: &str, part: &str, change: &Value) -> String {
        let stored = path("nodenetworkconfigs", name);
        let stored = call(&self.admin, Method::GET, &stored, &Value::Null).await;
        let mut object = stored.unwrap();
        let target = if part.is_empty() {
            object["spec"].as_object_mut()
        } else {
            object["status"] = json!({});
            object["status"].as_object_mut()
        };
        target.unwrap().extend(change.as_object().unwrap().clone());
        self.send(Method::PUT, &format!("{name}{part}"), &object)
            .await
    }
}

#[tokio::test(start_paused = true)]
async fn the_policy_refuses_what_rights_alone_would_allow() {
    let world = guarded().await;
    let admin = world.server.client();
    apply(&admin, TOO_MANY_RIGHTS).await;
    for node in ["node-0", "node-1"] {
        let all = path("nodenetworkconfigs", "");
        let made = call(&admin, Method::POST, &all, &config(node)).await;
        made.unwrap();
    }
    let agent = account("weft-node").with_extra("authentication.kubernetes.io/node-name", "node-0");
    let agent = world.server.client_as(agent);
    let attempts = Attempts { admin, agent };
    let more = json!({"requestedIPCount": 32});
    // A policy is enforced a moment after it was created.
    while attempts.put("node-1", "", &more).await == "done" {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let (own_only, spec_only) = ("its own node only", "the spec only");
    let owners = |owners: Value| json!({"metadata": {"ownerReferences": owners}});
    let stranger = json!([{"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "other"}]);
    let count = json!({"assignedIPCount": 7});
    let status = json!({"status": count});
    let (post, patch) = (Method::POST, Method::PATCH);
    let answers = [
        (attempts.put("node-1", "", &more).await, own_only),
        (attempts.put("node-1", "/status", &count).await, own_only),
        (
            attempts.send(patch.clone(), "node-1/status", &status).await,
            own_only,
        ),
        (
            attempts.send(post.clone(), "", &config("node-2")).await,
            own_only,
        ),
        (attempts.put("node-0", "/status", &count).await, spec_only),
        (
            attempts.send(patch.clone(), "node-0/status", &status).await,
            spec_only,
        ),
        (
            attempts
                .send(patch.clone(), "node-0", &owners(stranger))
                .await,
            "finalizers and owners",
        ),
        (
            attempts.send(patch, "node-0", &owners(Value::Null)).await,
            "finalizers and owners",
        ),
        (attempts.put("node-0", "", &more).await, "done"),
    ];
    for (index, (answer, expected)) in answers.iter().enumerate() {
        assert!(answer.contains(expected), "attempt {index}: {answer}");
    }
    // Nor may an agent create its own config: its creator determines the owner.
    let other = account("weft-node").with_extra("authentication.kubernetes.io/node-name", "node-2");
    let attempts = Attempts {
        agent: world.server.client_as(other),
        ..attempts
    };
    let answer = attempts.send(post, "", &config("node-2")).await;
    assert!(answer.contains(spec_only), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn the_controller_gives_nodes_their_pod_cidrs_and_changes_nothing_else() {
    let world = guarded().await;
    let client = world.server.client();
    apply(&client, &too_many_rights_on_nodes("weft-controller")).await;
    let taint = json!([{"key": "kept", "effect": "NoSchedule"}]);
    let spec = json!({"providerID": "memory://0", "taints": taint});
    world.add_node("node-0", spec).await;
    world.add_node("node-1", json!({})).await;
    let controller = world.server.client_as(account("weft-controller"));
    let patch = async |target: &str, body: Value| {
        let path = format!("/api/v1/nodes/{target}");
        match call(&controller, Method::PATCH, &path, &body).await {
            Ok(_) => "done".to_owned(),
            Err(error) => error.to_string(),
        }
    };
    // A policy is enforced a moment after it was created.
    let tried = json!({"metadata": {"labels": {"tried": "1"}}});
    until("the policy", async || {
        patch("node-1", tried.clone()).await != "done"
    })
    .await;
    let _running = world.start_pod_cidrs_with(controller.clone(), &[("10.244.0.0/16", 24)]);
    let stored = async |name: &str| {
        let path = format!("/api/v1/nodes/{name}");
        world.call(Method::GET, &path, &Value::Null).await
    };
    let has_range = async || !stored("node-0").await["spec"]["podCIDRs"].is_null();
    until("a range", has_range).await;
    let (metadata, cidrs) = ("the metadata of nodes", "the pod CIDRs of nodes only");
    let (had, spec_only) = ("pod CIDRs that a node has", "the spec of nodes only");
    let before = stored("node-0").await;
    let attempts = [
        (json!({"metadata": {"labels": {"a": "b"}}}), metadata),
        (json!({"metadata": {"labels": null}}), metadata),
        (json!({"metadata": {"annotations": {"a": "b"}}}), metadata),
        (
            json!({"metadata": {"finalizers": ["a.example/b"]}}),
            metadata,
        ),
        (
            json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}}),
            metadata,
        ),
        (json!({"spec": {"unschedulable": true}}), cidrs),
        (json!({"spec": {"taints": null}}), cidrs),
        (
            json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}),
            cidrs,
        ),
    ];
    for (body, expected) in attempts {
        let answer = patch("node-0", body.clone()).await;
        assert!(answer.contains(expected), "{body}: {answer}");
    }
    // These the API server itself refuses as well, for every user.
    for body in [
        json!({"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}}),
        json!({"spec": {"podCIDR": null, "podCIDRs": null}}),
        json!({"spec": {"providerID": "memory://9"}}),
    ] {
        let answer = patch("node-0", body.clone()).await;
        let refused = [had, cidrs, "Forbidden", "Invalid", "invalid"];
        assert!(
            refused.iter().any(|word| answer.contains(word)),
            "{body}: {answer}"
        );
    }
    let status = json!({"status": {"phase": "Terminated"}});
    let answer = patch("node-0/status", status).await;
    assert!(answer.contains(spec_only), "{answer}");
    let fresh = json!({"metadata": {"name": "node-2"}});
    let made = call(&controller, Method::POST, "/api/v1/nodes", &fresh).await;
    let answer = made.unwrap_err().to_string();
    assert!(answer.contains(spec_only), "{answer}");
    let after = stored("node-0").await;
    assert_eq!(before, after);
}

/// Rights on pools beyond those in `deploy/`, so that nothing but the policy is in the way.
const TOO_MANY_RIGHTS_ON_POOLS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: too-many}
rules:
  - apiGroups: [ipam.weft.dev]
    resources: [ippools]
    verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: too-many}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: too-many}
subjects: [{kind: ServiceAccount, name: weft-controller, namespace: kube-system}]
";

#[tokio::test(start_paused = true)]
async fn the_controller_changes_its_finalizer_of_a_pool_and_nothing_else() {
    const FINALIZER: &str = "ipam.weft.dev/ipam";
    let world = guarded().await;
    apply(&world.server.client(), TOO_MANY_RIGHTS_ON_POOLS).await;
    let spec = json!({"cidrs": ["10.0.0.0/24"], "reserved": ["10.0.0.1"]});
    world.add_pool("pods", spec.clone()).await;
    let pool = "/apis/ipam.weft.dev/v1alpha1/ippools/pods";
    let foreign = json!({"metadata": {"finalizers": ["a.example/kept"]}});
    world.call(Method::PATCH, pool, &foreign).await;
    let controller = world.server.client_as(account("weft-controller"));
    let patch = async |body: Value| match call(&controller, Method::PATCH, pool, &body).await {
        Ok(_) => "done".to_owned(),
        Err(error) => error.to_string(),
    };
    // A policy is enforced a moment after it was made.
    let tried = json!({"metadata": {"labels": {"tried": "1"}}});
    until("the policy", async || patch(tried.clone()).await != "done").await;
    let (metadata, finalizer) = ("the metadata of pools", "its own finalizer of pools only");
    let spec_of_pools = "the spec of pools";
    let attempts = [
        (json!({"metadata": {"labels": {"a": "b"}}}), metadata),
        (json!({"metadata": {"annotations": {"a": "b"}}}), metadata),
        (
            json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}}),
            metadata,
        ),
        (json!({"metadata": {"finalizers": null}}), finalizer),
        (json!({"metadata": {"finalizers": [FINALIZER]}}), finalizer),
        (
            json!({"metadata": {"finalizers": ["a.example/kept", "a.example/new"]}}),
            finalizer,
        ),
        (
            json!({"spec": {"cidrs": ["10.0.0.0/24", "10.9.0.0/24"]}}),
            spec_of_pools,
        ),
        (json!({"spec": {"reserved": null}}), spec_of_pools),
        (json!({"spec": {"disabled": true}}), spec_of_pools),
    ];
    for (body, expected) in attempts {
        let answer = patch(body.clone()).await;
        assert!(answer.contains(expected), "{body}: {answer}");
    }
    let fresh = json!({"apiVersion": "ipam.weft.dev/v1alpha1", "kind": "IPPool",
        "metadata": {"name": "more"}, "spec": spec});
    let all = "/apis/ipam.weft.dev/v1alpha1/ippools";
    let made = call(&controller, Method::POST, all, &fresh).await;
    let answer = made.unwrap_err().to_string();
    assert!(answer.contains("may not create pools"), "{answer}");
    for finalizers in [
        json!(["a.example/kept", FINALIZER]),
        json!(["a.example/kept"]),
    ] {
        let body = json!({"metadata": {"finalizers": finalizers}});
        assert_eq!(patch(body).await, "done", "{finalizers}");
    }
}
