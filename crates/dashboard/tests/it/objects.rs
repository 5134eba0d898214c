//! Derivation of the state from a cluster's objects.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use weft_dashboard::{Objects, Source, State, SyncState, derive, state::Pool};

fn all<T: DeserializeOwned>(values: Vec<Value>) -> Vec<Arc<T>> {
    let objects = values
        .into_iter()
        .map(|value| serde_json::from_value(value).unwrap());
    objects.map(Arc::new).collect()
}

pub(crate) fn node(number: u8) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("node-{number}")},
        "spec": {"podCIDRs": [format!("10.244.{number}.0/24")]},
        "status": {
            "addresses": [
                {"type": "Hostname", "address": format!("node-{number}")},
                {"type": "InternalIP", "address": format!("172.30.0.1{number}")}],
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "NetworkUnavailable", "status": "False"}],
        },
    })
}

pub(crate) fn pod(name: &str, node: Option<&str>, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        "status": {
            "phase": "Running", "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

pub(crate) fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"type": "NodePort", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080}]},
    })
}

pub(crate) fn slice(name: &str, endpoints: &Value) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": endpoints,
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    })
}

pub(crate) fn endpoint(pod: &str, node: &str, address: &str) -> Value {
    json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true},
        "targetRef": {"kind": "Pod", "namespace": "default", "name": pod}})
}

pub(crate) fn config(node: &str, block: &str, requested: u64) -> Value {
    json!({
        "apiVersion": "ipam.weft.dev/v1alpha1", "kind": "NodeNetworkConfig",
        "metadata": {"name": node, "namespace": "kube-system"},
        "spec": {"requestedIPCount": requested, "demandIPCount": 3},
        "status": {"assignedIPCount": 16, "networkContainers": [
            {"id": "c", "version": 1, "ipAssignments": [{"name": "b", "ip": block}]}]},
    })
}

fn objects() -> Objects {
    Objects {
        nodes: all(vec![node(2), node(1)]),
        pods: all(vec![
            pod("web-2", Some("node-1"), "10.244.1.6"),
            pod("web-1", Some("node-1"), "10.244.1.5"),
            pod("web-3", Some("node-2"), "10.244.2.5"),
        ]),
        services: all(vec![service()]),
        slices: all(vec![slice(
            "web-a",
            &json!([
                endpoint("web-1", "node-1", "10.244.1.5"),
                endpoint("web-3", "node-2", "10.244.2.5")
            ]),
        )]),
        ..Objects::default()
    }
}

fn json_of(state: &State) -> Value {
    serde_json::to_value(state).unwrap()
}

#[test]
fn nodes_have_their_pods_in_the_order_of_names() {
    let state = json_of(&derive(&objects()));
    assert_eq!(
        state["nodes"][0],
        json!({
            "name": "node-1", "ready": true, "addresses": ["172.30.0.11"],
            "pod_ranges": ["10.244.1.0/24"], "network_unavailable": false, "pool": null,
            "pods": [
                {"namespace": "default", "name": "web-1", "app": "web", "addresses": ["10.244.1.5"],
                    "phase": "Running", "ready": true},
                {"namespace": "default", "name": "web-2", "app": "web", "addresses": ["10.244.1.6"],
                    "phase": "Running", "ready": true}],
            "routes": [{"destination": "10.244.2.0/24", "via": "172.30.0.12", "node": "node-2"}],
        })
    );
    assert_eq!(state["nodes"][1]["name"], "node-2");
    assert_eq!(state["mode"], "cluster");
    assert_eq!(state["savings"], Value::Null);
}

#[test]
fn services_have_what_their_slices_say() {
    let mut objects = objects();
    // An endpoint that moves to another slice is in both for a moment.
    let moving = json!([endpoint("web-1", "node-1", "10.244.1.5"),
        {"addresses": ["10.244.1.6"], "conditions": {"ready": false}}]);
    objects.slices.extend(all(vec![slice("web-b", &moving)]));
    let state = json_of(&derive(&objects));
    assert_eq!(
        state["services"],
        json!([{
            "namespace": "default", "name": "web", "kind": "NodePort", "addresses": ["10.96.0.10"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "node_port": 30080}],
            "endpoints": [
                {"address": "10.244.1.6", "pod": null, "node": null, "ready": false},
                {"address": "10.244.1.5", "pod": "web-1", "node": "node-1", "ready": true},
                {"address": "10.244.2.5", "pod": "web-3", "node": "node-2", "ready": true}],
        }])
    );
}

#[test]
fn pods_that_hold_no_address_or_node_are_not_on_a_node() {
    let mut objects = objects();
    let mut done = pod("job", Some("node-1"), "10.244.1.9");
    done["status"]["phase"] = json!("Succeeded");
    objects
        .pods
        .extend(all(vec![done, pod("waiting", None, "")]));
    let pods: usize = derive(&objects)
        .nodes
        .iter()
        .map(|node| node.pods.len())
        .sum();
    assert_eq!(pods, 3);
}

#[test]
fn a_pod_belongs_to_what_its_labels_or_its_owner_say() {
    let owner = |kind: &str, name: &str| {
        let mut pod = pod("x", Some("node-1"), "10.244.1.9");
        pod["metadata"]["labels"] = Value::Null;
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": kind,
            "name": name, "uid": "u", "controller": true}]);
        pod
    };
    let mut recommended = pod("x", Some("node-1"), "10.244.1.9");
    recommended["metadata"]["labels"]["app.kubernetes.io/name"] = json!("shop");
    let mut nothing = owner("Node", "n");
    nothing["metadata"]["ownerReferences"] = json!([]);
    for (pod, expected) in [
        (recommended, Some("shop")),
        (owner("ReplicaSet", "web-front-7d4b9"), Some("web-front")),
        (owner("DaemonSet", "node-exporter"), Some("node-exporter")),
        (nothing, None),
    ] {
        let objects = Objects {
            pods: all(vec![pod]),
            ..objects()
        };
        let state = derive(&objects);
        assert_eq!(state.nodes[0].pods[0].app.as_deref(), expected);
    }
}

#[test]
fn a_pod_that_is_being_deleted_is_not_ready() {
    let mut leaving = pod("x", Some("node-1"), "10.244.1.9");
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let objects = Objects {
        pods: all(vec![leaving]),
        ..objects()
    };
    let state = derive(&objects);
    let pod = &state.nodes[0].pods[0];
    assert_eq!((&*pod.phase, pod.ready), ("Terminating", false));
}

#[test]
fn a_pool_is_known_as_far_as_objects_say() {
    let mut objects = objects();
    objects.configs = all(vec![config("node-1", "10.244.1.0/28", 16)]);
    let state = derive(&objects);
    let expected = Pool {
        assigned: Some(2),
        free: Some(14),
        pending: None,
        cooling: None,
        requested: Some(16),
        demand: Some(3),
    };
    assert_eq!(state.nodes[0].pool, Some(expected));
    assert_eq!(state.nodes[1].pool, None);
    // A pod of a dual-stack block counts once, and an address outside the blocks not at all.
    let mut dual = config("node-1", "10.244.1.0/28", 16);
    let entries = dual["status"]["networkContainers"][0]["ipAssignments"]
        .as_array_mut()
        .unwrap();
    entries.push(json!({"name": "six", "ip": "fd00:1::/64"}));
    let mut pods = pod("six", Some("node-1"), "10.244.1.7");
    pods["status"]["podIPs"] = json!([{"ip": "10.244.1.7"}, {"ip": "fd00:1::7"}]);
    objects.configs = all(vec![dual]);
    objects.pods = all(vec![pods, pod("host", Some("node-1"), "172.30.0.11")]);
    let pool = derive(&objects).nodes[0].pool.unwrap();
    assert_eq!((pool.assigned, pool.free), (Some(1), Some(15)));
}

#[test]
fn a_route_is_shown_where_network_unavailable_is_false() {
    for (status, expected) in [("False", 1), ("True", 0), ("Unknown", 0)] {
        let mut second = node(2);
        second["status"]["conditions"][1]["status"] = json!(status);
        let objects = Objects {
            nodes: all(vec![node(1), second]),
            ..Objects::default()
        };
        let state = derive(&objects);
        assert_eq!(state.nodes[0].routes.len(), expected, "{status}");
        assert_eq!(state.nodes[1].routes.len(), 1);
    }
    // Each family has a next hop of its own.
    let mut dual = node(2);
    dual["spec"]["podCIDRs"] = json!(["10.244.2.0/24", "fd00:2::/64"]);
    let addresses = dual["status"]["addresses"].as_array_mut().unwrap();
    addresses.push(json!({"type": "InternalIP", "address": "fd00::12"}));
    let objects = Objects {
        nodes: all(vec![node(1), dual]),
        ..Objects::default()
    };
    let state = derive(&objects);
    let ways: Vec<(&str, &str)> = state.nodes[0]
        .routes
        .iter()
        .map(|route| (&*route.destination, &*route.via))
        .collect();
    assert_eq!(
        ways,
        [
            ("10.244.2.0/24", "172.30.0.12"),
            ("fd00:2::/64", "fd00::12")
        ]
    );
}

#[test]
fn the_sync_state_of_each_kind_is_a_check() {
    let source = |sync| Source { what: "pods", sync };
    for (sync, reachable, check) in [
        (SyncState::Followed, true, Some(true)),
        (SyncState::Listing, true, Some(false)),
        (SyncState::Refused("forbidden"), true, Some(false)),
        (SyncState::Unreachable, false, Some(false)),
        (SyncState::NotServed, true, None),
    ] {
        let objects = Objects {
            sources: vec![source(sync)],
            ..Objects::default()
        };
        let state = derive(&objects);
        assert_eq!(state.cluster.reachable, reachable, "{sync:?}");
        let checks: Vec<bool> = state.checks.iter().map(|check| check.ok).collect();
        assert_eq!(checks, Vec::from_iter(check), "{sync:?}");
    }
}
