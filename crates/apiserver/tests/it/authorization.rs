//! Authorization by RBAC: verbs, names, impersonation, escalation, aggregation.

use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::Service as _;
use weft_apiserver::{ApiServer, AuthorizationMode, User};

use crate::support::{MAPS, config_map, delete, patch, post, put};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A server in mode RBAC on which bob has these rules in all namespaces.
async fn server_for_bob(rules: Value) -> ApiServer {
    let server = ApiServer::builder()
        .authorization_mode(AuthorizationMode::Rbac)
        .fault_endpoint(true)
        .build();
    let role = json!({"metadata": {"name": "bobs"}, "rules": rules});
    post(&server, &format!("{RBAC}/clusterroles"), &role).await;
    let binding = json!({
        "metadata": {"name": "bobs"},
        "roleRef": {"kind": "ClusterRole", "name": "bobs"},
        "subjects": [{"kind": "User", "name": "bob"}],
    });
    let made = post(&server, &format!("{RBAC}/clusterrolebindings"), &binding).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    server
}

async fn send(
    server: &ApiServer,
    user: User,
    (method, path): (Method, &str),
    headers: &[(&str, &str)],
    body: &Value,
) -> (StatusCode, Value) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let request = request.body(body).unwrap();
    let answer = server.service(user).call(request).await.unwrap();
    let status = answer.status();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

fn bob() -> User {
    User::new("bob", [])
}

#[tokio::test]
async fn each_part_of_another_identity_needs_its_own_right() {
    let rules = json!([
        {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]},
        {"apiGroups": [""], "resources": ["groups"], "verbs": ["impersonate"],
         "resourceNames": ["dev"]},
    ]);
    let server = server_for_bob(rules).await;
    let user = ("impersonate-user", "alice");
    let account = ("impersonate-user", "system:serviceaccount:default:robot");
    for (headers, status) in [
        (vec![user], 201),
        (vec![user, ("impersonate-group", "dev")], 201),
        (vec![user, ("impersonate-group", "system:masters")], 403),
        (vec![user, ("impersonate-uid", "1")], 403),
        (vec![user, ("impersonate-extra-scope", "x")], 403),
        (vec![account], 403),
        (vec![("impersonate-group", "dev")], 400),
        (vec![user, ("impersonate-uid", "")], 201),
        (vec![("impersonate-uid", "")], 400),
    ] {
        let target = (Method::POST, REVIEWS);
        let (answered, body) = send(&server, bob(), target, &headers, &json!({})).await;
        assert_eq!(answered.as_u16(), status, "{headers:?}: {body}");
    }
}

#[tokio::test]
async fn an_impersonated_service_account_has_its_groups() {
    let server = server_for_bob(json!([])).await;
    let account = [("impersonate-user", "system:serviceaccount:default:robot")];
    let target = (Method::POST, REVIEWS);
    let (_, review) = send(&server, User::admin(), target, &account, &json!({})).await;
    assert_eq!(
        review["status"]["userInfo"]["groups"],
        json!([
            "system:serviceaccounts",
            "system:serviceaccounts:default",
            "system:authenticated"
        ])
    );
}

#[tokio::test]
async fn creating_by_update_or_apply_needs_the_right_to_create() {
    let update = json!({
        "apiGroups": ["", "coordination.k8s.io"], "resources": ["configmaps", "leases"],
        "verbs": ["get", "update", "patch"],
    });
    let create = json!({
        "apiGroups": ["", "coordination.k8s.io"], "resources": ["configmaps", "leases"],
        "verbs": ["create"],
    });
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let lease = json!({"metadata": {"name": "a"}, "spec": {}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases/a";
    let applied = format!("{MAPS}/a?fieldManager=m");
    let apply = [("content-type", "application/apply-patch+yaml")];
    for (rules, status) in [(json!([update]), 403), (json!([update, create]), 201)] {
        let server = server_for_bob(rules).await;
        let target = (Method::PATCH, applied.as_str());
        let (answered, body) = send(&server, bob(), target, &apply, &map).await;
        assert_eq!(answered.as_u16(), status, "{body}");
        let (answered, body) = send(&server, bob(), (Method::PUT, leases), &[], &lease).await;
        assert_eq!(answered.as_u16(), status, "{body}");
    }
}

#[tokio::test]
async fn a_right_to_one_name_covers_the_list_of_that_name() {
    let rules = json!([{
        "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"],
        "resourceNames": ["a"],
    }]);
    let server = server_for_bob(rules).await;
    post(&server, MAPS, &config_map("a")).await;
    for (query, status) in [
        ("?fieldSelector=metadata.name%3Da", 200),
        ("?fieldSelector=metadata.name%3Db", 403),
        ("", 403),
    ] {
        let path = format!("{MAPS}{query}");
        let (answered, _) = send(&server, bob(), (Method::GET, &path), &[], &Value::Null).await;
        assert_eq!(answered.as_u16(), status, "{query}");
    }
}

#[tokio::test]
async fn reading_a_path_gives_no_right_to_post_to_it() {
    let body = json!({"fault": {"status": {"code": 500}}});
    for (verb, status) in [("get", 403), ("post", 200)] {
        let rules = json!([{"nonResourceURLs": ["/weft/*"], "verbs": [verb]}]);
        let server = server_for_bob(rules).await;
        let target = (Method::POST, "/weft/faults");
        let (answered, body) = send(&server, bob(), target, &[], &body).await;
        assert_eq!(answered.as_u16(), status, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_of_an_account_ends_at_its_expiry_and_with_the_account() {
    let server = ApiServer::builder().build();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({"metadata": {"name": "robot"}});
    let body = json!({"spec": {"expirationSeconds": 600}});
    let token = async || {
        let made = post(&server, &format!("{accounts}/robot/token"), &body).await;
        made.at("/status/token")
    };
    let known = async |token: &Value| {
        let review = json!({"spec": {"token": token}});
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        post(&server, path, &review)
            .await
            .at("/status/authenticated")
            == true
    };
    post(&server, accounts, &account).await;
    let first = token().await;
    assert!(known(&first).await);
    tokio::time::advance(std::time::Duration::from_secs(601)).await;
    assert!(!known(&first).await, "its time is over");
    let second = token().await;
    assert!(known(&second).await);
    delete(&server, &format!("{accounts}/robot")).await;
    assert!(!known(&second).await, "the account is gone");
    post(&server, accounts, &account).await;
    assert!(!known(&second).await, "this is another account");
}

#[tokio::test]
async fn every_way_to_write_needs_its_own_verb() {
    let map = config_map("a");
    let named = format!("{MAPS}/a");
    let merge = [("content-type", "application/merge-patch+json")];
    let ways = [
        ("create", Method::POST, MAPS, &[][..], map.clone()),
        ("update", Method::PUT, &named, &[], map.clone()),
        (
            "patch",
            Method::PATCH,
            &named,
            &merge,
            json!({"data": {"k": "v"}}),
        ),
        ("delete", Method::DELETE, &named, &[], Value::Null),
        ("deletecollection", Method::DELETE, MAPS, &[], Value::Null),
    ];
    for (verb, method, path, headers, body) in &ways {
        let others: Vec<&str> = ways.iter().map(|way| way.0).filter(|v| v != verb).collect();
        let rule = |verbs: &[&str]| json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}]);
        let server = server_for_bob(rule(&others)).await;
        if *verb != "create" {
            post(&server, MAPS, &map).await;
        }
        let before = server.resource_version();
        let target = (method.clone(), *path);
        let (status, said) = send(&server, bob(), target.clone(), headers, body).await;
        assert_eq!(status.as_u16(), 403, "{verb}");
        let name = if path.ends_with("/a") { " \"a\"" } else { "" };
        let message = format!(
            "configmaps{name} is forbidden: User \"bob\" cannot {verb} resource \"configmaps\" in \
             API group \"\" in the namespace \"default\""
        );
        assert_eq!(said["message"], message);
        assert_eq!(server.resource_version(), before, "nothing was written");
        let server = server_for_bob(rule(&[verb])).await;
        if *verb != "create" {
            post(&server, MAPS, &map).await;
        }
        let (status, said) = send(&server, bob(), target, headers, body).await;
        assert!(status.is_success(), "{verb}: {said}");
    }
}

#[tokio::test]
async fn a_right_to_one_name_covers_neither_others_nor_create() {
    let rules = json!([{
        "apiGroups": [""], "resources": ["configmaps"],
        "verbs": ["create", "get", "patch", "delete"], "resourceNames": ["a"],
    }]);
    let server = server_for_bob(rules).await;
    let merge = [("content-type", "application/merge-patch+json")];
    for name in ["a", "b"] {
        let (status, _) = send(&server, bob(), (Method::POST, MAPS), &[], &config_map(name)).await;
        assert_eq!(
            status.as_u16(),
            403,
            "a new object has no name to have a right to"
        );
        post(&server, MAPS, &config_map(name)).await;
        let path = format!("{MAPS}/{name}");
        let allowed = if name == "a" { 200 } else { 403 };
        let change = json!({"data": {"k": "v"}});
        for (method, headers, body) in [
            (Method::GET, &[][..], Value::Null),
            (Method::PATCH, &merge, change),
            (Method::DELETE, &[], Value::Null),
        ] {
            let (status, _) = send(&server, bob(), (method, &path), headers, &body).await;
            assert_eq!(status.as_u16(), allowed, "{path}");
        }
    }
}

#[tokio::test]
async fn a_service_account_logs_in_with_its_token() {
    let server = server_for_bob(json!([])).await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    post(&server, accounts, &json!({"metadata": {"name": "robot"}})).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    let role = json!({"metadata": {"name": "reader"}, "rules": rules});
    post(&server, &format!("{rbac}/roles"), &role).await;
    let binding = json!({
        "metadata": {"name": "reader"}, "roleRef": {"kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}],
    });
    post(&server, &format!("{rbac}/rolebindings"), &binding).await;
    let made = post(&server, &format!("{accounts}/robot/token"), &json!({})).await;
    let token = format!("Bearer {}", made.at("/status/token").as_str().unwrap());
    let login = [("authorization", token.as_str())];
    let nobody = User::anonymous;
    let who = (
        Method::POST,
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
    );
    let (_, review) = send(&server, nobody(), who, &login, &json!({})).await;
    let user = &review["status"]["userInfo"];
    assert_eq!(user["username"], "system:serviceaccount:default:robot");
    let groups = user["groups"].as_array().unwrap();
    assert!(
        groups.contains(&json!("system:serviceaccounts:default")),
        "{groups:?}"
    );
    for (path, expected) in [(MAPS, 200), ("/api/v1/namespaces/default/secrets", 403)] {
        let target = (Method::GET, path);
        let (status, _) = send(&server, nobody(), target, &login, &Value::Null).await;
        assert_eq!(status.as_u16(), expected, "{path}");
    }
}

#[tokio::test]
async fn a_role_aggregates_the_roles_its_selectors_match() {
    let server = server_for_bob(json!([])).await;
    let roles = format!("{RBAC}/clusterroles");
    let rule =
        |resource: &str| json!([{"apiGroups": [""], "resources": [resource], "verbs": ["list"]}]);
    let part = |name: &str, resource: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}, "rules": rule(resource)});
    let gathering = |name: &str, labels: Value, selectors: Value| {
        json!({"metadata": {"name": name, "labels": labels},
               "aggregationRule": {"clusterRoleSelectors": selectors}})
    };
    let expression = |operator: &str, values: &[&str]| match values {
        [] => json!({"key": "tier", "operator": operator}),
        values => json!({"key": "tier", "operator": operator, "values": values}),
    };
    for role in [
        part("maps", "configmaps", json!({"tier": "a"})),
        part("secrets", "secrets", json!({"tier": "b"})),
        part("pods", "pods", json!({"kind": "x"})),
        gathering(
            "inner",
            json!({"tier": "c"}),
            json!([{"matchLabels": {"kind": "x"}}]),
        ),
    ] {
        let made = post(&server, &roles, &role).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    }
    let core = "/api/v1/namespaces/default";
    for (number, (selectors, allowed)) in [
        (json!([{"matchExpressions": [expression("In", &["a", "z"])]}]), &["configmaps"][..]),
        (json!([{"matchExpressions": [expression("In", &["c"])]}]), &["pods"]),
        (
            json!([{"matchExpressions": [expression("Exists", &[]), expression("NotIn", &["b"])]}]),
            &["configmaps", "pods"],
        ),
        (
            json!([{"matchLabels": {"kind": "x"}, "matchExpressions": [expression("DoesNotExist", &[])]}]),
            &["pods"],
        ),
        (json!([{"matchLabels": {"tier": "a"}}, {"matchLabels": {"tier": "b"}}]), &["configmaps", "secrets"]),
        (json!([{"matchLabels": {"tier": "a"}, "matchExpressions": [expression("In", &["b"])]}]), &[]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("all-{number}");
        post(&server, &roles, &gathering(&name, json!({}), selectors.clone())).await;
        let binding = json!({
            "metadata": {"name": name}, "roleRef": {"kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "User", "name": name}],
        });
        post(&server, &format!("{RBAC}/clusterrolebindings"), &binding).await;
        for resource in ["configmaps", "secrets", "pods"] {
            let path = format!("{core}/{resource}");
            let user = User::new(&name, []);
            let (status, _) = send(&server, user, (Method::GET, &path), &[], &Value::Null).await;
            let expected = if allowed.contains(&resource) { 200 } else { 403 };
            assert_eq!(status.as_u16(), expected, "{resource} by {selectors}");
        }
    }
}

/// The attack: an account that may only create bindings binds itself to everything.
#[tokio::test]
async fn an_account_that_may_bind_does_not_become_the_administrator() {
    let group = "rbac.authorization.k8s.io";
    let rules = json!([{"apiGroups": [group], "verbs": ["create"],
                        "resources": ["rolebindings", "clusterrolebindings"]}]);
    let binding = json!({
        "metadata": {"name": "self"}, "roleRef": {"kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "name": "bob"}],
    });
    let server = server_for_bob(rules).await;
    let bindings = [
        format!("{RBAC}/clusterrolebindings"),
        format!("{RBAC}/namespaces/default/rolebindings"),
    ];
    for path in &bindings {
        let (status, said) = send(&server, bob(), (Method::POST, path), &[], &binding).await;
        assert_eq!(status.as_u16(), 403, "{said}");
    }
    let secrets = (Method::GET, "/api/v1/secrets");
    assert_eq!(
        send(&server, bob(), secrets, &[], &Value::Null).await.0,
        403
    );
    // In mode AlwaysAllow the same requests are allowed.
    let server = ApiServer::builder().build();
    for path in &bindings {
        let (status, said) = send(&server, bob(), (Method::POST, path), &[], &binding).await;
        assert_eq!(status.as_u16(), 201, "{said}");
    }
}

#[tokio::test]
async fn a_role_of_a_million_rules_is_refused_at_once() {
    let group = "rbac.authorization.k8s.io";
    let rules = json!([{"apiGroups": [group], "resources": ["clusterroles"], "verbs": ["create"]}]);
    let server = server_for_bob(rules).await;
    let many: Vec<String> = (0..20_000).map(|number| format!("r{number}")).collect();
    let rule = json!({"apiGroups": many, "resources": many, "verbs": many, "resourceNames": many});
    let role = json!({"metadata": {"name": "many"}, "rules": [rule]});
    let target = (
        Method::POST,
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    );
    let (status, said) = send(&server, bob(), target, &[], &role).await;
    assert_eq!(status.as_u16(), 403);
    assert!(
        said["message"]
            .as_str()
            .unwrap()
            .ends_with("more rules than can be compared")
    );
}

/// A request must never fall back to the impersonator's own identity.
#[tokio::test]
async fn an_impersonation_header_that_cannot_be_read_is_a_bad_request() {
    let server = server_for_bob(json!([])).await;
    let user = ("impersonate-user", &b"alice"[..]);
    for (headers, named) in [
        (
            vec![("impersonate-user", &b"zo\xff"[..])],
            "impersonate-user",
        ),
        (vec![("impersonate-user", b"\xc3")], "impersonate-user"),
        (
            vec![user, ("impersonate-user", b"\xff")],
            "impersonate-user",
        ),
        (vec![("impersonate-user", b"")], "impersonate-user"),
        (
            vec![user, ("impersonate-group", b"\xff")],
            "impersonate-group",
        ),
        (
            vec![
                user,
                ("impersonate-group", b"a"),
                ("impersonate-group", b"\x80"),
            ],
            "impersonate-group",
        ),
        (vec![user, ("impersonate-uid", b"\xff")], "impersonate-uid"),
        (
            vec![user, ("impersonate-extra-k", b"\xff")],
            "impersonate-extra-k",
        ),
        (
            vec![user, ("impersonate-extra-%ff", b"v")],
            "impersonate-extra-%ff",
        ),
        (vec![("impersonate-group", b"\xff")], "impersonate-group"),
    ] {
        let mut request = Request::builder().uri("/api/v1/secrets");
        for (name, value) in &headers {
            request = request.header(*name, *value);
        }
        let answer = server
            .service(User::admin())
            .call(request.body(String::new()).unwrap());
        let (parts, body) = answer.await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(parts.status, StatusCode::BAD_REQUEST, "{headers:?}: {body}");
        let message = body["message"].as_str().unwrap();
        assert!(message.contains(named), "{headers:?}: {message}");
    }
}

/// The SubjectAccessReview of bob listing the ConfigMaps of the default namespace: allowed and reason.
async fn review(server: &ApiServer) -> (bool, String) {
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let asked = json!({"spec": {"resourceAttributes": {
        "verb": "list", "resource": "configmaps", "namespace": "default",
    }}});
    let target = (Method::POST, path);
    let admin = [("impersonate-user", "bob"), ("impersonate-group", "dev")];
    let (status, review) = send(server, User::admin(), target, &admin, &asked).await;
    assert_eq!(status, StatusCode::CREATED, "{review}");
    let status = &review["status"];
    let (listed, _) = send(
        server,
        User::new("bob", ["dev"]),
        (Method::GET, MAPS),
        &[],
        &Value::Null,
    )
    .await;
    let allowed = status["allowed"] == true;
    assert_eq!(allowed, listed == StatusCode::OK, "a review and a request");
    let reason = status["reason"].as_str().unwrap_or_default();
    (allowed, reason.to_owned())
}

#[tokio::test]
async fn a_decision_follows_every_change_of_roles_and_bindings() {
    let server = server_for_bob(json!([
        {"apiGroups": ["authorization.k8s.io"], "resources": ["*"], "verbs": ["create"]},
    ]))
    .await;
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let roles = format!("{RBAC}/clusterroles");
    let maps = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    let binding = |subjects: Value| {
        json!({
            "metadata": {"name": "b"}, "subjects": subjects,
            "roleRef": {"kind": "ClusterRole", "name": "gathering"},
        })
    };
    let group = json!({"kind": "Group", "name": "dev"});
    let other = json!({"kind": "User", "name": "eve"});
    let user = json!({"kind": "User", "name": "bob"});
    let role = |name: &str, labels: Value, rules: &Value, gathers: Value| {
        json!({
            "metadata": {"name": name, "labels": labels}, "rules": rules,
            "aggregationRule": gathers,
        })
    };
    let gathers = json!({"clusterRoleSelectors": [{"matchLabels": {"into": "gathering"}}]});
    let chained = json!({"clusterRoleSelectors": [{"matchLabels": {"into": "second"}}]});
    let (none, no_labels) = (json!([]), json!({}));
    let allowed = |subject: &str| {
        let reason = format!(
            "RBAC: allowed by RoleBinding \"b/default\" of ClusterRole \"gathering\" to {subject}"
        );
        (true, reason)
    };
    let refused = (false, String::new());
    assert_eq!(review(&server).await, refused);

    let plain = role("gathering", no_labels.clone(), &maps, Value::Null);
    let at = |collection: &str, name: &str| format!("{collection}/{name}");
    let made = post(&server, &bindings, &binding(json!([other, group, user]))).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    assert_eq!(review(&server).await, refused, "the role is missing");
    post(&server, &roles, &plain).await;
    assert_eq!(review(&server).await, allowed("Group \"dev\""));
    put(&server, &at(&bindings, "b"), &binding(json!([user, group]))).await;
    assert_eq!(review(&server).await, allowed("User \"bob\""));
    put(&server, &at(&bindings, "b"), &binding(json!([other]))).await;
    assert_eq!(review(&server).await, refused);
    put(&server, &at(&bindings, "b"), &binding(json!([group]))).await;
    assert_eq!(review(&server).await, allowed("Group \"dev\""));

    let gathering = role("gathering", no_labels.clone(), &none, gathers);
    let changed = put(&server, &at(&roles, "gathering"), &gathering).await;
    assert_eq!(changed.status, StatusCode::OK, "{}", changed.text);
    assert_eq!(review(&server).await, refused);
    post(
        &server,
        &roles,
        &role("a", no_labels.clone(), &none, chained),
    )
    .await;
    let labels = json!({"into": "second"});
    post(
        &server,
        &roles,
        &role("z", labels.clone(), &maps, Value::Null),
    )
    .await;
    assert_eq!(review(&server).await, refused);
    let label = |name: &str| {
        let body = json!({"metadata": {"labels": {"into": name}}});
        let path = at(&roles, "a");
        let server = &server;
        async move { patch(server, &path, "merge-patch+json", &body).await }
    };
    label("gathering").await;
    assert_eq!(review(&server).await, allowed("Group \"dev\""), "chained");
    put(
        &server,
        &at(&roles, "z"),
        &role("z", labels, &none, Value::Null),
    )
    .await;
    assert_eq!(review(&server).await, refused);
    put(
        &server,
        &at(&roles, "z"),
        &role("z", json!({"into": "second"}), &maps, Value::Null),
    )
    .await;
    label("nothing").await;
    assert_eq!(review(&server).await, refused);
    label("gathering").await;
    assert!(review(&server).await.0);
    delete(&server, &at(&roles, "z")).await;
    assert_eq!(review(&server).await, refused);

    put(&server, &at(&roles, "gathering"), &plain).await;
    assert!(review(&server).await.0);
    // The history no longer has the newest change of a role.
    post(&server, MAPS, &config_map("m")).await;
    server.faults().compact();
    delete(&server, &at(&bindings, "b")).await;
    assert_eq!(review(&server).await, refused);
}

#[tokio::test]
async fn a_lifetime_of_a_token_that_is_not_a_64_bit_integer_is_refused() {
    let server = ApiServer::builder().build();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let made = post(&server, accounts, &json!({"metadata": {"name": "robot"}})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    for (seconds, status) in [
        (json!(null), 201),
        (json!(3600), 201),
        (json!(599), 422),
        (json!(i64::MAX), 422),
        (json!(u64::MAX), 400),
    ] {
        let request = json!({"spec": {"expirationSeconds": seconds}});
        let answer = post(&server, &format!("{accounts}/robot/token"), &request).await;
        assert_eq!(answer.status.as_u16(), status, "{seconds}: {}", answer.text);
    }
}
