//! The objects that the allocator watches, decoded to the fields it needs.
//!
//! Address objects are decoded by the types of `weft-ipam` with their whole metadata, because decisions
//! depend on finalizers and owners, and writes on the version.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use weft_ipam::{
    NodeConfig,
    allocator::Node,
    objects::{ClusterSubnetState, GROUP, IpPool, IpPoolShard, Meta, NodeNetworkConfig, VERSION},
};
use weft_model::{SharedStr, null_is_default};
use weft_runtime::{Kind, Kinded, Metadata, Object, Owner, Pairs, projection};

/// A NodeNetworkConfig, converted when it is decoded.
#[derive(Debug)]
pub(super) struct ConfigView {
    pub(super) meta: Meta,
    pub(super) config: NodeConfig,
}

impl<'de> Deserialize<'de> for ConfigView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = NodeNetworkConfig::deserialize(deserializer)?;
        Ok(Self {
            config: object.to_config(),
            meta: object.metadata,
        })
    }
}

/// An IPPool.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct PoolView(pub(super) IpPool);

/// An IPPoolShard.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct ShardView(pub(super) IpPoolShard);

/// A ClusterSubnetState.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct StateView(pub(super) ClusterSubnetState);

macro_rules! object {
    ($type:ty, $meta:expr, $plural:literal, $kind:literal) => {
        impl Object for $type {
            fn name(&self) -> &str {
                &meta_of(self, $meta).name
            }
            fn namespace(&self) -> Option<&str> {
                meta_of(self, $meta).namespace.as_deref()
            }
            fn uid(&self) -> Option<&str> {
                Some(&meta_of(self, $meta).uid)
            }
            fn resource_version(&self) -> &str {
                &meta_of(self, $meta).resource_version
            }
            fn generation(&self) -> Option<i64> {
                meta_of(self, $meta).generation
            }
            fn is_terminating(&self) -> bool {
                meta_of(self, $meta).deletion_timestamp.is_some()
            }
            fn labels(&self) -> Pairs<'_> {
                let labels = meta_of(self, $meta).labels.iter();
                Box::new(labels.map(|(key, value)| (key.as_str(), value.as_str())))
            }
            fn annotations(&self) -> Pairs<'_> {
                Box::new(std::iter::empty())
            }
            fn owners(&self) -> Vec<Owner<'_>> {
                // No controller maps these kinds to their owners.
                Vec::new()
            }
        }
        impl Kinded for $type {
            fn resource_kind() -> Kind {
                Kind::new(GROUP, VERSION, $plural, $kind)
            }
        }
    };
}

object!(
    ConfigView,
    |view| &view.meta,
    "nodenetworkconfigs",
    "NodeNetworkConfig"
);
object!(PoolView, |view| &view.0.metadata, "ippools", "IPPool");
object!(
    ShardView,
    |view| &view.0.metadata,
    "ippoolshards",
    "IPPoolShard"
);
object!(
    StateView,
    |view| &view.0.metadata,
    "clustersubnetstates",
    "ClusterSubnetState"
);

fn meta_of<T>(view: &T, meta: impl FnOnce(&T) -> &Meta) -> &Meta {
    meta(view)
}

/// A Node.
#[derive(Debug, Deserialize)]
pub(super) struct NodeView {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: Spec,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Spec {
    // Texts and not ranges: one malformed value must not hide the node.
    #[serde(rename = "podCIDRs", deserialize_with = "null_is_default")]
    pod_cidrs: Box<[SharedStr]>,
}

projection!(NodeView, "", "v1", "nodes", "Node");

impl NodeView {
    pub(super) fn to_node(&self) -> Node {
        let labels = self.metadata.labels.pairs();
        Node {
            name: (*self.metadata.name).into(),
            uid: (*self.metadata.uid).into(),
            version: (*self.metadata.resource_version).into(),
            labels: labels
                .map(|(key, value)| (SharedStr::interned(key), SharedStr::interned(value)))
                .collect::<BTreeMap<_, _>>(),
            pod_cidrs: self
                .spec
                .pod_cidrs
                .iter()
                .filter_map(|text| text.parse::<IpNet>().ok())
                .map(|net| net.trunc())
                .collect(),
        }
    }

    /// True if two states of a Node differ at most in a heartbeat.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.metadata.uid == other.metadata.uid
            && self.metadata.labels == other.metadata.labels
            && self.spec == other.spec
    }
}
