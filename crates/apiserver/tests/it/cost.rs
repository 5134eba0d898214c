//! Cost of one request: it grows no faster than n log n with the size of the request.
//!
//! Each test measures the CPU time of its own thread at n and at 4n elements, the best of three.
//! Linear work takes four times as long, quadratic work sixteen times; a busy machine changes
//! neither much, since waiting is not counted.

use std::time::Duration;

use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tower::Service as _;
use weft_apiserver::{ApiServer, AuthorizationMode, User};

use crate::support::{self, Answer, MAPS, config_map, get, patch, post};

const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/api/v1/nodes";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";

/// Limit of growth: between 4 (linear) and 16 (quadratic).
const MOST_GROWTH: f64 = 8.0;

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap())
}

async fn fastest(work: &impl AsyncFn(usize) -> Duration, size: usize) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        best = best.min(work(size).await);
    }
    best
}

/// Fails when four times the input takes much more than four times as long.
async fn assert_about_linear(what: &str, size: usize, work: impl AsyncFn(usize) -> Duration) {
    let (small, large) = (fastest(&work, size).await, fastest(&work, 4 * size).await);
    let growth = large.as_secs_f64() / small.as_secs_f64();
    assert!(
        growth < MOST_GROWTH,
        "{what}: {small:?} at {size}, {large:?} at four times that, growth {growth:.1}"
    );
}

/// The CPU time of one request, which must be answered with this status.
async fn cost(server: &ApiServer, request: Request<String>, status: u16) -> Duration {
    let before = processor_time();
    let answer = support::send(server, request).await;
    let spent = processor_time().saturating_sub(before);
    let shown: String = answer.text.chars().take(500).collect();
    // The size is checked last, so a valid object may be refused as too large.
    let fits = status == 201 && answer.message() == "etcdserver: request is too large";
    assert!(fits || answer.status.as_u16() == status, "{shown}");
    spent
}

fn posted(path: &str, body: &Value) -> Request<String> {
    // A dry run, so that each request meets the same state.
    support::request(
        Method::POST,
        &format!("{path}?dryRun=All"),
        &body.to_string(),
    )
}

fn patched(path: &str, kind: &str, body: &Value) -> Request<String> {
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(path)
        .header("content-type", format!("application/{kind}"));
    request.body(body.to_string()).unwrap()
}

/// Builds a request body with this many elements.
type Body<'a> = &'a dyn Fn(usize) -> Value;

fn list(count: usize, element: impl Fn(usize) -> Value) -> Value {
    (0..count).map(element).collect()
}

fn pod(containers: &Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": containers}})
}

/// A server with the kind Thing, whose `spec` has this schema.
async fn with_things(spec: &Value) -> ApiServer {
    let server = ApiServer::builder().build();
    let made = define(&server, "things", "Thing", spec).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    while get(&server, THINGS).await.status != StatusCode::OK {
        tokio::task::yield_now().await;
    }
    server
}

async fn define(server: &ApiServer, plural: &str, kind: &str, spec: &Value) -> Answer {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let definition = json!({
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    });
    post(server, DEFINITIONS, &definition).await
}

fn thing(spec: &Value) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": spec,
    })
}

#[tokio::test]
async fn a_pod_of_empty_containers_is_refused_in_linear_time() {
    let server = ApiServer::builder().build();
    assert_about_linear("empty containers", 1500, async |count| {
        let body = pod(&list(count, |_| json!({})));
        cost(&server, posted(PODS, &body), 422).await
    })
    .await;
}

#[tokio::test]
async fn names_that_must_be_unique_are_compared_in_linear_time() {
    let server = ApiServer::builder().build();
    let named = |number: usize| format!("name-{number}");
    let bodies: [(&str, &str, Body<'_>); 5] = [
        ("containers and volumes", PODS, &|count| {
            let containers = list(count, |number| {
                json!({
                    "name": named(number), "image": "i",
                    "volumeMounts": [{"name": named(number), "mountPath": "/v"}],
                })
            });
            let mut pod = pod(&containers);
            pod["spec"]["volumes"] = list(count, |number| json!({"name": named(number)}));
            pod
        }),
        ("taints", NODES, &|count| {
            let taints = list(
                count,
                |number| json!({"key": named(number), "effect": "NoSchedule"}),
            );
            json!({"metadata": {"name": "n"}, "spec": {"taints": taints}})
        }),
        ("ports of a service", SERVICES, &|count| {
            let ports = list(
                count,
                |number| json!({"name": named(number), "port": number + 1}),
            );
            json!({"metadata": {"name": "s"}, "spec": {"ports": ports}})
        }),
        ("ports of a slice", SLICES, &|count| {
            let ports = list(count, |number| json!({"name": named(number), "port": 80}));
            let zones = list(count, |number| json!({"name": named(number)}));
            json!({
                "metadata": {"name": "s"}, "addressType": "IPv4", "ports": ports,
                "endpoints": [{"addresses": ["10.0.0.1"], "hints": {"forZones": zones}}],
            })
        }),
        ("keys of a map", MAPS, &|count| {
            let members = |suffix: &str| -> Value {
                let member = |number| (format!("{number}{suffix}"), json!("eA=="));
                Value::Object((0..count).map(member).collect())
            };
            let mut map = config_map("m");
            map["data"] = members("a");
            map["binaryData"] = members("b");
            map
        }),
    ];
    for (what, path, body) in bodies {
        assert_about_linear(what, 3000, async |count| {
            cost(&server, posted(path, &body(count)), 201).await
        })
        .await;
    }
}

#[tokio::test]
async fn lists_of_maps_and_sets_are_compared_in_linear_time() {
    let server = with_things(&json!({"type": "object", "properties": {
        "map": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}},
        },
        "set": {
            "type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"},
        },
    }}))
    .await;
    assert_about_linear("map", 1500, async |count| {
        let map = list(count, |number| json!({"k": format!("key-{number}")}));
        cost(&server, posted(THINGS, &thing(&json!({"map": map}))), 201).await
    })
    .await;
    assert_about_linear("set", 4000, async |count| {
        let set = list(count, |number| json!(number));
        cost(&server, posted(THINGS, &thing(&json!({"set": set}))), 201).await
    })
    .await;
    assert_about_linear("set of repeats", 4000, async |count| {
        let set = list(count, |_| json!(1));
        cost(&server, posted(THINGS, &thing(&json!({"set": set}))), 422).await
    })
    .await;
}

#[tokio::test]
async fn a_strategic_merge_of_many_elements_takes_linear_time() {
    let server = ApiServer::builder().build();
    let kind = "strategic-merge-patch+json";
    let path = format!("{PODS}/p");
    let reversed = |count: usize, element: &dyn Fn(usize) -> Value| -> Value {
        (0..count).rev().map(element).collect()
    };
    assert_about_linear("strategic merge", 500, async |count| {
        support::delete(&server, &path).await;
        let container = |number| json!({"name": format!("c{number}"), "image": "i"});
        let made = post(&server, PODS, &pod(&list(count, container))).await;
        assert_eq!(made.status, StatusCode::CREATED);
        let renamed = |number| json!({"name": format!("c{number}"), "image": "j"});
        let order = |number| json!({"name": format!("c{number}")});
        let body = json!({
            "metadata": {"$retainKeys": list(count, |number| json!(format!("key-{number}")))},
            "spec": {
                "$setElementOrder/containers": list(count, order),
                "containers": reversed(count, &renamed),
            },
        });
        cost(
            &server,
            patched(&format!("{path}?dryRun=All"), kind, &body),
            400,
        )
        .await;
        let mut body = body;
        body["metadata"] = json!({});
        cost(&server, patched(&path, kind, &body), 200).await
    })
    .await;
    assert_about_linear("merge of primitives", 1000, async |count| {
        let path = format!("{MAPS}/m");
        support::delete(&server, &path).await;
        let finalizer = |number| json!(format!("example.com/f{number}"));
        let mut map = config_map("m");
        map["metadata"]["finalizers"] = list(count, finalizer);
        assert_eq!(post(&server, MAPS, &map).await.status, StatusCode::CREATED);
        let body = json!({"metadata": {"finalizers": reversed(2 * count, &finalizer)}});
        let merged = cost(&server, patched(&path, kind, &body), 200).await;
        let all = reversed(2 * count, &finalizer);
        let body = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": all}});
        merged + cost(&server, patched(&path, kind, &body), 200).await
    })
    .await;
}

#[tokio::test]
async fn applying_and_pruning_many_elements_takes_linear_time() {
    let server = ApiServer::builder().build();
    let apply = |path: &str, body: &Value| {
        patched(
            &format!("{path}?fieldManager=m&force=true"),
            "apply-patch+yaml",
            body,
        )
    };
    assert_about_linear("apply of containers", 200, async |count| {
        let path = format!("{PODS}/p");
        support::delete(&server, &path).await;
        let gate = |number: usize| json!({"name": format!("example.com/g{number}")});
        let body = |first: usize| {
            let gates: Value = (first..first + count).map(gate).collect();
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
                "spec": {
                    "containers": [{"name": "c", "image": "i"}], "schedulingGates": gates,
                },
            })
        };
        let made = cost(&server, apply(&path, &body(0)), 201).await;
        // Removes every second element and adds as many.
        made + cost(&server, apply(&path, &body(count)), 200).await
    })
    .await;
}

#[tokio::test]
async fn a_pattern_is_compiled_once_for_any_number_of_texts() {
    let server = with_things(&json!({"type": "object", "properties": {"texts": {
        "type": "array", "items": {"type": "string", "pattern": "^[a-z0-9]{0,1000}$"},
    }}}))
    .await;
    let texts = |count| thing(&json!({"texts": list(count, |_| json!("word"))}));
    let one = fastest(
        &async |_| cost(&server, posted(THINGS, &texts(1)), 201).await,
        1,
    )
    .await;
    let many = fastest(
        &async |_| cost(&server, posted(THINGS, &texts(200)), 201).await,
        1,
    )
    .await;
    // If compiled for each text, 200 would take 200 times as long as one.
    assert!(many < one * 30, "{one:?} for one text, {many:?} for 200");
}

#[tokio::test]
async fn an_object_too_large_after_defaulting_is_refused_before_it_is_built() {
    let server = with_things(&json!({"type": "object", "properties": {"list": {
        "type": "array", "items": {"type": "object", "properties": {
            "text": {"type": "string", "default": "x".repeat(20_000)},
        }},
    }}}))
    .await;
    assert_about_linear("defaults", 5000, async |count| {
        let body = thing(&json!({"list": list(count, |_| json!({}))}));
        cost(&server, posted(THINGS, &body), 500).await
    })
    .await;
    let body = thing(&json!({"list": list(20_000, |_| json!({}))}));
    let refused = post(&server, THINGS, &body).await;
    assert_eq!(refused.message(), "etcdserver: request is too large");
    assert_eq!(refused.at("/reason"), Value::Null);
}

#[tokio::test]
async fn objects_over_the_etcd_limit_are_not_stored() {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let server = with_things(&schema).await;
    let body = |bytes: usize| thing(&json!({"text": "x".repeat(bytes)}));
    let limit = 1_572_864;
    let refused = post(&server, THINGS, &body(limit)).await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(refused.message(), "etcdserver: request is too large");
    assert_eq!(
        get(&server, &format!("{THINGS}/t")).await.status,
        StatusCode::NOT_FOUND
    );
    let made = post(&server, THINGS, &body(limit - 1024)).await;
    assert_eq!(made.status, StatusCode::CREATED);
    let path = format!("{THINGS}/t");
    let more = json!({"spec": {"more": "x".repeat(1024)}});
    for (kind, body) in [
        ("merge-patch+json", more),
        (
            "json-patch+json",
            json!([{"op": "copy", "from": "/spec/text", "path": "/spec/more"}]),
        ),
    ] {
        let refused = patch(&server, &path, kind, &body).await;
        assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR, "{kind}");
        assert_eq!(refused.message(), "etcdserver: request is too large");
    }
    assert_eq!(get(&server, &path).await.at("/spec/more"), Value::Null);
}

#[tokio::test]
async fn a_long_name_is_not_repeated_for_everything_below_it() {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let server = with_things(&schema).await;
    // As many bytes above as members below: copying the name for each member would be quadratic.
    assert_about_linear("long name", 10_000, async |size| {
        let name = "n".repeat(size * 4);
        let members: Value =
            Value::Object((0..size / 10).map(|n| (n.to_string(), json!(1))).collect());
        let mut spec = json!({});
        spec[name] = members;
        cost(&server, posted(THINGS, &thing(&spec)), 201).await
    })
    .await;
}

#[tokio::test]
async fn errors_about_an_object_are_limited() {
    let server = ApiServer::builder().build();
    let refused = post(&server, PODS, &pod(&list(20_000, |_| json!({})))).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    let causes = refused.at("/details/causes");
    assert_eq!(causes.as_array().map(Vec::len), Some(1000));
    assert!(
        refused.message().ends_with(", and 39000 more errors]"),
        "{}",
        refused.message().len()
    );
    // A hundred errors are all listed.
    let refused = post(&server, PODS, &pod(&list(100, |_| json!({})))).await;
    assert_eq!(
        refused.at("/details/causes").as_array().map(Vec::len),
        Some(200)
    );
}

#[tokio::test]
async fn a_definition_costs_the_same_next_to_one_with_costly_rules() {
    let rule = |count: usize| {
        let terms: Vec<String> = (0..count).map(|n| format!("self.n != {n}")).collect();
        json!({
            "type": "object", "properties": {"n": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": terms.join(" && ")}],
        })
    };
    let plain = json!({"type": "object"});
    let alone = ApiServer::builder().build();
    let with_costly_rule = with_things(&rule(400)).await;
    let later = async |server: &ApiServer, name: String| {
        let before = std::time::Instant::now();
        let kind = name.to_uppercase();
        let made = define(server, &name, &kind, &plain).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
        let path = format!("/apis/example.com/v1/namespaces/default/{name}");
        while get(server, &path).await.status != StatusCode::OK {
            tokio::task::yield_now().await;
        }
        before.elapsed()
    };
    let (mut first, mut second) = (Duration::MAX, Duration::MAX);
    for round in 0..5 {
        first = first.min(later(&alone, format!("plain{round}")).await);
        second = second.min(later(&with_costly_rule, format!("plain{round}")).await);
    }
    assert!(
        second < first * 4,
        "{first:?} alone, {second:?} next to a costly rule"
    );
}

/// A server in mode RBAC with this many bindings of this many subjects; bob is the last.
async fn with_bindings(bindings: usize, subjects: usize) -> ApiServer {
    let server = ApiServer::builder()
        .authorization_mode(AuthorizationMode::Rbac)
        .build();
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "metadata": {"name": "readers"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
    });
    let made = post(&server, &format!("{rbac}/clusterroles"), &role).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    for number in 0..bindings {
        let mut named = list(
            subjects,
            |subject| json!({"kind": "User", "name": format!("user-{number}-{subject}")}),
        );
        named[subjects - 1]["name"] = "bob".into();
        let binding = json!({
            "metadata": {"name": format!("binding-{number}")},
            "roleRef": {"kind": "ClusterRole", "name": "readers"},
            "subjects": named,
        });
        let path = format!("{rbac}/namespaces/default/rolebindings");
        let made = post(&server, &path, &binding).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    }
    server
}

#[tokio::test]
async fn the_cost_of_a_decision_does_not_grow_with_unrelated_subjects() {
    let few = with_bindings(1, 1).await;
    let many = with_bindings(20, 5000).await;
    for (user, status) in [(User::anonymous(), 403), (User::new("bob", []), 200)] {
        let requests = async |server: &ApiServer, count: usize| {
            let before = processor_time();
            for _ in 0..count {
                let request = support::request(Method::GET, MAPS, "");
                let answer = server.service(user.clone()).call(request).await.unwrap();
                assert_eq!(answer.status().as_u16(), status);
            }
            processor_time().saturating_sub(before)
        };
        let small = fastest(&async |count| requests(&few, count).await, 100).await;
        let large = fastest(&async |count| requests(&many, count).await, 100).await;
        assert!(
            large < small * 4,
            "{}: {small:?} with one binding, {large:?} with many",
            user.name
        );
    }
}

/// Makes the n-th term of a selector.
type Term<'a> = &'a dyn Fn(usize) -> String;

#[tokio::test]
async fn an_object_costs_no_more_the_more_requirements_a_selector_has() {
    let server = ApiServer::builder().build();
    for number in 0..2000 {
        let mut map = config_map(&format!("map-{number}"));
        map["metadata"]["labels"] = json!({"a": "x", "b": "y"});
        assert_eq!(post(&server, MAPS, &map).await.status, StatusCode::CREATED);
    }
    // The last term matches nothing, so that all are compared with every object.
    let selectors: [(&str, Term<'_>, &str); 3] = [
        ("labelSelector", &|number| format!("a!={number}"), "zz"),
        ("labelSelector", &|number| format!("!l{number}"), "zz"),
        (
            "fieldSelector",
            &|number| format!("metadata.name!={number}"),
            "metadata.namespace%3Dzz",
        ),
    ];
    for (parameter, term, last) in selectors {
        let listed = async |collection: &str, count: usize| {
            let terms: Vec<String> = (0..count).map(term).collect();
            let path = format!("{collection}?{parameter}={},{last}", terms.join(","));
            cost(&server, support::request(Method::GET, &path, ""), 200).await
        };
        // Without what it takes to read the selector, which a list without objects takes as well.
        let empty = "/api/v1/namespaces/kube-system/configmaps";
        let compared = async |count: usize| {
            let read = fastest(&async |count| listed(empty, count).await, count).await;
            let all = fastest(&async |count| listed(MAPS, count).await, count).await;
            all.saturating_sub(read)
        };
        let (few, many) = (compared(100).await, compared(2500).await);
        let few = few.max(Duration::from_millis(1));
        assert!(
            many < few * 10,
            "{}: {few:?} for 100 requirements, {many:?} for 2,500",
            term(0)
        );
    }
}

/// A server with one policy, which is bound.
async fn with_policy(policy: &Value) -> ApiServer {
    let server = ApiServer::builder().build();
    let binding = json!({
        "metadata": {"name": "b"},
        "spec": {"policyName": "p", "validationActions": ["Deny"]},
    });
    let bindings = POLICIES.replace("policies", "policybindings");
    for (path, object) in [(POLICIES, policy), (&bindings, &binding)] {
        let made = post(&server, path, object).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    }
    server
}

#[tokio::test]
async fn all_expressions_of_a_policy_share_one_budget() {
    let mut map = config_map("m");
    map["data"] = (0..200)
        .map(|number| (format!("key-{number}"), json!("x")))
        .collect();
    for (count, status) in [(2, 201), (100, 422)] {
        let expression = "object.data.all(a, object.data.all(b, a != ''))";
        let server = with_policy(&json!({
            "metadata": {"name": "p"},
            "spec": {
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["configmaps"],
                }]},
                "validations": list(count, |_| json!({"expression": expression})),
            },
        }))
        .await;
        let answer = post(&server, MAPS, &map).await;
        assert_eq!(answer.status.as_u16(), status, "{}", answer.text);
        assert_eq!(
            answer.text.contains("running out of cost budget"),
            status == 422,
            "{}",
            answer.text
        );
    }
}

#[tokio::test]
async fn variables_of_a_policy_are_evaluated_in_linear_time() {
    // Each uses the one before; every second fails, and every validation misses one.
    let policy = |count: usize| {
        let variables = list(count, |number| {
            let expression = match number % 2 {
                0 => "object.metadata.name + 'x'".to_owned(),
                _ => format!("variables.v{} + 1", number - 1),
            };
            json!({"name": format!("v{number}"), "expression": expression})
        });
        let validations = list(
            count / 4,
            |number| json!({"expression": format!("variables.v{} == 1", 2 * number + 1)}),
        );
        json!({
            "metadata": {"name": "p"},
            "spec": {
                "failurePolicy": "Ignore",
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["configmaps"],
                }]},
                "variables": variables,
                "validations": validations,
            },
        })
    };
    let servers = async |count: usize| with_policy(&policy(count)).await;
    let (few, many) = (servers(250).await, servers(1000).await);
    // Expressions run on a separate thread, whose CPU time this one does not see.
    assert_about_linear("variables", 250, async |count| {
        let server = if count == 250 { &few } else { &many };
        let path = format!("{MAPS}?dryRun=All");
        let started = std::time::Instant::now();
        let answer = post(server, &path, &config_map("m")).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
        started.elapsed()
    })
    .await;
    assert_about_linear("validation of variables", 250, async |count| {
        let path = format!("{POLICIES}?dryRun=All");
        let started = std::time::Instant::now();
        let mut other = policy(count);
        other["metadata"]["name"] = "other".into();
        let answer = post(&few, &path, &other).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
        started.elapsed()
    })
    .await;
}

/// A server with the kind Thing, whose versions have these printer columns.
async fn with_columns(columns: &Value) -> ApiServer {
    let server = ApiServer::builder().build();
    let made = define_columns(&server, columns).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    while get(&server, THINGS).await.status != StatusCode::OK {
        tokio::task::yield_now().await;
    }
    server
}

async fn define_columns(server: &ApiServer, columns: &Value) -> Answer {
    let spec = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let definition = json!({
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}, "additionalPrinterColumns": columns,
            }],
        },
    });
    post(server, DEFINITIONS, &definition).await
}

fn columns(count: usize, path: &str) -> Value {
    list(
        count,
        |number| json!({"name": format!("C{number}"), "type": "string", "jsonPath": path}),
    )
}

async fn table(server: &ApiServer, path: &str) -> Answer {
    let request = Request::builder()
        .uri(path)
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    support::send(server, request.body(String::new()).unwrap()).await
}

#[tokio::test]
async fn a_definition_has_at_most_64_printer_columns() {
    let server = ApiServer::builder().build();
    let refused = define_columns(&server, &columns(65, ".spec.s")).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        refused.at("/details/causes/0/field"),
        "spec.versions[0].additionalPrinterColumns"
    );
    assert_eq!(
        refused.at("/details/causes/0/message"),
        "Too many: 65: must have at most 64 items"
    );
    let made = define_columns(&server, &columns(64, ".spec.s")).await;
    assert_eq!(made.status, StatusCode::CREATED);
}

#[tokio::test]
async fn a_cell_looks_at_ten_thousand_values_at_most() {
    let server = with_columns(&columns(2, ".spec.l[*].a")).await;
    for (empty, shown) in [(9_000, json!("x")), (11_000, Value::Null)] {
        let mut elements = vec![json!({}); empty];
        elements.push(json!({"a": "x"}));
        support::delete(&server, &format!("{THINGS}/t")).await;
        let made = post(&server, THINGS, &thing(&json!({"l": elements}))).await;
        assert_eq!(made.status, StatusCode::CREATED);
        let table = table(&server, THINGS).await;
        assert_eq!(table.at("/rows/0/cells"), json!(["t", shown, shown]));
    }
}

#[tokio::test]
async fn a_row_is_not_much_larger_than_its_object() {
    let server = with_columns(&columns(64, ".spec.s")).await;
    let row = async |text: &str| {
        support::delete(&server, &format!("{THINGS}/t")).await;
        let made = post(&server, THINGS, &thing(&json!({"s": text}))).await;
        assert_eq!(made.status, StatusCode::CREATED);
        let table = table(&server, &format!("{THINGS}/t?includeObject=None")).await;
        assert_eq!(table.status, StatusCode::OK);
        (table.at("/rows/0/cells"), table.text.len())
    };
    // Short values are shown whole.
    let (cells, _) = row("short").await;
    assert_eq!(cells.as_array().map(Vec::len), Some(65));
    assert!(
        cells.as_array().unwrap()[1..]
            .iter()
            .all(|cell| cell == "short")
    );
    // A cell is cut at a character boundary.
    let (cells, bytes) = row(&"ä".repeat(300_000)).await;
    let cell = cells[1].as_str().unwrap();
    assert_eq!(cell, format!("{}...", "ä".repeat(8 * 1024)));
    assert!(bytes < 1_300_000, "{bytes}");
    // All cells together are limited too: 64 copies of a small text are cut.
    let (cells, bytes) = row(&"x".repeat(10_000)).await;
    assert_eq!(cells[1].as_str().map(str::len), Some(10_000));
    assert_eq!(cells[64], "...");
    assert!(bytes < 40_000, "{bytes}");
}

fn not_any(count: usize, schema: impl Fn(usize) -> Value) -> Value {
    json!({"type": "object", "properties": {
        "s": {"type": "string", "not": {"anyOf": list(count, schema)}},
    }})
}

/// Asserts that an object is refused because validation takes too many steps.
async fn assert_too_much(server: &ApiServer, bytes: usize) {
    let refused = post(server, THINGS, &thing(&json!({"s": "x".repeat(bytes)}))).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    let causes = refused.at("/details/causes");
    assert_eq!(causes.as_array().map(Vec::len), Some(1));
    assert_eq!(causes[0]["field"], "spec.s");
    assert_eq!(
        causes[0]["message"],
        "Forbidden: the object takes too many steps to compare with its schema"
    );
}

#[tokio::test]
async fn a_pattern_costs_as_much_as_its_text_is_long() {
    let pattern = |number| json!({"pattern": format!("[a-z]{{1,40}}y{number}$")});
    let server = with_things(&not_any(400, pattern)).await;
    cost(
        &server,
        posted(THINGS, &thing(&json!({"s": "x".repeat(1000)}))),
        201,
    )
    .await;
    assert_too_much(&server, 400_000).await;
}

#[tokio::test]
async fn an_enumeration_costs_as_much_as_its_value_is_long() {
    let value = |number| json!({"enum": [format!("value-{number}")]});
    let server = with_things(&not_any(3000, value)).await;
    cost(
        &server,
        posted(THINGS, &thing(&json!({"s": "x".repeat(1000)}))),
        201,
    )
    .await;
    assert_too_much(&server, 1_000_000).await;
}

#[tokio::test]
async fn comparing_the_keys_of_a_list_is_bounded() {
    let keys = list(10_000, |number| json!(format!("k{number}")));
    let server = with_things(&json!({"type": "object", "properties": {"list": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }}}))
    .await;
    let elements = list(20_000, |number| json!({"k0": number}));
    let refused = post(&server, THINGS, &thing(&json!({"list": elements}))).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        refused.message().contains("too many steps"),
        "{}",
        refused.message()
    );
}

#[tokio::test]
async fn patterns_of_a_definition_take_bounded_memory() {
    let server = ApiServer::builder().build();
    let patterns = |count, pattern: &dyn Fn(usize) -> String| {
        not_any(count, |number| json!({"pattern": pattern(number)}))
    };
    let field = "spec.validation.openAPIV3Schema.properties[spec].properties[s].not.anyOf";
    for (count, pattern, at, message) in [
        (
            501,
            &(|number| format!("^a{number}$")) as &dyn Fn(usize) -> String,
            500,
            "Forbidden: the definition has more than 500 different patterns",
        ),
        (
            200,
            &|number| format!("^\\w{{0,{}}}$", 1000 + number),
            64,
            "Forbidden: the patterns of the definition take more than 16777216 bytes compiled",
        ),
    ] {
        let refused = define(&server, "things", "Thing", &patterns(count, pattern)).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
        let causes = refused.at("/details/causes");
        assert_eq!(causes.as_array().map(Vec::len), Some(1), "{causes}");
        assert_eq!(causes[0]["field"], format!("{field}[{at}].pattern"));
        assert_eq!(causes[0]["message"], message);
    }
    // Patterns over the size limit count as the limit.
    let large = |number| format!("(\\pL{{0,1000}}){{0,{}}}", 900 + number);
    let refused = define(&server, "things", "Thing", &patterns(100, &large)).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    let causes = refused.at("/details/causes");
    assert_eq!(causes.as_array().map(Vec::len), Some(17), "{causes}");
    // Equal ones are compiled once.
    let equal = patterns(5000, &|_| "^[a-z]+1$".to_owned());
    let made = define(&server, "things", "Thing", &equal).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
}
