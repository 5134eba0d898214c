//! Blocks of address pools that nodes hold, from their NodeNetworkConfigs.
//!
//! The controller does not wait for them. While they cannot be listed, for example because their
//! kind is not installed, pod CIDRs are routed and existing routes to nodes stay.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use weft_ipam::objects::NetworkObjects;
use weft_model::{SharedStr, null_is_default};
use weft_routes::Blocks;
use weft_runtime::{Change, Kind, Metadata, Object as _, projection};

/// The kind NodeNetworkConfig in the group of `objects`.
pub(crate) fn network_kind(objects: &NetworkObjects) -> Kind {
    let [group, version, plural, kind] = objects.node_network_configs();
    Kind::new(group, version, plural, kind)
}

/// A NodeNetworkConfig, reduced to the ranges that are routed.
#[derive(Debug, Deserialize)]
pub(crate) struct NodeBlocks {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    status: Status,
}

projection!(NodeBlocks);

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "null_is_default")]
    network_containers: Vec<Container>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    #[serde(deserialize_with = "ranges")]
    ip_assignments: Box<[IpNet]>,
}

/// Parses addresses and blocks. Invalid entries are skipped; the IPAM daemon reports them.
fn ranges<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<[IpNet]>, D::Error> {
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        ip: SharedStr,
    }
    let entries = Option::<Vec<Entry>>::deserialize(deserializer)?.unwrap_or_default();
    let nets = entries.iter().filter_map(|entry| {
        let single = entry.ip.parse::<IpAddr>().map(IpNet::from);
        single.ok().or_else(|| entry.ip.parse().ok())
    });
    Ok(nets.collect())
}

impl NodeBlocks {
    /// The blocks of the node with this UID; unknown if the object belongs to a former node of the
    /// same name.
    pub(super) fn of_node(&self, uid: &str) -> Blocks {
        if self.owner().is_some_and(|owner| owner != uid) {
            return Blocks::Unknown;
        }
        let containers = self.status.network_containers.iter();
        Blocks::known(containers.flat_map(|container| container.ip_assignments.iter().copied()))
    }

    /// UID of the Node that it belongs to.
    fn owner(&self) -> Option<&str> {
        let mut owners = self.owners().into_iter();
        let owner = owners.find(|owner| owner.controller && owner.kind == "Node");
        owner.map(|owner| owner.uid)
    }

    /// True if two states say the same about blocks: daemons write their requests into the object,
    /// too.
    fn is_like(&self, other: &Self) -> bool {
        self.status == other.status && self.owner() == other.owner()
    }
}

/// State of knowledge about the blocks of one node.
#[derive(Clone, Debug)]
pub(super) enum Holding {
    /// Blocks are not routed.
    Off,
    /// No list yet, or the object cannot be decoded.
    Unknown,
    /// The node's object; a node without one holds no blocks.
    Known(Option<Arc<NodeBlocks>>),
}

impl Holding {
    /// The blocks for planning.
    pub(super) fn blocks(&self, uid: &str) -> Blocks {
        match self {
            Self::Off => Blocks::None,
            Self::Unknown => Blocks::Unknown,
            Self::Known(None) => Blocks::known([]),
            Self::Known(Some(object)) => object.of_node(uid),
        }
    }
}

/// NodeNetworkConfigs by node; `None` for one that cannot be decoded.
type ByNode = HashMap<Box<str>, Option<Arc<NodeBlocks>>>;

/// The blocks of all nodes, as the watch delivers them.
#[derive(Debug)]
pub(super) enum BlockList {
    /// Blocks are not routed.
    Off,
    /// The first list is not complete, or the kind is not served. A part of a list must not be
    /// visible: nodes that it lacks would seem to hold nothing.
    Unknown(ByNode),
    /// All objects.
    Known(ByNode),
}

impl Default for BlockList {
    fn default() -> Self {
        Self::Unknown(ByNode::new())
    }
}

/// The nodes whose blocks changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BlockChange {
    /// All: they became known or unknown.
    All,
    /// The node of this name.
    Of(Box<str>),
}

impl BlockList {
    /// Takes in a change; returns the nodes whose blocks are different now.
    pub(super) fn apply(&mut self, change: Change<NodeBlocks>) -> Option<BlockChange> {
        let (by_node, known) = match self {
            Self::Off => return None,
            Self::Unknown(by_node) => (by_node, false),
            Self::Known(by_node) => (by_node, true),
        };
        let (name, same): (Box<str>, bool) = match change {
            Change::Added { new, .. } => {
                let name: Box<str> = new.name().into();
                by_node.insert(name.clone(), Some(new));
                (name, false)
            }
            Change::Updated { old, new, .. } => {
                let name: Box<str> = new.name().into();
                let same = new.is_like(&old);
                // The state before may have been one that cannot be decoded.
                let before = by_node.insert(name.clone(), Some(new));
                (name, same && matches!(before, Some(Some(_))))
            }
            Change::Deleted { last, .. } => {
                by_node.remove(last.name());
                (last.name().into(), false)
            }
            Change::Undecodable(object) if object.deleted => {
                by_node.remove(&*object.key.name);
                ((&*object.key.name).into(), false)
            }
            Change::Undecodable(object) => {
                tracing::error!(key = %object.key, error = object.error, "cannot decode NodeNetworkConfig");
                by_node.insert((&*object.key.name).into(), None);
                ((&*object.key.name).into(), false)
            }
            Change::Synced => {
                *self = Self::Known(std::mem::take(by_node));
                return Some(BlockChange::All);
            }
            Change::Closed(_) => {
                tracing::warn!(
                    "watch of NodeNetworkConfigs ended; routes to nodes stay until it is restored"
                );
                *self = Self::default();
                return known.then_some(BlockChange::All);
            }
        };
        (known && !same).then_some(BlockChange::Of(name))
    }

    /// The present knowledge about the blocks of a node.
    pub(super) fn of(&self, node: &str) -> Holding {
        match self {
            Self::Off => Holding::Off,
            Self::Unknown(_) => Holding::Unknown,
            Self::Known(by_node) => match by_node.get(node) {
                None => Holding::Known(None),
                Some(None) => Holding::Unknown,
                Some(Some(object)) => Holding::Known(Some(object.clone())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(owner: &str, entries: &str) -> NodeBlocks {
        let text = format!(
            r#"{{"metadata":{{"name":"n1","ownerReferences":[{{"apiVersion":"v1","kind":"Node",
            "name":"n1","uid":"{owner}","controller":true}}]}},"status":{{"networkContainers":
            [{{"ipAssignments":{entries}}},{{"ipAssignments":null}}]}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn addresses_and_blocks_are_read_and_garbage_is_passed_over() {
        let entries = r#"[{"name":"a","ip":"10.1.0.16/28"},{"ip":"10.1.1.7"},{"ip":"fd00::/124"},
            {"ip":"x"},{}]"#;
        let nets = ["10.1.0.16/28", "10.1.1.7/32", "fd00::/124"];
        let expected = Blocks::known(nets.map(|net| net.parse().unwrap()));
        assert_eq!(object("uid", entries).of_node("uid"), expected);
    }

    #[test]
    fn an_object_of_a_former_node_says_nothing_about_its_successor() {
        let former = object("former", "[]");
        assert_eq!(former.of_node("uid"), Blocks::Unknown);
    }
}
