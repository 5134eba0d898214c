//! Pods as a real cluster has them: about 8 kB, a third of it managedFields.

use kube::runtime::reflector::Lookup;
use serde::Deserialize;
use serde_json::{Value, json};
use weft_runtime::{Metadata, projection};

/// The fields of a Pod that a node agent reads.
#[expect(dead_code, reason = "decoded and held, as a consumer would")]
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SlimPod {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: SlimSpec,
    #[serde(default)]
    pub(crate) status: SlimStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimSpec {
    pub(crate) node_name: Option<weft_model::SharedStr>,
    pub(crate) host_network: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimStatus {
    pub(crate) phase: Option<weft_model::SharedStr>,
    #[serde(rename = "podIPs")]
    pub(crate) pod_ips: Box<[PodIp]>,
}

#[expect(dead_code, reason = "decoded and held, as a consumer would")]
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PodIp {
    ip: std::net::IpAddr,
}

projection!(SlimPod, "", "v1", "pods", "Pod");

impl Lookup for SlimPod {
    type DynamicType = ();

    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        "Pod".into()
    }
    fn group((): &()) -> std::borrow::Cow<'_, str> {
        "".into()
    }
    fn version((): &()) -> std::borrow::Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        "pods".into()
    }
    fn name(&self) -> Option<std::borrow::Cow<'_, str>> {
        Some((&*self.metadata.name).into())
    }
    fn namespace(&self) -> Option<std::borrow::Cow<'_, str>> {
        self.metadata.namespace.as_deref().map(Into::into)
    }
    fn resource_version(&self) -> Option<std::borrow::Cow<'_, str>> {
        Some((&*self.metadata.resource_version).into())
    }
    fn uid(&self) -> Option<std::borrow::Cow<'_, str>> {
        Some((&*self.metadata.uid).into())
    }
}

/// The name of the Pod with an index.
pub(crate) fn pod_name(index: usize) -> String {
    format!("web-frontend-6d5f9c7b8-{index:05}")
}

/// A Pod as JSON.
pub(crate) fn pod_json(index: usize, version: usize) -> String {
    let (node, namespace) = (index % 500, index % 40);
    json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": pod_name(index),
            "generateName": "web-frontend-6d5f9c7b8-",
            "namespace": format!("team-{namespace}"),
            "uid": format!("8f2b1c9e-5d3a-4c6e-9b7f-{index:012}"),
            "resourceVersion": version.to_string(),
            "generation": 1,
            "creationTimestamp": "2026-10-01T08:15:30Z",
            "labels": {
                "app.kubernetes.io/name": "web-frontend",
                "app.kubernetes.io/instance": format!("web-{namespace}"),
                "app.kubernetes.io/version": "4.12.1",
                "pod-template-hash": "6d5f9c7b8",
            },
            "annotations": {
                "kubectl.kubernetes.io/restartedAt": "2026-10-01T08:15:30Z",
                "prometheus.io/scrape": "true",
                "checksum/config": "0f5c1e4bf0d1f7c2b3a495867d1e2f30415263748596a7b8c9d0e1f203142536",
            },
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-frontend-6d5f9c7b8",
                "uid": "1a2b3c4d-5e6f-4071-8293-a4b5c6d7e8f9", "controller": true, "blockOwnerDeletion": true}],
            "managedFields": managed_fields(),
        },
        "spec": {
            "volumes": [
                {"name": "config", "configMap": {"name": "web-frontend", "defaultMode": 420}},
                {"name": "kube-api-access-x7k2p", "projected": {"defaultMode": 420, "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}},
            ],
            "containers": [container("web", 8080), container("sidecar", 9090)],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "web-frontend",
            "serviceAccount": "web-frontend",
            "nodeName": format!("node-{node:04}.eu-central.example.com"),
            "securityContext": {"runAsNonRoot": true, "runAsUser": 10001, "fsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "priority": 0,
            "enableServiceLinks": true,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": status(index),
    })
    .to_string()
}

fn container(name: &str, port: u16) -> Value {
    let probe = json!({"httpGet": {"path": "/healthz", "port": port, "scheme": "HTTP"}, "initialDelaySeconds": 5,
        "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3});
    let env: Vec<Value> = ["LOG_LEVEL", "REGION", "DATABASE_HOST", "DATABASE_PORT", "CACHE_SIZE", "FEATURES"]
        .iter()
        .map(|key| json!({"name": key, "value": format!("{}-value-of-the-deployment", key.to_lowercase())}))
        .collect();
    json!({
        "name": name,
        "image": format!("registry.example.com/team/{name}@sha256:9b7f1c2d3e4f5061728394a5b6c7d8e9f00112233445566778899aabbccddeeff"),
        "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
        "env": env,
        "resources": {"limits": {"cpu": "500m", "memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": [
            {"name": "config", "readOnly": true, "mountPath": "/etc/web"},
            {"name": "kube-api-access-x7k2p", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
    })
}

fn status(index: usize) -> Value {
    let ip = format!(
        "10.{}.{}.{}",
        64 + index / 65536,
        index / 256 % 256,
        index % 256
    );
    let conditions: Vec<Value> = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ]
    .iter()
    .map(|kind| {
        json!({"type": kind, "status": "True", "lastProbeTime": null, "observedGeneration": 1,
                    "lastTransitionTime": "2026-10-01T08:15:42Z"})
    })
    .collect();
    let statuses: Vec<Value> = ["web", "sidecar"]
        .iter()
        .map(|name| {
            json!({"name": name, "ready": true, "started": true, "restartCount": 0,
                "image": format!("registry.example.com/team/{name}"),
                "imageID": format!("registry.example.com/team/{name}@sha256:9b7f1c2d3e4f5061728394a5b6c7d8e9f00112233445566778899aabbccddeeff"),
                "containerID": format!("containerd://{index:064x}"),
                "lastState": {}, "state": {"running": {"startedAt": "2026-10-01T08:15:40Z"}}})
        })
        .collect();
    json!({"phase": "Running", "conditions": conditions, "hostIP": "192.0.2.10", "hostIPs": [{"ip": "192.0.2.10"}],
        "podIP": ip, "podIPs": [{"ip": ip}, {"ip": format!("2001:db8::{index:x}")}],
        "startTime": "2026-10-01T08:15:31Z", "qosClass": "Burstable", "containerStatuses": statuses})
}

fn managed_fields() -> Value {
    let container = json!({".": {}, "f:env": {".": {}, "k:{\"name\":\"LOG_LEVEL\"}": {".": {}, "f:name": {}, "f:value": {}},
            "k:{\"name\":\"REGION\"}": {".": {}, "f:name": {}, "f:value": {}}, "k:{\"name\":\"DATABASE_HOST\"}": {".": {}, "f:name": {}, "f:value": {}},
            "k:{\"name\":\"CACHE_SIZE\"}": {".": {}, "f:name": {}, "f:value": {}}},
        "f:image": {}, "f:imagePullPolicy": {}, "f:livenessProbe": {".": {}, "f:failureThreshold": {}, "f:httpGet": {".": {}, "f:path": {}, "f:port": {}, "f:scheme": {}},
            "f:periodSeconds": {}, "f:successThreshold": {}, "f:timeoutSeconds": {}},
        "f:name": {}, "f:ports": {".": {}, "k:{\"containerPort\":8080,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:name": {}, "f:protocol": {}}},
        "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}, "f:memory": {}}, "f:requests": {".": {}, "f:cpu": {}, "f:memory": {}}},
        "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {}, "f:volumeMounts": {".": {}, "k:{\"mountPath\":\"/etc/web\"}": {".": {}, "f:mountPath": {}, "f:name": {}, "f:readOnly": {}}}});
    let condition = json!({".": {}, "f:lastProbeTime": {}, "f:lastTransitionTime": {}, "f:observedGeneration": {}, "f:status": {}, "f:type": {}});
    json!([
        {"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "time": "2026-10-01T08:15:30Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:annotations": {".": {}, "f:checksum/config": {}, "f:prometheus.io/scrape": {}}, "f:generateName": {},
                    "f:labels": {".": {}, "f:app.kubernetes.io/instance": {}, "f:app.kubernetes.io/name": {}, "f:pod-template-hash": {}},
                    "f:ownerReferences": {".": {}, "k:{\"uid\":\"1a2b3c4d-5e6f-4071-8293-a4b5c6d7e8f9\"}": {}}},
                "f:spec": {"f:containers": {"k:{\"name\":\"web\"}": container}, "f:dnsPolicy": {}, "f:enableServiceLinks": {},
                    "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {".": {}, "f:fsGroup": {}, "f:runAsUser": {}}, "f:serviceAccount": {},
                    "f:serviceAccountName": {}, "f:terminationGracePeriodSeconds": {}, "f:volumes": {".": {}, "k:{\"name\":\"config\"}": {".": {}, "f:configMap": {".": {}, "f:defaultMode": {}, "f:name": {}}, "f:name": {}}}}}},
        {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": "2026-10-01T08:15:42Z", "fieldsType": "FieldsV1", "subresource": "status",
            "fieldsV1": {"f:status": {"f:conditions": {"k:{\"type\":\"ContainersReady\"}": condition, "k:{\"type\":\"Initialized\"}": condition, "k:{\"type\":\"Ready\"}": condition},
                "f:containerStatuses": {}, "f:hostIP": {}, "f:hostIPs": {}, "f:phase": {}, "f:podIP": {}, "f:podIPs": {".": {}, "k:{\"ip\":\"10.64.0.1\"}": {".": {}, "f:ip": {}}}, "f:startTime": {}}}},
    ])
}
