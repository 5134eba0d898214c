//! Single features: RBAC, admission policies, persistence, Unix socket, protobuf, gzip, events.

use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use weft_apiserver::{ApiServer, AuthorizationMode, RunConfig, User};

use crate::support::{self, MAPS, config_map, delete, get, post};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn send_as(server: &ApiServer, user: &str, path: &str) -> support::Answer {
    let request = Request::builder()
        .uri(path)
        .header("impersonate-user", user)
        .body(String::new());
    support::send(server, request.unwrap()).await
}

#[tokio::test]
async fn rbac_mode_enforces_roles_and_bindings() {
    let server = ApiServer::builder()
        .authorization_mode(AuthorizationMode::Rbac)
        .build();
    let refused = send_as(&server, "nobody", "/api/v1/pods").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert_eq!(
        refused.message(),
        "pods is forbidden: User \"nobody\" cannot list resource \"pods\" in API group \"\" at the \
         cluster scope"
    );
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]);
    let roles = format!("{RBAC}/namespaces/default/roles");
    post(
        &server,
        &roles,
        &json!({"metadata": {"name": "reader"}, "rules": rules}),
    )
    .await;
    let binding = json!({
        "metadata": {"name": "nobody-reads"},
        "roleRef": {"kind": "Role", "name": "reader"},
        "subjects": [{"kind": "User", "name": "nobody"}],
    });
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    assert_eq!(
        post(&server, &bindings, &binding).await.status,
        StatusCode::CREATED
    );
    let pods = "/api/v1/namespaces/default/pods";
    assert_eq!(
        send_as(&server, "nobody", pods).await.status,
        StatusCode::OK
    );
    let named = send_as(&server, "nobody", &format!("{MAPS}/x")).await;
    assert_eq!(
        named.message(),
        "configmaps \"x\" is forbidden: User \"nobody\" cannot get resource \"configmaps\" in API \
         group \"\" in the namespace \"default\""
    );
    assert_eq!(send_as(&server, "nobody", "/healthz").await.text, "ok");
    assert_eq!(
        send_as(&server, "nobody", "/metrics").await.message(),
        "forbidden: User \"nobody\" cannot get path \"/metrics\""
    );
    let review = json!({"spec": {
        "user": "system:kube-proxy",
        "resourceAttributes": {"verb": "watch", "group": "discovery.k8s.io", "resource": "endpointslices"},
    }});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    assert_eq!(
        post(&server, path, &review).await.at("/status/allowed"),
        true
    );
}

#[tokio::test]
async fn a_wrong_token_is_unauthorized_on_every_path() {
    let server = ApiServer::builder()
        .token("good", User::new("alice", ["dev"]))
        .build();
    for (token, status) in [("good", 200), ("bad", 401)] {
        for path in ["/healthz", MAPS] {
            let request = Request::builder()
                .uri(path)
                .header("authorization", format!("Bearer {token}"))
                .body(String::new());
            let answer = support::send(&server, request.unwrap()).await;
            assert_eq!(answer.status.as_u16(), status, "{path}");
        }
    }
}

#[tokio::test]
async fn admission_policies_are_evaluated() {
    let server = ApiServer::builder().build();
    let group = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({
        "metadata": {"name": "small"},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["configmaps"],
            }]},
            "variables": [{"name": "count", "expression": "has(object.data) ? size(object.data) : 0"}],
            "validations": [{"expression": "variables.count <= 1", "message": "one entry is enough"}],
        },
    });
    let made = post(
        &server,
        &format!("{group}/validatingadmissionpolicies"),
        &policy,
    )
    .await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    let mut two = config_map("two");
    two["data"] = json!({"a": "1", "b": "2"});
    assert_eq!(
        post(&server, MAPS, &two).await.status,
        StatusCode::CREATED,
        "not bound yet"
    );
    delete(&server, &format!("{MAPS}/two")).await;
    let binding = json!({
        "metadata": {"name": "small"},
        "spec": {"policyName": "small", "validationActions": ["Deny"]},
    });
    post(
        &server,
        &format!("{group}/validatingadmissionpolicybindings"),
        &binding,
    )
    .await;
    let denied = post(&server, MAPS, &two).await;
    assert_eq!(denied.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        denied.message(),
        "configmaps \"two\" is forbidden: ValidatingAdmissionPolicy 'small' with binding 'small' \
         denied request: one entry is enough"
    );
    assert_eq!(
        post(&server, MAPS, &config_map("none")).await.status,
        StatusCode::CREATED
    );
}

#[tokio::test]
async fn a_policy_is_given_the_parameters_its_binding_names() {
    let server = ApiServer::builder().build();
    let group = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({
        "metadata": {"name": "p"},
        "spec": {
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["secrets"],
            }]},
            "validations": [{
                "expression": "size(object.metadata.name) <= int(params.data.most)",
                "messageExpression": "'at most ' + params.data.most",
            }],
        },
    });
    post(
        &server,
        &format!("{group}/validatingadmissionpolicies"),
        &policy,
    )
    .await;
    let bindings = format!("{group}/validatingadmissionpolicybindings");
    for (name, reference) in [
        (
            "named",
            json!({"name": "four", "parameterNotFoundAction": "Deny"}),
        ),
        (
            "selected",
            json!({
                "selector": {"matchLabels": {"limit": "yes"}}, "parameterNotFoundAction": "Allow",
            }),
        ),
    ] {
        let binding = json!({"metadata": {"name": name}, "spec": {
            "policyName": "p", "validationActions": ["Deny"], "paramRef": reference,
        }});
        post(&server, &bindings, &binding).await;
    }
    let create = async |name: &str| {
        let path = "/api/v1/namespaces/default/secrets?dryRun=All";
        post(&server, path, &json!({"metadata": {"name": name}}))
            .await
            .message()
    };
    assert!(
        create("a")
            .await
            .ends_with("no params found for policy binding with `Deny` parameterNotFoundAction")
    );
    let limit = |name: &str, most: &str| {
        let mut map = config_map(name);
        map["data"] = json!({"most": most});
        map["metadata"]["labels"] = json!({"limit": "yes"});
        map
    };
    post(&server, MAPS, &limit("four", "4")).await;
    post(&server, MAPS, &limit("six", "6")).await;
    assert_eq!(create("abcd").await, "", "not refused");
    assert!(create("abcde").await.ends_with("at most 4"));
}

#[tokio::test]
async fn state_survives_a_restart_and_old_versions_do_not() {
    let directory = std::env::temp_dir().join(format!("weft-data-{}", std::process::id()));
    let first = ApiServer::builder().open(&directory).unwrap();
    let made = post(&first, MAPS, &config_map("kept")).await;
    post(&first, MAPS, &config_map("gone")).await;
    delete(&first, &format!("{MAPS}/gone")).await;
    let services = "/api/v1/namespaces/default/services";
    let body =
        json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 1}]}});
    let service = post(&first, services, &body).await;
    let version = first.resource_version();
    first.shutdown();
    drop(first);
    // The background task drops the state asynchronously.
    let second = loop {
        match ApiServer::builder().open(&directory) {
            Ok(server) => break server,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert!(second.resource_version() >= version);
    assert_eq!(
        get(&second, &format!("{MAPS}/kept"))
            .await
            .at("/metadata/uid"),
        made.at("/metadata/uid")
    );
    assert_eq!(
        get(&second, &format!("{MAPS}/gone")).await.status,
        StatusCode::NOT_FOUND
    );
    let again = json!({"metadata": {"name": "t"}, "spec": {
        "type": "NodePort", "ports": [{"port": 1, "nodePort": service.at("/spec/ports/0/nodePort")}],
    }});
    assert_eq!(
        post(&second, services, &again).await.status,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    let old = format!("{MAPS}?watch=1&resourceVersion={}", version - 1);
    let mut watch = support::Lines::open(&second, &old).await;
    assert_eq!(watch.next().await.unwrap()["object"]["code"], 410);
    drop((watch, second));
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn a_unix_socket_and_a_client_certificate_authenticate() {
    let directory = std::env::temp_dir().join(format!("weft-run-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let mut config = RunConfig::new("127.0.0.1:0".parse().unwrap());
    config.authorization_mode = AuthorizationMode::Rbac;
    config.unix_socket = Some(directory.join("socket"));
    config.kubeconfig = Some(directory.join("kubeconfig"));
    let server = weft_apiserver::start(config).await.unwrap();
    let kubeconfig = kube::config::Kubeconfig::read_from(directory.join("kubeconfig")).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    let client = kube::Client::try_from(config).unwrap();
    let maps = kube::Api::<k8s_openapi::api::core::v1::ConfigMap>::default_namespaced(client);
    assert!(
        maps.list(&kube::api::ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );

    let stream = tokio::net::UnixStream::connect(directory.join("socket"))
        .await
        .unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder()
        .uri(MAPS)
        .header("host", "weft")
        .body(String::new())
        .unwrap();
    assert_eq!(
        sender.send_request(request).await.unwrap().status(),
        StatusCode::OK
    );
    drop(server);
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn bodies_and_data_over_the_limits_are_refused() {
    let server = ApiServer::builder().build();
    let large = json!({"metadata": {"name": "x"}, "data": {"a": "x".repeat(3 * 1024 * 1024)}});
    let refused = post(&server, MAPS, &large).await;
    assert_eq!(
        (refused.status, refused.at("/reason")),
        (
            StatusCode::PAYLOAD_TOO_LARGE,
            json!("RequestEntityTooLarge")
        )
    );
    assert_eq!(
        refused.message(),
        "Request entity too large: limit is 3145728"
    );
    let long = json!({"metadata": {"name": "x"}, "data": {"a": "x".repeat(1024 * 1024 + 1)}});
    let refused = post(&server, MAPS, &long).await;
    assert_eq!(
        refused.message(),
        "ConfigMap \"x\" is invalid: []: Too long: may not be more than 1048576 bytes"
    );
    let deep = support::request(Method::POST, MAPS, &"[".repeat(200_000));
    assert_eq!(
        support::send(&server, deep).await.status,
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn a_namespace_posted_as_protobuf_is_created() {
    // Envelope, then name `pb1` and the empty fields Go writes.
    let bytes =
        b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x1b\x0a\x13\x0a\x03pb1\x12\x00\x1a\x00\
        \x22\x00\x2a\x00\x32\x00\x38\x00\x42\x00\x12\x00\x1a\x02\x0a\x00\x1a\x00\x22\x00";
    let server = ApiServer::builder().build();
    let request = Request::builder()
        .method(Method::POST)
        .uri("/api/v1/namespaces")
        .header("content-type", "application/vnd.kubernetes.protobuf")
        .header("accept", "application/vnd.kubernetes.protobuf, */*")
        .body(String::from_utf8(bytes.to_vec()).unwrap())
        .unwrap();
    let made = support::send(&server, request).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    assert_eq!(
        made.at("/metadata/labels/kubernetes.io~1metadata.name"),
        "pb1"
    );
    assert_eq!(made.headers["content-type"], "application/json");
}

#[tokio::test]
async fn a_large_answer_is_compressed_when_the_client_accepts_gzip() {
    let server = ApiServer::builder().build();
    let mut map = config_map("large");
    map["data"] = json!({"a": "x".repeat(200_000)});
    post(&server, MAPS, &map).await;
    for (path, encoding) in [
        (format!("{MAPS}/large"), true),
        (MAPS.to_owned(), true),
        (format!("{MAPS}/absent"), false),
    ] {
        let request = Request::builder()
            .uri(&path)
            .header("accept-encoding", "gzip")
            .body(String::new());
        let response = support::open(&server, request.unwrap()).await;
        let compressed = response
            .headers()
            .get("content-encoding")
            .is_some_and(|value| value == "gzip");
        assert_eq!(compressed, encoding, "{path}");
    }
    assert!(
        get(&server, &format!("{MAPS}/large"))
            .await
            .headers
            .get("content-encoding")
            .is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn events_are_kept_for_an_hour() {
    let server = ApiServer::builder().build();
    let events = "/api/v1/namespaces/default/events";
    let event = |name: &str| {
        json!({
            "metadata": {"name": name}, "involvedObject": {"kind": "Node", "name": "n1"},
            "reason": "R", "message": "m", "type": "Normal",
        })
    };
    post(&server, events, &event("old")).await;
    tokio::time::advance(std::time::Duration::from_mins(61)).await;
    post(&server, events, &event("new")).await;
    let left = get(&server, events).await;
    assert_eq!(left.at("/items/0/metadata/name"), "new");
    assert_eq!(left.at("/items/1"), Value::Null);
}
