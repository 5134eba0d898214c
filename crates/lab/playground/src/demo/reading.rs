//! API paths of the demo's objects, and functions that read their fields.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use serde_json::Value;

use crate::standin::MANAGER;

pub(super) const WEB_PODS: &str = "/api/v1/namespaces/default/pods?labelSelector=app%3Dweb";
pub(super) const SLICE: &str =
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-ipv4";
pub(super) const CONFIGS: &str =
    "/apis/ipam.weft.dev/v1alpha1/namespaces/kube-system/nodenetworkconfigs";

pub(super) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

pub(super) fn condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let mut conditions = conditions.filter(|condition| condition["type"] == kind);
    conditions.any(|condition| condition["status"] == "True")
}

pub(super) fn node_ranges(node: &Value) -> (String, BTreeSet<String>) {
    let name = node["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let ranges = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
    (
        name,
        ranges
            .filter_map(|range| range.as_str().map(str::to_owned))
            .collect(),
    )
}

/// Ready endpoints in the slices of the demo: `default/web:http 10.244.0.5:8080`.
pub(super) fn ready_targets(slices: &Value) -> BTreeSet<String> {
    let mut targets = BTreeSet::new();
    for slice in items(slices) {
        let labels = &slice["metadata"]["labels"];
        if labels["endpointslice.kubernetes.io/managed-by"] != MANAGER {
            continue;
        }
        let service = labels["kubernetes.io/service-name"]
            .as_str()
            .unwrap_or_default();
        let namespace = slice["metadata"]["namespace"].as_str().unwrap_or_default();
        for port in slice["ports"].as_array().into_iter().flatten() {
            let (name, number) = (port["name"].as_str().unwrap_or_default(), &port["port"]);
            let endpoints = slice["endpoints"].as_array().into_iter().flatten();
            for endpoint in endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true) {
                let address = endpoint["addresses"][0].as_str().unwrap_or_default();
                let address: Option<IpAddr> = address.parse().ok();
                let number = number
                    .as_u64()
                    .and_then(|number| u16::try_from(number).ok());
                if let (Some(address), Some(number)) = (address, number) {
                    let target = SocketAddr::new(address, number);
                    targets.insert(format!("{namespace}/{service}:{name} {target}"));
                }
            }
        }
    }
    targets
}

pub(super) fn pod_addresses(pod: &Value) -> Vec<IpAddr> {
    let entries = pod["status"]["podIPs"].as_array().into_iter().flatten();
    let texts = entries.filter_map(|entry| entry["ip"].as_str());
    texts.filter_map(|text| text.parse().ok()).collect()
}
