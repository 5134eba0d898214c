//! Pods of a realistic size, as a Deployment creates and a kubelet reports them.

use serde_json::{Value, json};

/// The name of the Pod with an index.
pub(super) fn name(index: usize) -> String {
    format!("web-frontend-6d5f9c7b8-{index:05}")
}

/// A Pod as it is created: about 3 kB before the server adds its defaults.
pub(super) fn pod(index: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name(index),
            "labels": {
                "app.kubernetes.io/name": "web-frontend",
                "app.kubernetes.io/instance": format!("web-{}", index % 40),
                "app.kubernetes.io/version": "4.12.1",
                "pod-template-hash": "6d5f9c7b8",
            },
            "annotations": {
                "kubectl.kubernetes.io/restartedAt": "2026-10-01T08:15:30Z",
                "prometheus.io/scrape": "true",
                "checksum/config": "0f5c1e4bf0d1f7c2b3a495867d1e2f30415263748596a7b8c9d0e1f203142536",
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-frontend-6d5f9c7b8",
                "uid": "1a2b3c4d-5e6f-4071-8293-a4b5c6d7e8f9", "controller": true,
            }],
        },
        "spec": {
            "nodeName": format!("node-{:04}.eu-central.example.com", index % 500),
            "serviceAccountName": "web-frontend",
            "securityContext": {"runAsNonRoot": true, "runAsUser": 10001, "fsGroup": 10001},
            "volumes": [
                {"name": "config", "configMap": {"name": "web-frontend"}},
                {"name": "token", "projected": {"sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                ]}},
            ],
            "containers": [container("web", 8080), container("sidecar", 9090)],
        },
    })
}

fn container(name: &str, port: u16) -> Value {
    let variables = ["LOG_LEVEL", "REGION", "DATABASE_HOST", "CACHE_SIZE"];
    let variables = variables.map(
        |key| json!({"name": key, "value": format!("{}-of-the-deployment", key.to_lowercase())}),
    );
    let probe = json!({"httpGet": {"path": "/healthz", "port": port}, "initialDelaySeconds": 5});
    json!({
        "name": name,
        "image": format!("registry.example.com/team/{name}@sha256:{:064}", 7),
        "ports": [{"name": "http", "containerPort": port}],
        "env": variables,
        "resources": {"limits": {"cpu": "500m", "memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": [
            {"name": "config", "readOnly": true, "mountPath": "/etc/web"},
            {"name": "token", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
        ],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    })
}

/// The status patch of a kubelet that reports the Pod as running.
pub(super) fn running(index: usize) -> Value {
    let address = format!(
        "10.{}.{}.{}",
        64 + index / 65536,
        index / 256 % 256,
        index % 256
    );
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(|kind| {
        json!({"type": kind, "status": "True", "lastTransitionTime": "2026-10-01T08:15:42Z"})
    });
    let containers = ["web", "sidecar"].map(|name| {
        json!({
            "name": name, "ready": true, "started": true, "restartCount": 0,
            "image": format!("registry.example.com/team/{name}"),
            "imageID": format!("registry.example.com/team/{name}@sha256:{:064}", 7),
            "containerID": format!("containerd://{index:064x}"),
            "state": {"running": {"startedAt": "2026-10-01T08:15:40Z"}},
        })
    });
    json!({"status": {
        "phase": "Running", "hostIP": "192.0.2.10", "hostIPs": [{"ip": "192.0.2.10"}],
        "podIP": address, "podIPs": [{"ip": address}, {"ip": format!("2001:db8::{index:x}")}],
        "startTime": "2026-10-01T08:15:31Z", "qosClass": "Burstable",
        "conditions": conditions, "containerStatuses": containers,
    }})
}

/// A status patch that causes one update.
pub(super) fn restarted() -> Value {
    json!({"status": {"message": "a container was restarted"}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_3_to_6_kilobytes() {
        let size = pod(7).to_string().len() + running(7).to_string().len();
        assert!((3000..6000).contains(&size), "{size}");
    }

    #[test]
    fn pods_differ_in_name_and_address() {
        assert_ne!(name(1), name(2));
        assert_eq!(running(70_000)["status"]["podIP"], "10.65.17.112");
        assert_ne!(running(1), running(2));
    }
}
