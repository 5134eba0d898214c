//! Objects of the demo: a Deployment, a client pod and four Services.

use serde_json::{Value, json};

/// All objects, in the sequence of their creation.
pub(super) fn objects() -> Vec<Value> {
    let container = json!({
        "name": "echo", "image": "stand-in",
        "ports": [{"name": "http", "containerPort": 8080}],
    });
    let service = |name: &str, protocol: &str, spec: Value| {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "selector": {"app": "web"},
                "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": protocol}],
            },
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            service["spec"][key] = value.clone();
        }
        service
    };
    vec![
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "replicas": 3, "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [container]},
                },
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "client", "namespace": "default", "labels": {"app": "client"}},
            "spec": {"containers": [container]},
        }),
        service("web", "TCP", json!({})),
        service("web-udp", "UDP", json!({})),
        service("web-nodeport", "TCP", json!({"type": "NodePort"})),
        service(
            "web-dual",
            "TCP",
            json!({"ipFamilyPolicy": "RequireDualStack"}),
        ),
    ]
}
