//! Basic behaviour: clients, versions, pages, watches, deletion, definitions.

use std::time::Duration;

use http::StatusCode;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use weft_apiserver::{ApiServer, Matcher};

use crate::support::{Lines, MAPS, config_map, delete, get, patch, post, put};

#[tokio::test]
async fn a_kube_client_works_without_sockets() {
    let server = ApiServer::builder().build();
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
    let map: ConfigMap = serde_json::from_value(config_map("a")).unwrap();
    let made = maps.create(&PostParams::default(), &map).await.unwrap();
    assert!(made.metadata.uid.is_some());
    assert_eq!(
        maps.list(&kube::api::ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        1
    );
    let error = maps.create(&PostParams::default(), &map).await.unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error}")
    };
    assert_eq!(
        (status.code, status.reason.as_str()),
        (409, "AlreadyExists")
    );
    assert_eq!(status.message, "configmaps \"a\" already exists");
}

#[tokio::test]
async fn a_stale_update_conflicts_and_an_idle_one_changes_nothing() {
    let server = ApiServer::builder().build();
    let made = post(&server, MAPS, &config_map("a")).await;
    assert_eq!(made.status, StatusCode::CREATED);
    let version = made.at("/metadata/resourceVersion");
    let same = put(&server, &format!("{MAPS}/a"), &made.json()).await;
    assert_eq!(
        same.at("/metadata/resourceVersion"),
        version,
        "nothing changed"
    );
    let mut stale = made.json();
    stale["metadata"]["resourceVersion"] = "1".into();
    let refused = put(&server, &format!("{MAPS}/a"), &stale).await;
    assert_eq!(
        (refused.status, refused.at("/reason")),
        (StatusCode::CONFLICT, json!("Conflict"))
    );
}

#[tokio::test]
async fn pages_show_one_moment_and_expire() {
    let server = ApiServer::builder().build();
    for name in ["c0", "c1", "c2"] {
        post(&server, MAPS, &config_map(name)).await;
    }
    let first = get(&server, &format!("{MAPS}?limit=2")).await;
    assert_eq!(first.at("/metadata/remainingItemCount"), 1);
    assert_eq!(
        first.at("/items/0/kind"),
        Value::Null,
        "items of built-in kinds carry no kind"
    );
    let token = first.at("/metadata/continue").as_str().unwrap().to_owned();
    post(&server, MAPS, &config_map("c9")).await;
    let next = format!("{MAPS}?limit=2&continue={token}");
    let second = get(&server, &next).await;
    assert_eq!(
        second.at("/items").as_array().unwrap().len(),
        1,
        "c9 came later"
    );
    assert_eq!(
        second.at("/metadata/resourceVersion"),
        first.at("/metadata/resourceVersion")
    );
    server.faults().compact();
    let expired = get(&server, &next).await;
    assert_eq!(
        (expired.status, expired.at("/reason")),
        (StatusCode::GONE, json!("Expired"))
    );
    let fresh = expired
        .at("/metadata/continue")
        .as_str()
        .unwrap()
        .to_owned();
    let rest = get(&server, &format!("{MAPS}?limit=9&continue={fresh}")).await;
    assert_eq!(
        rest.at("/items").as_array().unwrap().len(),
        2,
        "the newest state"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_sends_changes_and_bookmarks_and_ends_in_time() {
    let server = ApiServer::builder().build();
    post(&server, MAPS, &config_map("pre")).await;
    let path = format!("{MAPS}?watch=1&timeoutSeconds=100&allowWatchBookmarks=true");
    let mut watch = Lines::open(&server, &path).await;
    assert_eq!(watch.event().await, "ADDED pre");
    patch(
        &server,
        &format!("{MAPS}/pre"),
        "merge-patch+json",
        &json!({"data": {"a": "1"}}),
    )
    .await;
    assert_eq!(watch.event().await, "MODIFIED pre");
    delete(&server, &format!("{MAPS}/pre")).await;
    let gone = watch.next().await.unwrap();
    assert_eq!(gone["type"], "DELETED");
    assert_eq!(
        gone["object"]["metadata"]["resourceVersion"],
        server.resource_version().to_string(),
        "the deletion's version"
    );
    post(
        &server,
        "/api/v1/namespaces",
        &json!({"metadata": {"name": "other"}}),
    )
    .await;
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(
        bookmark["object"]["metadata"]["resourceVersion"],
        server.resource_version().to_string()
    );
    assert_eq!(
        watch.next().await,
        None,
        "the stream ends after timeoutSeconds"
    );
}

#[tokio::test]
async fn a_streaming_list_marks_the_end_of_the_initial_state() {
    let server = ApiServer::builder().build();
    post(&server, MAPS, &config_map("pre")).await;
    let path = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut watch = Lines::open(&server, &path).await;
    assert_eq!(watch.event().await, "ADDED pre");
    let mark = watch.next().await.unwrap();
    assert_eq!(
        mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    post(&server, MAPS, &config_map("new")).await;
    assert_eq!(watch.event().await, "ADDED new");
}

#[tokio::test]
async fn a_watch_from_before_the_history_gets_410_in_its_stream() {
    let server = ApiServer::builder().build();
    let old = server.resource_version();
    post(&server, MAPS, &config_map("a")).await;
    server.faults().compact();
    let mut watch = Lines::open(&server, &format!("{MAPS}?watch=1&resourceVersion={old}")).await;
    let error = watch.next().await.unwrap();
    assert_eq!(
        (&error["type"], &error["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn dropping_the_response_closes_the_watch() {
    let server = ApiServer::builder().build();
    let maps = Matcher::any().resource("configmaps");
    let watch = Lines::open(&server, &format!("{MAPS}?watch=1")).await;
    assert_eq!(server.stats().open_watches(&maps), 1);
    drop(watch);
    assert_eq!(server.stats().open_watches(&maps), 0);
    let mut watch = Lines::open(&server, &format!("{MAPS}?watch=1")).await;
    server.shutdown();
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn an_object_stays_until_its_last_finalizer_is_removed() {
    let server = ApiServer::builder().build();
    let mut map = config_map("f");
    map["metadata"]["finalizers"] = json!(["example.com/f"]);
    post(&server, MAPS, &map).await;
    let path = format!("{MAPS}/f");
    let marked = delete(&server, &path).await;
    assert_eq!(marked.at("/metadata/deletionGracePeriodSeconds"), 0);
    assert_eq!(
        delete(&server, &path).await.text,
        marked.text,
        "deleting again changes nothing"
    );
    let version = marked.at("/metadata/resourceVersion");
    let last = patch(
        &server,
        &path,
        "merge-patch+json",
        &json!({"metadata": {"finalizers": null}}),
    )
    .await;
    assert_eq!(
        last.at("/metadata/resourceVersion"),
        version,
        "shown at its old version"
    );
    assert_eq!(get(&server, &path).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn deleting_a_namespace_deletes_its_content() {
    let server = ApiServer::builder().build();
    post(
        &server,
        "/api/v1/namespaces",
        &json!({"metadata": {"name": "t"}}),
    )
    .await;
    post(&server, "/api/v1/namespaces/t/configmaps", &config_map("a")).await;
    let mut watch = Lines::open(
        &server,
        "/api/v1/namespaces?watch=1&fieldSelector=metadata.name%3Dt",
    )
    .await;
    assert_eq!(watch.event().await, "ADDED t");
    let marked = delete(&server, "/api/v1/namespaces/t").await;
    assert_eq!(marked.at("/status/phase"), "Terminating");
    let refused = post(&server, "/api/v1/namespaces/t/configmaps", &config_map("b")).await;
    assert_eq!(
        refused.at("/details/causes/0/reason"),
        "NamespaceTerminating"
    );
    assert_eq!(watch.event().await, "MODIFIED t");
    assert_eq!(watch.event().await, "DELETED t");
    let left = get(&server, "/api/v1/namespaces/t/configmaps").await;
    assert_eq!(left.at("/items"), json!([]));
}

#[tokio::test]
async fn dependents_follow_their_owner() {
    let server = ApiServer::builder().build();
    let owner = post(&server, MAPS, &config_map("owner")).await;
    let mut child = config_map("child");
    child["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.at("/metadata/uid"),
    }]);
    post(&server, MAPS, &child).await;
    let mut watch = Lines::open(
        &server,
        &format!("{MAPS}?watch=1&fieldSelector=metadata.name%3Dchild"),
    )
    .await;
    assert_eq!(watch.event().await, "ADDED child");
    delete(&server, &format!("{MAPS}/owner")).await;
    assert_eq!(watch.event().await, "DELETED child");
}

fn widget_definition() -> Value {
    let version = |name: &str, storage: bool| {
        json!({
            "name": name, "served": true, "storage": storage, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version("v1", true), version("v2", false)],
        },
    })
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

async fn establish(server: &ApiServer) {
    let mut watch = Lines::open(server, &format!("{DEFINITIONS}?watch=1")).await;
    post(server, DEFINITIONS, &widget_definition()).await;
    loop {
        let event = watch.next().await.unwrap();
        let conditions = event["object"]["status"]["conditions"].as_array().cloned();
        let established = |c: &Value| c["type"] == "Established" && c["status"] == "True";
        if conditions
            .into_iter()
            .flatten()
            .any(|condition| established(&condition))
        {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_served_from_creation_to_deletion_of_its_definition() {
    let server = ApiServer::builder().build();
    assert_eq!(get(&server, WIDGETS).await.text, "404 page not found\n");
    establish(&server).await;
    let body = json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"},
        "spec": {"size": 1}, "status": {"dropped": true},
    });
    let made = post(&server, WIDGETS, &body).await;
    assert_eq!(
        (made.status, made.at("/metadata/generation")),
        (StatusCode::CREATED, json!(1))
    );
    assert_eq!(made.at("/status"), Value::Null);
    let other = get(&server, "/apis/example.com/v2/namespaces/default/widgets/a").await;
    assert_eq!(other.at("/apiVersion"), "example.com/v2");
    let mut watch = Lines::open(&server, &format!("{WIDGETS}?watch=1")).await;
    assert_eq!(watch.event().await, "ADDED a");
    delete(&server, &format!("{DEFINITIONS}/widgets.example.com")).await;
    assert_eq!(watch.event().await, "DELETED a");
    assert_eq!(
        watch.next().await,
        None,
        "the watch ends cleanly a second later"
    );
    assert_eq!(get(&server, WIDGETS).await.text, "404 page not found\n");
}

#[tokio::test]
async fn a_changed_version_ends_the_watches_of_its_kind() {
    let server = ApiServer::builder().build();
    establish(&server).await;
    let mut watch = Lines::open(&server, &format!("{WIDGETS}?watch=1")).await;
    let unserve = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]);
    let path = format!("{DEFINITIONS}/widgets.example.com");
    assert_eq!(
        patch(&server, &path, "json-patch+json", &unserve)
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(watch.next().await, None);
    let gone = get(&server, "/apis/example.com/v2/namespaces/default/widgets").await;
    assert_eq!(gone.text, "404 page not found\n");
    assert_eq!(get(&server, WIDGETS).await.status, StatusCode::OK);
}

#[tokio::test]
async fn only_a_bound_pod_gets_a_grace_period() {
    let server = ApiServer::builder().build();
    let pods: Api<Pod> = Api::default_namespaced(server.client());
    let pod = |name: &str, node: Option<&str>| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        }))
        .unwrap()
    };
    pods.create(&PostParams::default(), &pod("free", None))
        .await
        .unwrap();
    pods.create(&PostParams::default(), &pod("bound", Some("n1")))
        .await
        .unwrap();
    for name in ["free", "bound"] {
        pods.delete(name, &kube::api::DeleteParams::default())
            .await
            .unwrap();
    }
    assert!(pods.get_opt("free").await.unwrap().is_none());
    let bound = pods.get("bound").await.unwrap();
    assert_eq!(bound.metadata.deletion_grace_period_seconds, Some(30));
    pods.delete("bound", &kube::api::DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert!(pods.get_opt("bound").await.unwrap().is_none());
}

#[tokio::test]
async fn kube_discovers_kinds_in_both_ways() {
    let server = ApiServer::builder().build();
    for discovery in [
        kube::discovery::Discovery::new(server.client())
            .run()
            .await
            .unwrap(),
        kube::discovery::Discovery::new(server.client())
            .run_aggregated()
            .await
            .unwrap(),
    ] {
        let kinds: Vec<String> = discovery
            .groups()
            .flat_map(kube::discovery::ApiGroup::recommended_resources)
            .map(|(resource, _)| resource.kind)
            .collect();
        for kind in [
            "Pod",
            "Lease",
            "EndpointSlice",
            "Deployment",
            "CustomResourceDefinition",
        ] {
            assert!(
                kinds.iter().any(|known| known == kind),
                "{kind} in {kinds:?}"
            );
        }
    }
    assert_eq!(
        server.client().apiserver_version().await.unwrap().minor,
        "36"
    );
}

#[tokio::test]
async fn https_and_http_reach_the_same_server() {
    let server = ApiServer::builder().start().await.unwrap();
    let listening = server.listening().unwrap();
    let client = kube::Client::try_from(listening.kube_config()).unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let map: ConfigMap = serde_json::from_value(config_map("a")).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let plain = kube::Config::new(
        format!("http://{}", listening.http.unwrap())
            .parse()
            .unwrap(),
    );
    let maps: Api<ConfigMap> = Api::default_namespaced(kube::Client::try_from(plain).unwrap());
    assert_eq!(
        maps.get("a").await.unwrap().metadata.name.as_deref(),
        Some("a")
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_of_the_future_times_out() {
    let server = ApiServer::builder().build();
    let started = tokio::time::Instant::now();
    let answer = get(
        &server,
        &format!("{MAPS}?resourceVersion=999999&resourceVersionMatch=NotOlderThan"),
    )
    .await;
    assert_eq!(
        (
            answer.status,
            answer.headers["retry-after"].to_str().unwrap()
        ),
        (StatusCode::GATEWAY_TIMEOUT, "1")
    );
    assert!(started.elapsed() >= Duration::from_secs(3));
}
