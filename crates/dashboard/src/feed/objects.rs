//! Kubernetes objects, decoded to the fields that the page shows.

use std::sync::Arc;

use serde::Deserialize;
use weft_ipam::objects::{GROUP, NodeNetworkConfigSpec, NodeNetworkConfigStatus, VERSION};
use weft_model::{SharedStr, null_is_default};
use weft_proxy::objects::{Conditions, SERVICE_NAME_LABEL, ServiceSpec};
use weft_runtime::{Kind, Kinded, Metadata, projection};

use super::Source;

/// All objects of a cluster at one time, unordered.
#[derive(Debug, Default)]
pub struct Objects {
    /// Sync state of each kind.
    pub sources: Vec<Source>,
    /// All Nodes.
    pub nodes: Vec<Arc<Node>>,
    /// All Pods.
    pub pods: Vec<Arc<Pod>>,
    /// All Services.
    pub services: Vec<Arc<Service>>,
    /// All EndpointSlices.
    pub slices: Vec<Arc<Slice>>,
    /// All NodeNetworkConfigs; empty if the kind is not served.
    pub configs: Vec<Arc<NodeConfig>>,
}

/// A Node.
#[derive(Debug, Deserialize)]
pub struct Node {
    pub(super) metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(super) spec: NodeSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(super) status: NodeStatus,
}

projection!(Node, "", "v1", "nodes", "Node");

impl Node {
    /// True if the page shows both alike, as with an update that is only a heartbeat.
    pub(super) fn shows_the_same(&self, other: &Self) -> bool {
        self.spec == other.spec && self.status == other.status
    }
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    // Strings, not ranges: the page shows a malformed one too.
    #[serde(rename = "podCIDRs", deserialize_with = "null_is_default")]
    pub(super) pod_cidrs: Box<[SharedStr]>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct NodeStatus {
    #[serde(deserialize_with = "null_is_default")]
    pub(super) addresses: Box<[NodeAddress]>,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) conditions: Box<[Condition]>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct NodeAddress {
    pub(super) r#type: SharedStr,
    pub(super) address: SharedStr,
}

/// A condition of a Node or Pod, without its times.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Condition {
    r#type: SharedStr,
    status: SharedStr,
}

/// Value of a condition; `None` if it is absent or `Unknown`.
pub(super) fn condition(conditions: &[Condition], name: &str) -> Option<bool> {
    let mut conditions = conditions.iter();
    let found = conditions.find(|condition| &*condition.r#type == name)?;
    match &*found.status {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

/// A Pod.
#[derive(Debug, Deserialize)]
pub struct Pod {
    pub(super) metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(super) spec: PodSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(super) status: PodStatus,
}

projection!(Pod, "", "v1", "pods", "Pod");

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    pub(super) node_name: Option<SharedStr>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodStatus {
    pub(super) phase: SharedStr,
    #[serde(rename = "podIPs", deserialize_with = "null_is_default")]
    pub(super) pod_ips: Box<[PodAddress]>,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) conditions: Box<[Condition]>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodAddress {
    pub(super) ip: Box<str>,
}

/// A Service.
#[derive(Debug, Deserialize)]
pub struct Service {
    pub(super) metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(super) spec: ServiceSpec,
}

projection!(Service, "", "v1", "services", "Service");

/// An EndpointSlice.
#[derive(Debug, Deserialize)]
pub struct Slice {
    pub(super) metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(super) endpoints: Box<[SliceEndpoint]>,
}

projection!(
    Slice,
    "discovery.k8s.io",
    "v1",
    "endpointslices",
    "EndpointSlice"
);

impl Slice {
    /// Namespace and name of the Service it belongs to.
    pub(super) fn service(&self) -> (&str, &str) {
        let name = self.metadata.labels.get(SERVICE_NAME_LABEL);
        let namespace = self.metadata.namespace.as_deref();
        (namespace.unwrap_or_default(), name.unwrap_or_default())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SliceEndpoint {
    #[serde(deserialize_with = "null_is_default")]
    pub(super) addresses: Box<[Box<str>]>,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) conditions: Conditions,
    pub(super) node_name: Option<SharedStr>,
    pub(super) target_ref: Option<Target>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Target {
    pub(super) kind: SharedStr,
    pub(super) name: Box<str>,
}

/// A NodeNetworkConfig, whose name is that of its node.
#[derive(Debug, Deserialize)]
pub struct NodeConfig {
    pub(super) metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(super) spec: NodeNetworkConfigSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(super) status: NodeNetworkConfigStatus,
}

projection!(NodeConfig);

impl Kinded for NodeConfig {
    fn resource_kind() -> Kind {
        Kind::new(GROUP, VERSION, "nodenetworkconfigs", "NodeNetworkConfig")
    }
}
