//! The Node object of this machine, decoded once for all agents of a process.
//!
//! Agents of one process share one watch of it, because they watch the same type.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;
use weft_model::{SharedStr, ZONE_LABEL, null_is_default, parse_sloppy};
use weft_runtime::{Metadata, SelectorError, WatchSpec, projection};

/// Selects this node and no other.
pub fn watch(node: &str) -> Result<WatchSpec, SelectorError> {
    WatchSpec::all().fields(&format!("metadata.name={node}"))
}

/// The fields of a Node that its own agents use.
#[derive(Debug, Deserialize)]
pub struct NodeView {
    /// Name, UID, labels.
    pub metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    /// The fields of `spec` that agents use.
    pub spec: NodeSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    status: NodeStatus,
}

projection!(NodeView, "", "v1", "nodes", "Node");

/// `spec` of a Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    #[serde(rename = "podCIDRs", deserialize_with = "null_is_default")]
    pod_cidrs: Vec<IpNet>,
    #[serde(deserialize_with = "null_is_default")]
    /// All taints of the Node.
    pub taints: Vec<Taint>,
}

/// A taint of a Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Taint key, such as `node.kubernetes.io/unreachable`.
    pub key: SharedStr,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    #[serde(deserialize_with = "null_is_default")]
    addresses: Vec<NodeAddress>,
    #[serde(rename = "nodeInfo", deserialize_with = "null_is_default")]
    info: NodeInfo,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeInfo {
    #[serde(
        rename = "containerRuntimeVersion",
        deserialize_with = "null_is_default"
    )]
    container_runtime: SharedStr,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeAddress {
    r#type: SharedStr,
    address: SharedStr,
}

impl NodeView {
    /// The zone, from its label.
    pub fn zone(&self) -> Option<SharedStr> {
        self.metadata.labels.get(ZONE_LABEL).map(SharedStr::new)
    }

    /// Pod CIDRs of the Node, from `spec.podCIDRs`.
    pub fn pod_networks(&self) -> &[IpNet] {
        &self.spec.pod_cidrs
    }

    /// Name and version of the container runtime, such as `containerd://2.3.7`; empty before the
    /// kubelet has written it.
    pub fn container_runtime(&self) -> &SharedStr {
        &self.status.info.container_runtime
    }

    /// Internal addresses first, then external ones.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let of_type = |wanted: &'static str| {
            let all = self.status.addresses.iter();
            all.filter(move |address| &*address.r#type == wanted)
                .filter_map(|address| parse_sloppy(&address.address))
        };
        of_type("InternalIP").chain(of_type("ExternalIP")).collect()
    }
}
