//! A projection of Pod with the fields that a node agent reads.

use std::net::IpAddr;

use serde::Deserialize;
use weft_model::SharedStr;
use weft_runtime::{Metadata, projection};

/// Keeps the same fields as `keepFields` of the peer.
#[derive(Debug, Deserialize)]
pub(super) struct SlimPod {
    metadata: Metadata,
    #[serde(default)]
    #[expect(dead_code, reason = "kept in memory, as a consumer would")]
    spec: Spec,
    #[serde(default)]
    #[expect(dead_code, reason = "kept in memory, as a consumer would")]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<SharedStr>,
    host_network: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<SharedStr>,
    #[serde(rename = "podIPs")]
    pod_ips: Box<[PodIp]>,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "kept in memory, as a consumer would")]
struct PodIp {
    ip: IpAddr,
}

projection!(SlimPod, "", "v1", "pods", "Pod");
