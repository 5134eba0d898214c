//! Limits that protect the server against hostile or careless requests.

use std::os::unix::fs::PermissionsExt as _;

use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use weft_apiserver::{ApiServer, RunConfig};

use crate::support::{self, Lines, MAPS, config_map, get, patch, post};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1";

async fn send_yaml(server: &ApiServer, path: &str, body: &str) -> support::Answer {
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("content-type", "application/yaml")
        .body(body.to_owned());
    support::send(server, request.unwrap()).await
}

#[tokio::test]
async fn durations_beyond_every_timestamp_are_accepted() {
    let server = ApiServer::builder().fault_endpoint(true).build();
    post(&server, MAPS, &config_map("a")).await;
    let path = format!("{MAPS}?watch=1&timeoutSeconds=9223372036854775807");
    assert_eq!(Lines::open(&server, &path).await.event().await, "ADDED a");
    let body = json!({"fault": {"status": {"code": 500}}, "times": {"seconds": u64::MAX}});
    assert_eq!(
        post(&server, "/weft/faults", &body).await.status,
        StatusCode::OK
    );
    assert_eq!(
        get(&server, MAPS).await.status,
        StatusCode::INTERNAL_SERVER_ERROR
    );
}

#[tokio::test]
async fn copies_of_a_patch_are_bounded() {
    let server = ApiServer::builder().build();
    let mut map = config_map("a");
    map["data"] = json!({"x": "x".repeat(100_000)});
    post(&server, MAPS, &map).await;
    let copies: Vec<Value> = (0..40)
        .map(|step| json!({"op": "copy", "from": "/data", "path": format!("/data/{step}")}))
        .collect();
    let path = format!("{MAPS}/a");
    let refused = patch(&server, &path, "json-patch+json", &copies.into()).await;
    assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn errors_about_a_body_are_limited_in_number_and_length() {
    let server = ApiServer::builder().build();
    let name = "n".repeat(1024 * 1024);
    let repeated = vec!["\"x\":1"; 300_000].join(",");
    let body = format!("{{\"metadata\":{{\"name\":\"a\"}},\"{name}\":{{{repeated}}}}}");
    let made = support::send(&server, support::request(Method::POST, MAPS, &body)).await;
    assert_eq!(made.status, StatusCode::CREATED);
    let warnings: Vec<usize> = made
        .headers
        .get_all("warning")
        .iter()
        .map(http::HeaderValue::len)
        .collect();
    assert!((1..=100).contains(&warnings.len()), "{}", warnings.len());
    assert!(warnings.iter().all(|length| *length < 2048), "{warnings:?}");
}

#[tokio::test]
async fn growth_of_policy_variables_is_bounded() {
    let server = ApiServer::builder().build();
    let variables: Vec<Value> = (0..40)
        .map(|step: i32| {
            let expression = match step {
                0 => "'ten bytes.'".to_owned(),
                _ => format!("variables.p{0} + variables.p{0}", step - 1),
            };
            json!({"name": format!("p{step}"), "expression": expression})
        })
        .collect();
    let policy = json!({"metadata": {"name": "p"}, "spec": {
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"],
            "resources": ["configmaps"],
        }]},
        "variables": variables,
        "validations": [{"expression": "variables.p39 == ''"}],
    }});
    let policies = format!("{POLICIES}/validatingadmissionpolicies");
    let made = post(&server, &policies, &policy).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    let bindings = format!("{POLICIES}/validatingadmissionpolicybindings");
    let binding = json!({
        "metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]},
    });
    post(&server, &bindings, &binding).await;
    let denied = post(&server, MAPS, &config_map("a")).await;
    assert_eq!(denied.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        denied.message().contains("fails to evaluate"),
        "{}",
        denied.message()
    );
}

#[tokio::test]
async fn objects_too_deep_to_be_decoded_are_not_stored() {
    let server = ApiServer::builder().build();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
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
    post(&server, definitions, &definition).await;
    let things = "/apis/example.com/v1/namespaces/default/things";
    while get(&server, things).await.status != StatusCode::OK {
        tokio::task::yield_now().await;
    }
    let thing = |name: &str, levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        format!(
            "{{\"apiVersion\":\"example.com/v1\",\"kind\":\"Thing\",\
             \"metadata\":{{\"name\":\"{name}\"}},\"x\":{open}{close}}}"
        )
    };
    for (levels, status) in [(100, 201), (124, 400), (1500, 400)] {
        let body = thing(&format!("t{levels}"), levels);
        let json = support::send(&server, support::request(Method::POST, things, &body)).await;
        assert_eq!(json.status.as_u16(), status, "{}", json.text);
    }
    for (levels, status) in [(50, 201), (124, 400), (1500, 400)] {
        let yaml = send_yaml(&server, things, &thing(&format!("y{levels}"), levels)).await;
        assert_eq!(yaml.status.as_u16(), status, "{}", yaml.text);
    }
    let path = format!("{things}/t100");
    let mut value = json!(1);
    for _ in 0..50 {
        value = json!({"a": value});
    }
    let below = format!("/x{}/0", "/0".repeat(99));
    let deeper = json!([{"op": "add", "path": below, "value": value}]);
    let refused = patch(&server, &path, "json-patch+json", &deeper).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(get(&server, &path).await.at("/metadata/name"), "t100");
}

#[tokio::test]
async fn files_with_keys_and_secrets_are_private() {
    let directory = std::env::temp_dir().join(format!("weft-private-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let kubeconfig = directory.join("kubeconfig");
    std::fs::write(&kubeconfig, "old").unwrap();
    std::fs::set_permissions(&kubeconfig, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut config = RunConfig::new("127.0.0.1:0".parse().unwrap());
    config.kubeconfig = Some(kubeconfig.clone());
    config.data_dir = Some(directory.join("data"));
    let server = weft_apiserver::start(config).await.unwrap();
    let mode = |name: &str| {
        let metadata = std::fs::metadata(directory.join(name)).unwrap();
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(mode("kubeconfig"), 0o600);
    assert_eq!(mode("data"), 0o700);
    assert_eq!(mode("data/objects.redb"), 0o600);
    drop(server);
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn a_continue_token_must_name_a_version() {
    let server = ApiServer::builder().build();
    // {"v":"meta.k8s.io/v1","rv":0,"start":"/a"}
    let token = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MCwic3RhcnQiOiIvYSJ9";
    let refused = get(&server, &format!("{MAPS}?limit=1&continue={token}")).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn versions_a_crash_may_have_lost_are_never_given_out_again() {
    let directory = std::env::temp_dir().join(format!("weft-crash-{}", std::process::id()));
    let mut seen = 0;
    for _ in 0..3 {
        let server = loop {
            match ApiServer::builder().open(&directory) {
                Ok(server) => break server,
                // The background task of the earlier run drops the state asynchronously.
                Err(_) => tokio::task::yield_now().await,
            }
        };
        if seen > 0 {
            let path = format!("{MAPS}?watch=1&resourceVersion={seen}&timeoutSeconds=5");
            let event = Lines::open(&server, &path).await.next().await.unwrap();
            assert_eq!(event["object"]["code"], 410, "{event}");
        }
        // As if watchers had seen five writes that were not persisted.
        seen = server.resource_version() + 5;
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn a_watcher_that_does_not_read_is_cut_off_and_can_resume() {
    let server = ApiServer::builder().build();
    let path = format!("{MAPS}?watch=1");
    let mut slow = Lines::open(&server, &path).await;
    let mut quick = Lines::open(&server, &path).await;
    // One more than the queue of a watcher holds.
    for number in 0..=4096 {
        post(&server, MAPS, &config_map(&format!("m{number}"))).await;
        assert_eq!(quick.event().await, format!("ADDED m{number}"));
    }
    let mut last = String::new();
    let mut count = 0;
    let limit = std::time::Duration::from_secs(20);
    let mut next = async || tokio::time::timeout(limit, slow.next()).await;
    while let Some(event) = next().await.expect("the stream never ends") {
        let version = &event["object"]["metadata"]["resourceVersion"];
        version.as_str().unwrap().clone_into(&mut last);
        count += 1;
    }
    assert_eq!(
        count, 4096,
        "queued events are still sent, then the stream ends"
    );
    let resumed = format!("{MAPS}?watch=1&resourceVersion={last}");
    let mut resumed = Lines::open(&server, &resumed).await;
    assert_eq!(resumed.event().await, "ADDED m4096");
    post(&server, MAPS, &config_map("after")).await;
    assert_eq!(quick.event().await, "ADDED after", "others are not cut off");
}
