//! A cluster of Services with five endpoints each.

use serde_json::{Value, json};

/// A Service with one port.
pub(crate) fn service(index: usize) -> Value {
    let ip = format!(
        "10.{}.{}.{}",
        96 + index / 50_000,
        (index / 200) % 250,
        index % 200 + 2
    );
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "bench", "name": format!("service-{index}")},
        "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip],
                 "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                 "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}})
}

/// Its slice; each `round` another address for the first endpoint.
pub(crate) fn slice(index: usize, round: usize) -> Value {
    let endpoints: Vec<Value> = (0..5)
        .map(|endpoint| {
            let first = if endpoint == 0 { round % 2 } else { 0 };
            let address = format!(
                "10.{}.{}.{}",
                128 + endpoint * 10 + first,
                (index / 200) % 250,
                index % 200 + 2
            );
            json!({"addresses": [address], "nodeName": format!("node-{endpoint}"),
                   "conditions": {"ready": true, "serving": true, "terminating": false}})
        })
        .collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": "bench", "name": format!("service-{index}-x"),
                     "labels": {"kubernetes.io/service-name": format!("service-{index}")}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]})
}
