//! Kubernetes objects of a check: those it creates, and the fields it reads.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::plan::{HOST_PORT, Node, PORT, Probe, SERVICE_PORT};

/// Label of everything that a check creates.
pub(crate) const MANAGER: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGER`].
pub(crate) const MANAGED_BY: &str = "weft-check";
/// Label of the pods behind the Services.
const BEHIND: &str = "weft.dev/behind-services";

/// Names of the pods, by role.
pub(crate) const CLIENT: &str = "client";
pub(crate) const NEIGHBOUR: &str = "neighbour";
pub(crate) const OTHER: &str = "other";
pub(crate) const HOST: &str = "host";
/// Names of all pods.
pub(crate) const PODS: [&str; 4] = [CLIENT, NEIGHBOUR, OTHER, HOST];

/// Returns whether a check created the object.
pub(crate) fn is_ours(object: &Value) -> bool {
    object["metadata"]["labels"][MANAGER] == MANAGED_BY
}

/// The namespace. Its Pod Security level is `privileged` because of the probe in the host network.
pub(crate) fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {
            MANAGER: MANAGED_BY,
            "pod-security.kubernetes.io/enforce": "privileged",
        }},
    })
}

/// Service account of the probes, without rights. Created here, since the namespace's default
/// account appears some time after the namespace.
pub(crate) fn account() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "probe", "labels": {MANAGER: MANAGED_BY}},
        "automountServiceAccountToken": false,
    })
}

/// A probe bound to a node, without the scheduler.
pub(crate) fn pod(name: &str, node: &str, image: &str) -> Value {
    let host_network = name == HOST;
    let port = port_of(name);
    let mut labels = json!({MANAGER: MANAGED_BY});
    if matches!(name, NEIGHBOUR | OTHER) {
        labels[BEHIND] = "true".into();
    }
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": node,
            "hostNetwork": host_network,
            "serviceAccountName": "probe",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Always",
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "probe", "image": image,
                "command": ["weft", "check", "probe", format!("--port={port}")],
                "env": [field("POD_NAME", "metadata.name"), field("NODE_NAME", "spec.nodeName")],
                "ports": [
                    {"name": "http", "containerPort": port},
                    {"name": "udp", "containerPort": port, "protocol": "UDP"},
                ],
                "readinessProbe": {"httpGet": {"path": "/", "port": port}, "periodSeconds": 1},
                "resources": {
                    "requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
            }],
        },
    })
}

/// Port that a probe listens on.
pub(crate) fn port_of(pod: &str) -> u16 {
    if pod == HOST { HOST_PORT } else { PORT }
}

fn service(name: &str, protocol: &str, more: &Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "labels": {MANAGER: MANAGED_BY}},
        "spec": {
            "selector": {BEHIND: "true"},
            "ports": [{"protocol": protocol, "port": SERVICE_PORT, "targetPort": PORT}],
        },
    });
    if let (Some(spec), Some(more)) = (service["spec"].as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    service
}

/// Service with an address of each family of the cluster.
pub(crate) fn cluster_service() -> Value {
    service(
        "cluster",
        "TCP",
        &json!({"ipFamilyPolicy": "PreferDualStack"}),
    )
}

/// Service for UDP.
pub(crate) fn udp_service() -> Value {
    service("udp", "UDP", &json!({}))
}

/// Service with session affinity.
pub(crate) fn sticky_service() -> Value {
    service("sticky", "TCP", &json!({"sessionAffinity": "ClientIP"}))
}

/// Service of type NodePort.
pub(crate) fn node_service() -> Value {
    service("nodeport", "TCP", &json!({"type": "NodePort"}))
}

fn addresses<'a>(texts: impl Iterator<Item = &'a Value>) -> Vec<IpAddr> {
    texts
        .filter_map(|text| text.as_str()?.parse().ok())
        .collect()
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Cluster IPs of a Service as the API returned it.
pub(crate) fn cluster_addresses(service: &Value) -> Vec<IpAddr> {
    addresses(array(&service["spec"]["clusterIPs"]))
}

/// NodePort of a Service as the API returned it.
pub(crate) fn node_port(service: &Value) -> Option<u16> {
    let port = service["spec"]["ports"][0]["nodePort"].as_u64()?;
    u16::try_from(port).ok()
}

fn is_true(object: &Value, condition: &str) -> bool {
    array(&object["status"]["conditions"])
        .any(|known| known["type"] == condition && known["status"] == "True")
}

/// A probe, if the pod is ready.
pub(crate) fn probe(pod: &Value) -> Option<Probe> {
    let addresses = addresses(array(&pod["status"]["podIPs"]).map(|entry| &entry["ip"]));
    let name = pod["metadata"]["name"].as_str()?.to_owned();
    (is_true(pod, "Ready") && !addresses.is_empty()).then_some(Probe { name, addresses })
}

/// The pod's phase and the reasons in its status.
pub(crate) fn trouble(pod: &Value) -> String {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let phase = pod["status"]["phase"].as_str().unwrap_or("Pending");
    let states = array(&pod["status"]["containerStatuses"]).map(|status| &status["state"]);
    let reasons = states.filter_map(|state| {
        let state = state.get("waiting").or_else(|| state.get("terminated"))?;
        let message = state["message"].as_str().unwrap_or_default();
        Some(format!("{} {message}", state["reason"].as_str()?))
    });
    let refused = pod["status"]["message"].as_str().map(str::to_owned);
    let why: Vec<String> = reasons.chain(refused).collect();
    let why = why.join("; ");
    let why = why.trim();
    if why.is_empty() {
        format!("{name} is {phase}")
    } else {
        format!("{name} is {phase}: {why}")
    }
}

/// Up to two ready nodes for probes; schedulable ones without taints that repel pods come first.
pub(crate) fn choose_nodes(nodes: &[Value]) -> Vec<Node> {
    let mut ready: Vec<(bool, &str, &Value)> = nodes
        .iter()
        .filter(|node| is_true(node, "Ready") && node["metadata"]["deletionTimestamp"].is_null())
        .filter_map(|node| {
            let kept_free = node["spec"]["unschedulable"] == true
                || array(&node["spec"]["taints"])
                    .any(|taint| taint["effect"] != "PreferNoSchedule");
            Some((kept_free, node["metadata"]["name"].as_str()?, node))
        })
        .collect();
    ready.sort_by_key(|(kept_free, name, _)| (*kept_free, *name));
    let node = |(_, name, node): (bool, &str, &Value)| {
        let internal = array(&node["status"]["addresses"])
            .filter(|address| address["type"] == "InternalIP")
            .map(|address| &address["address"]);
        Node {
            name: name.to_owned(),
            addresses: addresses(internal),
        }
    };
    ready.into_iter().take(2).map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ready: &str, spec: &Value) -> Value {
        json!({
            "metadata": {"name": name}, "spec": spec,
            "status": {
                "conditions": [{"type": "Ready", "status": ready}],
                "addresses": [
                    {"type": "Hostname", "address": name},
                    {"type": "InternalIP", "address": "172.30.0.1"},
                ],
            },
        })
    }

    #[test]
    fn nodes_are_ready_and_rather_those_for_pods() {
        let tainted = json!({"taints": [{"key": "control-plane", "effect": "NoSchedule"}]});
        let nodes = [
            node("a", "True", &tainted),
            node("b", "Unknown", &json!({})),
            node("d", "True", &json!({})),
            node("c", "True", &json!({"unschedulable": true})),
        ];
        let names = |nodes: &[Value]| -> Vec<String> {
            let chosen = choose_nodes(nodes);
            chosen.into_iter().map(|node| node.name).collect()
        };
        assert_eq!(names(&nodes), ["d", "a"]);
        assert_eq!(names(&nodes[..2]), ["a"]);
        assert!(names(&nodes[1..2]).is_empty());
        assert_eq!(
            choose_nodes(&nodes)[0].addresses,
            ["172.30.0.1".parse::<IpAddr>().unwrap()]
        );
    }

    #[test]
    fn a_pod_is_a_probe_once_it_is_ready_and_says_why_it_is_not() {
        let mut pod = pod("client", "node", "image");
        assert_eq!(probe(&pod), None);
        assert_eq!(trouble(&pod), "client is Pending");
        pod["status"] = json!({"phase": "Pending", "containerStatuses": [
            {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}},
        ]});
        assert_eq!(
            trouble(&pod),
            "client is Pending: ErrImagePull no such image"
        );
        pod["status"] = json!({
            "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        });
        let ready = probe(&pod).unwrap();
        assert_eq!((ready.name.as_str(), ready.addresses.len()), ("client", 2));
    }

    #[test]
    fn everything_that_is_made_can_be_known_again() {
        let made = [
            namespace("x"),
            account(),
            pod(CLIENT, "n", "i"),
            pod(HOST, "n", "i"),
            cluster_service(),
            udp_service(),
            sticky_service(),
            node_service(),
        ];
        assert!(made.iter().all(is_ours));
    }
}
