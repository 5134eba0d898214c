//! This node, as all loops of it see it: those of one process share one watch.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;
use weft_model::SharedStr;
use weft_proxy::{
    objects::{ZONE_LABEL, null_is_default},
    parse_sloppy,
};
use weft_runtime::{Metadata, SelectorError, WatchSpec, projection};

/// What to watch of nodes: this one.
pub(crate) fn watch(node: &str) -> Result<WatchSpec, SelectorError> {
    WatchSpec::all().fields(&format!("metadata.name={node}"))
}

/// This node.
#[derive(Debug, Deserialize)]
pub(crate) struct NodeView {
    pub(crate) metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) spec: NodeSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    status: NodeStatus,
}

projection!(NodeView, "", "v1", "nodes", "Node");

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSpec {
    #[serde(rename = "podCIDRs", deserialize_with = "null_is_default")]
    pod_cidrs: Vec<IpNet>,
    #[serde(deserialize_with = "null_is_default")]
    pub(crate) taints: Vec<Taint>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Taint {
    pub(crate) key: SharedStr,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    #[serde(deserialize_with = "null_is_default")]
    addresses: Vec<NodeAddress>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeAddress {
    r#type: SharedStr,
    address: SharedStr,
}

impl NodeView {
    pub(crate) fn zone(&self) -> Option<SharedStr> {
        self.metadata.labels.get(ZONE_LABEL).map(SharedStr::new)
    }

    pub(crate) fn pod_networks(&self) -> &[IpNet] {
        &self.spec.pod_cidrs
    }

    /// Internal addresses first, then external ones.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let of_type = |wanted: &'static str| {
            let all = self.status.addresses.iter();
            all.filter(move |address| &*address.r#type == wanted)
                .filter_map(|address| parse_sloppy(&address.address))
        };
        of_type("InternalIP").chain(of_type("ExternalIP")).collect()
    }
}
