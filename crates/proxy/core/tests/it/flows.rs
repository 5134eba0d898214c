//! Stale UDP flows.

use std::{net::SocketAddr, sync::Arc};

use serde_json::{Value, json};
use weft_model::IpFamily;
use weft_proxy::{
    Desired, Service,
    conntrack::{FlowEnds, Reconciler, is_concerned},
};

use crate::world::{derive, service, slice};

fn dns(addresses: &[&str]) -> Arc<Service> {
    let spec = json!({"type": "NodePort", "externalIPs": ["198.51.100.1"],
        "ports": [{"name": "http", "port": 53, "protocol": "UDP", "nodePort": 30053}]});
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|a| json!({"addresses": [a]}))
        .collect();
    let mut slice = slice("one", &json!(endpoints));
    slice["ports"][0]["protocol"] = "UDP".into();
    derive(IpFamily::V4, &[service(&spec, &json!([])), slice]).unwrap()
}

fn flow(destination: &str, answered_by: &str) -> FlowEnds {
    let parse = |text: &str| -> SocketAddr { text.parse().unwrap() };
    FlowEnds {
        destination: parse(destination),
        answered_by: parse(answered_by),
    }
}

const CLUSTER: &str = "10.96.0.1:53";

fn desired(service: &Arc<Service>) -> Desired {
    [(service.key.clone(), service.clone())]
        .into_iter()
        .collect()
}

#[test]
fn flows_to_endpoints_that_answer_stay_and_others_go() {
    let service = dns(&["10.0.0.1", "10.0.0.2"]);
    let desired = desired(&service);
    let reconciler = Reconciler::new(&desired, []);
    let cases = [
        (flow(CLUSTER, "10.0.0.1:8080"), false),
        (flow(CLUSTER, "10.0.0.9:8080"), true),
        // Sent while there was no endpoint: no DNAT.
        (flow(CLUSTER, CLUSTER), true),
        (flow("198.51.100.1:53", "10.0.0.9:8080"), true),
        (flow("192.168.0.7:30053", "10.0.0.9:8080"), true),
        (flow("192.168.0.7:30053", "10.0.0.2:8080"), false),
        // Not a Service address.
        (flow("8.8.8.8:53", "8.8.8.8:53"), false),
        (flow("10.96.0.1:54", "10.0.0.9:8080"), false),
    ];
    for (flow, stale) in cases {
        assert_eq!(reconciler.is_stale(flow), stale, "{flow:?}");
    }
}

#[test]
fn a_service_without_endpoints_keeps_no_translated_flow() {
    let service = dns(&[]);
    let desired = desired(&service);
    let reconciler = Reconciler::new(&desired, []);
    assert!(reconciler.is_stale(flow(CLUSTER, "10.0.0.1:8080")));
    assert!(!reconciler.is_stale(flow(CLUSTER, CLUSTER)));
}

#[test]
fn a_service_that_is_gone_keeps_none_either() {
    let former = dns(&["10.0.0.1"]);
    let desired = Desired::new();
    let reconciler = Reconciler::new(&desired, [&*former]);
    assert!(reconciler.is_stale(flow(CLUSTER, "10.0.0.1:8080")));
    assert!(reconciler.is_stale(flow("192.168.0.7:30053", "10.0.0.1:8080")));
    assert!(!reconciler.is_stale(flow(CLUSTER, CLUSTER)));
    assert!(Reconciler::new(&desired, []).is_empty());
}

#[test]
fn an_address_that_another_service_took_over_is_judged_by_that_one() {
    let former = dns(&["10.0.0.1"]);
    let now = dns(&["10.0.0.2"]);
    let desired = desired(&now);
    let reconciler = Reconciler::new(&desired, [&*former]);
    assert!(!reconciler.is_stale(flow(CLUSTER, "10.0.0.2:8080")));
    assert!(reconciler.is_stale(flow(CLUSTER, "10.0.0.1:8080")));
}

#[test]
fn only_changes_of_udp_endpoints_or_addresses_are_a_reason_to_look() {
    let (one, two) = (dns(&["10.0.0.1"]), dns(&["10.0.0.2"]));
    assert!(is_concerned(Some(&one), Some(&two)));
    assert!(is_concerned(Some(&one), None));
    assert!(is_concerned(None, Some(&one)));
    assert!(!is_concerned(Some(&one), Some(&one)));
    let tcp = derive(IpFamily::V4, &[service(&json!({}), &json!([]))]).unwrap();
    assert!(!is_concerned(Some(&tcp), None));
}
