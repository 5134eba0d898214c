//! The embedded API server with the CRDs of `deploy/`, and raw requests to it, for tests.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests may panic as tests do"
)]

mod requests;

use http::Method;
use kube::Client;
use serde_json::Value;
use weft_apiserver::{ApiServer, User};

pub use requests::{call, collection, create};

/// Path of the API group `ipam.weft.dev`.
pub const GROUP: &str = "/apis/ipam.weft.dev/v1alpha1";
const DEFINITIONS: [&str; 4] = [
    include_str!("../../../../deploy/crds/nodenetworkconfigs.yaml"),
    include_str!("../../../../deploy/crds/ippools.yaml"),
    include_str!("../../../../deploy/crds/ippoolshards.yaml"),
    include_str!("../../../../deploy/crds/clustersubnetstates.yaml"),
];

const ACCOUNTS: [&str; 2] = [
    "system:serviceaccounts",
    "system:serviceaccounts:kube-system",
];

/// The path of an object or, with an empty name, of its collection.
pub fn path(plural: &str, name: &str) -> String {
    let scope = match plural {
        "nodenetworkconfigs" | "clustersubnetstates" => "namespaces/kube-system/",
        _ => "",
    };
    let name = if name.is_empty() {
        String::new()
    } else {
        format!("/{name}")
    };
    format!("{GROUP}/{scope}{plural}{name}")
}

/// Installs the CRDs of `deploy/crds` and waits until they are served.
pub async fn install(client: &Client) {
    for text in DEFINITIONS {
        let definition: Value = serde_saphyr::from_str(text).unwrap();
        let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        call(client, Method::POST, all, &definition).await.unwrap();
        let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
        let served = path(plural, "");
        while call(client, Method::GET, &served, &Value::Null)
            .await
            .is_err()
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

/// Starts a server with the CRDs installed.
pub async fn server() -> ApiServer {
    let server = ApiServer::builder().build();
    install(&server.client()).await;
    server
}

/// Creates the objects of a manifest.
pub async fn apply(client: &Client, manifest: &str) {
    let objects: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
    for object in objects {
        call(client, Method::POST, &collection(&object), &object)
            .await
            .unwrap();
    }
}

/// The user of a ServiceAccount in kube-system.
pub fn account(name: &str) -> User {
    User::new(
        &format!("system:serviceaccount:kube-system:{name}"),
        ACCOUNTS,
    )
}

/// Polls a condition every 20 ms. Panics after 100 s, which pass at once in tests with paused time.
pub async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    for _ in 0..5_000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("condition not met after 100 s: {what}");
}

/// A ClusterRole with more rights on Nodes than `deploy/` grants, so that only the admission policy
/// can refuse a request.
pub fn too_many_rights_on_nodes(account: &str) -> String {
    format!(
        "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: too-many}}
rules:
  - apiGroups: [\"\"]
    resources: [nodes, nodes/status]
    verbs: [get, create, update, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: too-many}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: too-many}}
subjects: [{{kind: ServiceAccount, name: {account}, namespace: kube-system}}]
"
    )
}
