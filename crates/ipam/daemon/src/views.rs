//! Kubernetes objects, decoded to the fields that addresses depend on.
//!
//! Specs and statuses of address objects are decoded by the types of `weft-ipam`, as in the allocator;
//! only the metadata differs: here it is the runtime's slim one, since nothing is written back from it.

use serde::Deserialize;
use weft_ipam::{
    Entry, NodeConfig, NodeStatus, PodSummary,
    objects::{NodeNetworkConfigSpec, NodeNetworkConfigStatus, SubnetStatus},
    pool::PodIdentity,
};
use weft_model::{SharedStr, null_is_default};
use weft_runtime::{Annotations, Metadata, Object as _, Pairs, projection};

/// A Pod of this node.
#[derive(Debug, Deserialize)]
pub(crate) struct NodePod {
    metadata: Metadata<StaticHash>,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: PodSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    status: PodStatus,
}

projection!(NodePod, "", "v1", "pods", "Pod");

/// The only annotation that is decoded: the UID of a static pod's sandbox.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StaticHash {
    #[serde(rename = "kubernetes.io/config.hash")]
    hash: Option<SharedStr>,
}

impl Annotations for StaticHash {
    fn pairs(&self) -> Pairs<'_> {
        let hash = self.hash.as_deref();
        Box::new(
            hash.into_iter()
                .map(|hash| ("kubernetes.io/config.hash", hash)),
        )
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    #[serde(deserialize_with = "null_is_default")]
    host_network: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    #[serde(deserialize_with = "null_is_default")]
    phase: SharedStr,
    #[serde(rename = "podIPs", deserialize_with = "null_is_default")]
    addresses: Box<[PodAddress]>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodAddress {
    ip: SharedStr,
}

impl NodePod {
    pub(crate) fn summary(&self) -> PodSummary {
        let addresses = self.status.addresses.iter();
        PodSummary {
            identity: PodIdentity {
                namespace: SharedStr::interned(self.namespace().unwrap_or_default()),
                name: SharedStr::new(self.name()),
                uid: self.uid().map(Into::into),
            },
            static_uid: self.metadata.annotations.hash.as_deref().map(Into::into),
            host_network: self.spec.host_network,
            finished: matches!(&*self.status.phase, "Succeeded" | "Failed"),
            addresses: addresses
                .filter_map(|entry| entry.ip.parse().ok())
                .collect(),
        }
    }
}

/// A NodeNetworkConfig, of Azure's group or of Weft's.
#[derive(Debug, Deserialize)]
pub(crate) struct NodeNetwork {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: NodeNetworkConfigSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    status: NodeNetworkConfigStatus,
}

projection!(NodeNetwork);

impl NodeNetwork {
    pub(crate) fn to_config(&self) -> NodeConfig {
        let mut owners = self.owners().into_iter();
        let owner = owners.find(|owner| owner.controller && owner.kind == "Node");
        NodeConfig {
            name: self.name().into(),
            uid: (&*self.metadata.uid).into(),
            owner: owner.map(|owner| owner.uid.into()),
            version: self.resource_version().into(),
            deleting: self.is_terminating(),
            // Not used on a node.
            finalized: false,
            spec: self.spec.to_spec(),
            status: self.to_status(),
        }
    }

    /// The primary addresses of a static container are blocks, named by their text.
    fn to_status(&self) -> NodeStatus {
        let mut status = self.status.to_status();
        let records = self.status.network_containers.iter();
        for (container, record) in status.containers.iter_mut().zip(records) {
            if container.dynamic {
                continue;
            }
            let own = [&record.primary_ip, &record.primary_ip_v6].into_iter();
            let own = own.filter(|text| !text.is_empty()).map(|text| Entry {
                name: text.as_str().into(),
                ip: text.clone(),
            });
            container.entries.extend(own);
        }
        status
    }
}

/// A ClusterSubnetState: whether a subnet is nearly exhausted.
#[derive(Debug, Deserialize)]
pub(crate) struct SubnetState {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    status: SubnetStatus,
}

projection!(SubnetState);

impl SubnetState {
    pub(crate) fn is_exhausted(&self) -> bool {
        self.status.exhausted
    }
}
