//! Fault injection by the library.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use weft_apiserver::{ApiServer, Cut, Fault, InjectedWatchError, Matcher, Times, Verb};

use crate::support::{Lines, MAPS, config_map, get, post};

#[tokio::test]
async fn the_next_requests_get_the_injected_answer_and_later_ones_do_not() {
    let server = ApiServer::builder().build();
    let lists = Matcher::any().verb(Verb::List).resource("configmaps");
    server
        .faults()
        .inject(lists.clone(), Fault::too_many_requests(7), Times::Next(2));
    for _ in 0..2 {
        let answer = get(&server, MAPS).await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.headers["retry-after"], "7");
        assert_eq!(answer.at("/details/retryAfterSeconds"), 7);
    }
    assert_eq!(get(&server, MAPS).await.status, StatusCode::OK);
    assert_eq!(server.stats().count(&lists), 3);
    let log = server.stats().requests(&lists);
    assert_eq!(
        log.iter().map(|record| record.status).collect::<Vec<_>>(),
        [429, 429, 200]
    );
}

#[tokio::test]
async fn rates_repeat_with_the_seed() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let server = ApiServer::builder().seed(42).build();
        let fault = Fault::status(StatusCode::INTERNAL_SERVER_ERROR);
        server
            .faults()
            .inject(Matcher::any(), fault, Times::Rate(0.5));
        let mut statuses = Vec::new();
        for _ in 0..20 {
            statuses.push(get(&server, MAPS).await.status.as_u16());
        }
        runs.push(statuses);
    }
    assert_eq!(runs[0], runs[1]);
    assert!(runs[0].contains(&200) && runs[0].contains(&500));
}

#[tokio::test]
async fn watches_are_cut_cleanly_or_in_the_middle_of_a_line() {
    let server = ApiServer::builder().build();
    let maps = Matcher::any().resource("configmaps");
    let path = format!("{MAPS}?watch=1");
    let mut clean = Lines::open(&server, &path).await;
    assert_eq!(server.faults().cut_watches(&maps, Cut::Clean), 1);
    assert_eq!(clean.next().await, None);
    drop(clean);
    let mut broken = Lines::open(&server, &path).await;
    server.faults().cut_watches(&maps, Cut::MidFrame);
    assert!(broken.try_next().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_stalled_watch_stays_open_and_goes_on_when_released() {
    let server = ApiServer::builder().build();
    let path = format!("{MAPS}?watch=1");
    let mut before = Lines::open(&server, &path).await;
    let stall = server
        .faults()
        .stall_watches(Matcher::any().verb(Verb::Watch));
    let mut after = Lines::open(&server, &path).await;
    post(&server, MAPS, &config_map("a")).await;
    for watch in [&mut before, &mut after] {
        let silence = tokio::time::timeout(Duration::from_mins(1), watch.next()).await;
        assert!(silence.is_err(), "a stalled watch sent something");
    }
    drop(stall);
    assert_eq!(before.event().await, "ADDED a");
    assert_eq!(after.event().await, "ADDED a");
}

#[tokio::test]
async fn errors_are_sent_into_open_watches_and_to_new_ones() {
    let server = ApiServer::builder().build();
    let path = format!("{MAPS}?watch=1");
    let mut open = Lines::open(&server, &path).await;
    let all = Matcher::any();
    server.faults().send_watch_error(
        &all,
        &InjectedWatchError::TooManyRequests { retry_after: 3 },
    );
    assert_eq!(open.next().await.unwrap()["object"]["code"], 429);
    assert_eq!(open.next().await, None);
    server.faults().inject(
        all,
        Fault::WatchError(InjectedWatchError::TooLargeVersion),
        Times::Next(1),
    );
    let mut new = Lines::open(&server, &path).await;
    assert_eq!(new.next().await.unwrap()["object"]["code"], 504);
}

#[tokio::test]
async fn an_older_server_refuses_streaming_lists() {
    let server = ApiServer::builder().build();
    let id = server.faults().refuse_streaming_lists();
    let path = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
    );
    assert_eq!(
        get(&server, &path).await.status,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    server.faults().remove(id);
    assert_eq!(get(&server, &path).await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_client_is_served_again_after_its_time() {
    let server = ApiServer::builder().build();
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::default_namespaced(server.client());
    server
        .faults()
        .drop_client(Matcher::any(), Duration::from_secs(5));
    assert!(maps.get_opt("x").await.is_err());
    tokio::time::advance(Duration::from_secs(6)).await;
    assert!(maps.get_opt("x").await.unwrap().is_none());
}

#[tokio::test]
async fn lists_can_be_stale_or_without_pages_and_rights_refused() {
    let server = ApiServer::builder().build();
    post(&server, MAPS, &config_map("a")).await;
    let old = server.resource_version();
    post(&server, MAPS, &config_map("b")).await;
    let lists = Matcher::any().verb(Verb::List);
    server.faults().inject(
        lists.clone(),
        Fault::StaleList { version: old },
        Times::Next(1),
    );
    let stale = get(&server, MAPS).await;
    assert_eq!(stale.at("/metadata/resourceVersion"), old.to_string());
    assert_eq!(stale.at("/items").as_array().unwrap().len(), 1);
    server
        .faults()
        .inject(lists.clone(), Fault::IgnoreLimit, Times::Next(1));
    let all = get(&server, &format!("{MAPS}?limit=1")).await;
    assert_eq!(all.at("/items").as_array().unwrap().len(), 2);
    server.faults().refuse_authorisation(lists, Times::Next(1));
    let refused = get(&server, MAPS).await;
    assert_eq!(
        refused.message(),
        "configmaps is forbidden: User \"kubernetes-admin\" cannot list resource \"configmaps\" in \
         API group \"\" in the namespace \"default\""
    );
}

#[tokio::test]
async fn an_object_that_breaks_its_schema_can_be_stored() {
    let server = ApiServer::builder().build();
    let object = json!({"metadata": {"labels": {"a": "b"}}, "data": "not a map"});
    assert!(
        server
            .faults()
            .inject_raw("configmaps", "default", "odd", object)
    );
    assert_eq!(
        get(&server, &format!("{MAPS}/odd")).await.at("/data"),
        "not a map"
    );
    assert!(!server.faults().inject_raw("nothings", "", "x", json!({})));
}

#[tokio::test(start_paused = true)]
async fn a_delay_holds_requests_back() {
    let server = ApiServer::builder().build();
    server
        .faults()
        .delay(Matcher::any(), Duration::from_secs(9), Times::Next(1));
    let started = tokio::time::Instant::now();
    get(&server, MAPS).await;
    assert!(started.elapsed() >= Duration::from_secs(9));
}
