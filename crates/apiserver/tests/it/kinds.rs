//! Every built-in kind, from creation to deletion.

use http::StatusCode;
use serde_json::{Value, json};
use weft_apiserver::ApiServer;

use crate::support::{self, Lines, delete, get, patch, post};

/// Path of each collection and a minimal object of it.
fn kinds() -> Vec<(String, Value)> {
    let core = |plural: &str| format!("/api/v1/namespaces/default/{plural}");
    let group = |group: &str, plural: &str| format!("/apis/{group}/v1/namespaces/default/{plural}");
    let cluster = |group: &str, plural: &str| format!("/apis/{group}/v1/{plural}");
    let rbac = "rbac.authorization.k8s.io";
    let admission = "admissionregistration.k8s.io";
    let pod = json!({"containers": [{"name": "c", "image": "i"}]});
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod});
    let workload = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let constraints = json!({"resourceRules": [{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
    }]});
    let role = |kind: &str| {
        json!({"roleRef": {
            "apiGroup": rbac, "kind": kind, "name": "r",
        }})
    };
    let event = json!({
        "involvedObject": {"namespace": "default"}, "reason": "R", "type": "Normal",
    });
    vec![
        ("/api/v1/namespaces".to_owned(), json!({})),
        ("/api/v1/nodes".to_owned(), json!({})),
        (core("pods"), json!({"spec": pod})),
        (core("services"), json!({"spec": {"ports": [{"port": 80}]}})),
        (core("endpoints"), json!({"subsets": []})),
        (core("configmaps"), json!({"data": {"a": "b"}})),
        (core("secrets"), json!({"stringData": {"a": "b"}})),
        (core("serviceaccounts"), json!({})),
        (core("events"), event),
        (
            group("discovery.k8s.io", "endpointslices"),
            json!({"addressType": "IPv4", "endpoints": []}),
        ),
        (
            group("coordination.k8s.io", "leases"),
            json!({"spec": {"holderIdentity": "me"}}),
        ),
        (
            group("events.k8s.io", "events"),
            json!({
                "eventTime": "2026-01-01T00:00:00.000000Z", "reason": "R", "type": "Normal",
                "action": "A", "reportingController": "c", "reportingInstance": "i",
                "regarding": {"namespace": "default"},
            }),
        ),
        (
            cluster("networking.k8s.io", "servicecidrs"),
            json!({"spec": {"cidrs": ["10.8.0.0/24"]}}),
        ),
        (group("apps", "deployments"), workload.clone()),
        (group("apps", "replicasets"), workload.clone()),
        (group("apps", "daemonsets"), workload),
        (
            group("policy", "poddisruptionbudgets"),
            json!({"spec": {"minAvailable": 1}}),
        ),
        (group(rbac, "roles"), json!({"rules": rules})),
        (group(rbac, "rolebindings"), role("Role")),
        (cluster(rbac, "clusterroles"), json!({"rules": rules})),
        (cluster(rbac, "clusterrolebindings"), role("ClusterRole")),
        (
            cluster(admission, "validatingadmissionpolicies"),
            json!({"spec": {
                "matchConstraints": constraints, "validations": [{"expression": "true"}],
            }}),
        ),
        (
            cluster(admission, "validatingadmissionpolicybindings"),
            json!({"spec": {
                "policyName": "p", "validationActions": ["Deny"],
            }}),
        ),
    ]
}

#[tokio::test]
async fn each_is_created_read_watched_patched_and_deleted() {
    let server = ApiServer::builder().build();
    for (path, mut body) in kinds() {
        body["metadata"] = json!({"name": "x"});
        let newest = server.resource_version();
        let made = post(&server, &path, &body).await;
        assert_eq!(made.status, StatusCode::CREATED, "{path}: {}", made.text);
        let named = format!("{path}/x");
        let read = get(&server, &named).await;
        assert_eq!(read.json(), made.json(), "{path}");
        let listed = get(&server, &format!("{path}?fieldSelector=metadata.name%3Dx")).await;
        assert_eq!(
            listed.at("/items/0/metadata"),
            made.at("/metadata"),
            "{path}"
        );
        let query = format!("watch=1&fieldSelector=metadata.name%3Dx&resourceVersion={newest}");
        let mut watch = Lines::open(&server, &format!("{path}?{query}")).await;
        assert_eq!(watch.event().await, "ADDED x", "{path}");
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        let changed = patch(&server, &named, "merge-patch+json", &label).await;
        assert_eq!(
            changed.at("/metadata/labels/a"),
            "b",
            "{path}: {}",
            changed.text
        );
        assert_eq!(watch.event().await, "MODIFIED x", "{path}");
        let gone = delete(&server, &named).await;
        assert!(gone.status.is_success(), "{path}: {}", gone.text);
        loop {
            match watch.event().await.as_str() {
                "DELETED x" => break,
                // A Namespace or Pod is marked first.
                other => assert_eq!(other, "MODIFIED x", "{path}"),
            }
        }
    }
}

#[tokio::test]
async fn deployments_and_replica_sets_have_a_scale_and_daemon_sets_have_none() {
    let server = ApiServer::builder().build();
    for (path, mut body) in kinds()
        .into_iter()
        .filter(|(path, _)| path.contains("/apps/"))
    {
        body["metadata"] = json!({"name": "x"});
        post(&server, &path, &body).await;
        let scale = format!("{path}/x/scale");
        let four = json!({"spec": {"replicas": 4}});
        let answer = patch(&server, &scale, "merge-patch+json", &four).await;
        if path.ends_with("daemonsets") {
            assert_eq!(answer.status, StatusCode::NOT_FOUND);
            continue;
        }
        assert_eq!(answer.at("/kind"), "Scale");
        let object = get(&server, &format!("{path}/x")).await;
        assert_eq!(object.at("/spec/replicas"), 4);
        assert_eq!(get(&server, &scale).await.at("/status/selector"), "a=b");
    }
}

#[tokio::test]
async fn a_pod_is_bound_and_an_account_is_given_a_token() {
    let server = ApiServer::builder().build();
    let pods = "/api/v1/namespaces/default/pods";
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    post(&server, pods, &pod).await;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let bound = post(&server, &format!("{pods}/p/binding"), &binding).await;
    assert_eq!(bound.status, StatusCode::CREATED);
    assert_eq!(
        get(&server, &format!("{pods}/p"))
            .await
            .at("/spec/nodeName"),
        "n1"
    );
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    post(&server, accounts, &json!({"metadata": {"name": "robot"}})).await;
    let token = support::post(&server, &format!("{accounts}/robot/token"), &json!({})).await;
    assert!(token.at("/status/token").is_string(), "{}", token.text);
}
