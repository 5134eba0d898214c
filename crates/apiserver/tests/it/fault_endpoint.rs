//! Fault endpoint: it offers everything the library does, and only if enabled.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use weft_apiserver::{ApiServer, Matcher};

use crate::support::{Answer, Lines, MAPS, config_map, get, post, request, send};

fn server() -> ApiServer {
    ApiServer::builder().seed(3).fault_endpoint(true).build()
}

/// Posts to the fault endpoint and returns the answer, which must be 200.
async fn inject(server: &ApiServer, action: &str, body: Value) -> Answer {
    let answer = post(server, &format!("/weft/faults{action}"), &body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer
}

async fn remove(server: &ApiServer, what: &str) {
    let request = request(Method::DELETE, &format!("/weft/faults{what}"), "");
    assert_eq!(send(server, request).await.status, StatusCode::OK);
}

async fn list_status(server: &ApiServer) -> u16 {
    get(server, MAPS).await.status.as_u16()
}

#[tokio::test]
async fn the_endpoint_exists_only_when_enabled() {
    let fault = json!({"fault": {"status": {"code": 500}}, "times": {"next": 1}});
    let without = ApiServer::builder().build();
    let refused = post(&without, "/weft/faults", &fault).await;
    assert_eq!(refused.status, StatusCode::NOT_FOUND);
    assert_eq!(list_status(&without).await, 200);
    let with = server();
    inject(&with, "", fault).await;
    assert_eq!(list_status(&with).await, 500);
    assert_eq!(list_status(&with).await, 200);
}

#[tokio::test]
async fn malformed_requests_are_refused() {
    let server = server();
    for (action, wrong) in [
        ("", json!({})),
        ("", json!({"fault": "burn"})),
        ("", json!({"fault": {"status": {"code": 99}}})),
        ("", json!({"fault": "disconnect", "mach": {}})),
        ("/cut", json!({"match": {"verb": "peek"}})),
        ("/drop", json!({})),
        (
            "/objects",
            json!({"resource": "nopes", "name": "a", "object": {}}),
        ),
    ] {
        let answer = post(&server, &format!("/weft/faults{action}"), &wrong).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{wrong}");
    }
    let answer = post(&server, "/weft/faults/nope", &json!({})).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert_eq!(list_status(&server).await, 200);
}

#[tokio::test]
async fn rules_are_added_and_removed_one_by_one() {
    let server = server();
    let matcher = json!({"verb": "list", "resource": "configmaps", "namespace": "default"});
    let refuse = json!({"match": matcher, "fault": "refuseAuthorisation"});
    let id = inject(&server, "", refuse).await.at("/id");
    assert_eq!(list_status(&server).await, 403);
    remove(&server, &format!("/rules/{id}")).await;
    assert_eq!(list_status(&server).await, 200);
    let body = json!({"body": {"code": 502, "contentType": "text/html", "body": "<h1>"}});
    for (fault, status) in [
        (body, 502),
        (json!({"status": {"code": 429, "retryAfter": 1}}), 429),
        (json!({"status": {"code": 409}}), 409),
    ] {
        let rule = json!({"match": matcher, "fault": fault, "times": {"rate": 1.0}});
        inject(&server, "", rule).await;
        assert_eq!(list_status(&server).await, status);
        remove(&server, "").await;
    }
    assert_eq!(list_status(&server).await, 200);
}

#[tokio::test]
async fn lists_and_watches_get_the_injected_answers() {
    let server = server();
    for name in ["a", "b"] {
        post(&server, MAPS, &config_map(name)).await;
    }
    inject(
        &server,
        "",
        json!({"fault": "ignoreLimit", "times": {"next": 1}}),
    )
    .await;
    let page = get(&server, &format!("{MAPS}?limit=1")).await;
    assert_eq!(page.at("/items/1/metadata/name"), "b");
    let version = get(&server, &format!("{MAPS}/a"))
        .await
        .at("/metadata/resourceVersion");
    let version: u64 = version.as_str().unwrap().parse().unwrap();
    inject(
        &server,
        "",
        json!({"fault": {"staleList": version}, "times": {"next": 1}}),
    )
    .await;
    assert_eq!(get(&server, MAPS).await.at("/items/1"), Value::Null);
    let expired = json!({"fault": {"watchError": "expired"}, "times": {"next": 1}});
    inject(&server, "", expired).await;
    let mut watch = Lines::open(&server, &format!("{MAPS}?watch=1")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["code"], 410);
    inject(&server, "", json!({"fault": "noStreamingLists"})).await;
    let streaming = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let refused = get(&server, &format!("{MAPS}{streaming}")).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test(start_paused = true)]
async fn clients_are_dropped_and_requests_delayed_for_some_time() {
    let server = server();
    inject(
        &server,
        "",
        json!({"fault": {"delayMillis": 3000}, "times": {"next": 1}}),
    )
    .await;
    let before = tokio::time::Instant::now();
    assert_eq!(list_status(&server).await, 200);
    assert_eq!(before.elapsed().as_secs(), 3);
    let mut watch = Lines::open(&server, &format!("{MAPS}?watch=1")).await;
    inject(
        &server,
        "/drop",
        json!({"match": {"resource": "configmaps"}, "seconds": 60}),
    )
    .await;
    assert!(watch.try_next().await.is_err(), "the connection broke");
    let refused = server.client();
    let maps = kube::Api::<k8s_openapi::api::core::v1::ConfigMap>::default_namespaced(refused);
    assert!(maps.list(&kube::api::ListParams::default()).await.is_err());
    tokio::time::advance(std::time::Duration::from_secs(61)).await;
    assert_eq!(list_status(&server).await, 200);
}

#[tokio::test]
async fn open_watches_are_stalled_sent_errors_and_cut() {
    let server = server();
    let path = format!("{MAPS}?watch=1");
    let pods = json!({"match": {"resource": "pods"}});
    let maps = json!({"match": {"resource": "configmaps"}});
    let mut watch = Lines::open(&server, &path).await;
    let stall = inject(&server, "/stall", maps.clone()).await.at("/id");
    post(&server, MAPS, &config_map("a")).await;
    let held = tokio::time::timeout(std::time::Duration::from_millis(50), watch.event()).await;
    assert!(held.is_err(), "a stalled watch sends nothing");
    remove(&server, &format!("/stalls/{stall}")).await;
    assert_eq!(watch.event().await, "ADDED a");
    assert_eq!(inject(&server, "/cut", pods).await.at("/count"), 0);
    assert_eq!(inject(&server, "/cut", maps.clone()).await.at("/count"), 1);
    assert_eq!(watch.next().await, None, "a clean end");

    let mut watch = Lines::open(&server, &path).await;
    assert_eq!(watch.event().await, "ADDED a");
    let error = json!({"match": {"resource": "configmaps"}, "error": {"tooManyRequests": 7}});
    assert_eq!(inject(&server, "/watch-error", error).await.at("/count"), 1);
    assert_eq!(watch.next().await.unwrap()["object"]["code"], 429);
    assert_eq!(watch.next().await, None);
    assert_eq!(server.stats().open_watches(&Matcher::any()), 0);
}

#[tokio::test]
async fn tokens_expire_history_is_compacted_and_raw_objects_are_stored() {
    let server = server();
    for name in ["a", "b", "c"] {
        post(&server, MAPS, &config_map(name)).await;
    }
    let first = get(&server, &format!("{MAPS}?limit=1")).await;
    let token = first.at("/metadata/continue").as_str().unwrap().to_owned();
    inject(&server, "/expire-tokens", json!({})).await;
    let next = get(&server, &format!("{MAPS}?limit=1&continue={token}")).await;
    assert_eq!(next.status, StatusCode::GONE);
    let version = first.at("/metadata/resourceVersion");
    post(&server, MAPS, &config_map("d")).await;
    inject(&server, "/compact", json!({})).await;
    let old = format!(
        "{MAPS}?watch=1&resourceVersion={}",
        version.as_str().unwrap()
    );
    let mut watch = Lines::open(&server, &old).await;
    assert_eq!(watch.next().await.unwrap()["object"]["code"], 410);
    let raw = json!({
        "resource": "configmaps", "namespace": "default", "name": "odd", "object": {"data": 7},
    });
    inject(&server, "/objects", raw).await;
    assert_eq!(get(&server, &format!("{MAPS}/odd")).await.at("/data"), 7);
}
