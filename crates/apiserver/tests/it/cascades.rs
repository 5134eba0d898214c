//! Cascading deletion: dependents, namespaces, definitions, and the finalizers they wait for.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weft_apiserver::ApiServer;

use crate::support::{Answer, MAPS, config_map, delete, get, patch, post};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";

/// Repeats a GET until the answer is as wanted; panics after a timeout.
async fn until(server: &ApiServer, path: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
    let asking = async {
        loop {
            let answer = get(server, path).await;
            if wanted(&answer) {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    let limit = Duration::from_secs(20);
    let answer = tokio::time::timeout(limit, asking).await;
    answer.unwrap_or_else(|_| panic!("no answer of {path} was as wanted"))
}

async fn until_gone(server: &ApiServer, path: &str) {
    until(server, path, |answer| {
        answer.status == StatusCode::NOT_FOUND
    })
    .await;
}

/// The object without finalizers, or the 404 once it is removed.
async fn until_released(server: &ApiServer, path: &str) -> Answer {
    until(server, path, |answer| {
        answer.status != StatusCode::OK || answer.at("/metadata/finalizers") == Value::Null
    })
    .await
}

async fn define_things(server: &ApiServer) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    });
    let made = post(server, DEFINITIONS, &definition).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    until(server, THINGS, |answer| answer.status == StatusCode::OK).await;
}

fn thing(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name}})
}

#[tokio::test]
async fn a_namespace_waits_for_its_content_with_every_propagation_policy() {
    for policy in ["Foreground", "Orphan"] {
        let server = ApiServer::builder().build();
        let body = json!({"metadata": {"name": "x"}});
        post(&server, "/api/v1/namespaces", &body).await;
        let mut map = config_map("a");
        map["metadata"]["finalizers"] = json!(["example.com/wait"]);
        post(&server, "/api/v1/namespaces/x/configmaps", &map).await;
        let namespace = "/api/v1/namespaces/x";
        delete(&server, &format!("{namespace}?propagationPolicy={policy}")).await;
        let left = until_released(&server, namespace).await;
        assert_eq!(left.at("/status/phase"), "Terminating", "{}", left.text);
        let free = json!({"metadata": {"finalizers": null}});
        let path = format!("{namespace}/configmaps/a");
        patch(&server, &path, "merge-patch+json", &free).await;
        until_gone(&server, namespace).await;
    }
}

#[tokio::test]
async fn a_bound_pod_keeps_its_grace_in_the_foreground() {
    let server = ApiServer::builder().build();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "nodeName": "n1", "containers": [{"name": "c", "image": "i"}],
    }});
    post(&server, pods, &pod).await;
    let path = format!("{pods}/p");
    delete(&server, &format!("{path}?propagationPolicy=Foreground")).await;
    let left = until_released(&server, &path).await;
    assert_eq!(left.at("/metadata/deletionGracePeriodSeconds"), 30);
    delete(&server, &format!("{path}?gracePeriodSeconds=0")).await;
    until_gone(&server, &path).await;
}

#[tokio::test]
async fn a_grace_period_beyond_every_timestamp_still_marks_the_pod() {
    let server = ApiServer::builder().build();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "nodeName": "n1", "containers": [{"name": "c", "image": "i"}],
    }});
    post(&server, pods, &pod).await;
    let path = format!("{pods}/p?gracePeriodSeconds=9223372036854775807");
    let marked = delete(&server, &path).await;
    assert!(
        marked.at("/metadata/deletionTimestamp").is_string(),
        "{}",
        marked.text
    );
}

#[tokio::test]
async fn deleting_a_definition_deletes_its_instances_with_every_propagation_policy() {
    for policy in ["Foreground", "Orphan"] {
        let server = ApiServer::builder().build();
        define_things(&server).await;
        post(&server, THINGS, &thing("a")).await;
        let path = format!("{DEFINITIONS}/things.example.com");
        delete(&server, &format!("{path}?propagationPolicy={policy}")).await;
        until_gone(&server, &path).await;
        define_things(&server).await;
        assert_eq!(get(&server, THINGS).await.at("/items"), json!([]));
    }
}

#[tokio::test]
async fn dependents_of_instances_are_deleted_with_the_definition() {
    let server = ApiServer::builder().build();
    define_things(&server).await;
    let owner = post(&server, THINGS, &thing("a")).await;
    let mut map = config_map("owned");
    map["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "example.com/v1", "kind": "Thing", "name": "a",
        "uid": owner.at("/metadata/uid"),
    }]);
    post(&server, MAPS, &map).await;
    delete(&server, &format!("{DEFINITIONS}/things.example.com")).await;
    until_gone(&server, &format!("{MAPS}/owned")).await;
}

/// A ConfigMap with an owner.
fn owned(name: &str, owner: &Answer, blocks: bool) -> Value {
    let mut map = config_map(name);
    map["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner.at("/metadata/name"),
        "uid": owner.at("/metadata/uid"), "blockOwnerDeletion": blocks,
    }]);
    map
}

async fn delete_with(server: &ApiServer, path: &str, policy: &str) -> Answer {
    delete(server, &format!("{path}?propagationPolicy={policy}")).await
}

#[tokio::test]
async fn in_the_foreground_an_owner_waits_for_blocking_dependents() {
    let server = ApiServer::builder().build();
    let owner = post(&server, MAPS, &config_map("owner")).await;
    let mut blocking = owned("blocking", &owner, true);
    blocking["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let mut waiting = owned("waiting", &owner, false);
    waiting["metadata"]["finalizers"] = json!(["example.com/hold"]);
    for map in [&blocking, &waiting, &owned("free", &owner, true)] {
        assert_eq!(post(&server, MAPS, map).await.status, StatusCode::CREATED);
    }
    let path = |name: &str| format!("{MAPS}/{name}");
    let marked = delete_with(&server, &path("owner"), "Foreground").await;
    assert_eq!(
        marked.at("/metadata/finalizers"),
        json!(["foregroundDeletion"])
    );
    until_gone(&server, &path("free")).await;
    for name in ["blocking", "waiting"] {
        let deleting = |answer: &Answer| answer.at("/metadata/deletionTimestamp") != Value::Null;
        until(&server, &path(name), deleting).await;
    }
    assert_eq!(get(&server, &path("owner")).await.status, StatusCode::OK);
    let release = json!({"metadata": {"finalizers": null}});
    patch(&server, &path("blocking"), "merge-patch+json", &release).await;
    until_gone(&server, &path("owner")).await;
    let left = get(&server, &path("waiting")).await;
    assert_eq!(
        left.status,
        StatusCode::OK,
        "it does not block its owner, and keeps its own finalizer"
    );
}

#[tokio::test]
async fn orphans_stay_and_forget_their_owner() {
    let server = ApiServer::builder().build();
    let owner = post(&server, MAPS, &config_map("owner")).await;
    let other = post(&server, MAPS, &config_map("other")).await;
    let mut both = owned("both", &owner, true);
    let reference = owned("x", &other, true)["metadata"]["ownerReferences"][0].clone();
    both["metadata"]["ownerReferences"]
        .as_array_mut()
        .unwrap()
        .push(reference);
    post(&server, MAPS, &owned("only", &owner, true)).await;
    post(&server, MAPS, &both).await;
    delete_with(&server, &format!("{MAPS}/owner"), "Orphan").await;
    until_gone(&server, &format!("{MAPS}/owner")).await;
    let only = get(&server, &format!("{MAPS}/only")).await;
    assert_eq!(only.at("/metadata/ownerReferences"), Value::Null);
    let both = get(&server, &format!("{MAPS}/both")).await;
    assert_eq!(both.at("/metadata/ownerReferences/0/name"), "other");
    assert_eq!(both.at("/metadata/ownerReferences/1"), Value::Null);
}
