//! Node objects, reduced to the fields that routes depend on.

use serde::{Deserialize, Deserializer};
use weft_model::{SharedStr, null_is_default};
use weft_providers::{Capabilities, Provider};
use weft_routes::{AddressKind, Blocks, Cidr, Node, NodeAddress, NodeCondition};
use weft_runtime::{Metadata, projection};

/// Label that excludes a node from routes unless its value is `false`: for machines that the
/// provider's network does not reach.
pub const EXCLUDE_LABEL: &str = "routes.weft.dev/exclude";

/// A Node as the informer keeps it.
#[derive(Debug, Deserialize)]
pub(crate) struct RouteNode {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: Spec,
    #[serde(default, deserialize_with = "null_is_default")]
    status: Status,
}

projection!(RouteNode, "", "v1", "nodes", "Node");

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Spec {
    // Texts and not ranges: one malformed value must not make the node undecodable.
    #[serde(rename = "podCIDRs", deserialize_with = "null_is_default")]
    pod_cidrs: Box<[SharedStr]>,
    #[serde(rename = "providerID")]
    provider_id: Option<SharedStr>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "null_is_default")]
    addresses: Box<[Address]>,
    #[serde(deserialize_with = "network_unavailable")]
    conditions: Option<NodeCondition>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Address {
    r#type: SharedStr,
    address: SharedStr,
}

/// Keeps only the condition that this controller writes. The others change with every heartbeat.
fn network_unavailable<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<NodeCondition>, D::Error> {
    #[derive(Deserialize)]
    struct Entry {
        r#type: SharedStr,
        status: SharedStr,
        #[serde(default)]
        reason: Option<SharedStr>,
    }
    let entries = Option::<Vec<Entry>>::deserialize(deserializer)?.unwrap_or_default();
    let ours = entries
        .into_iter()
        .find(|entry| &*entry.r#type == "NetworkUnavailable");
    Ok(ours.map(|entry| NodeCondition {
        status: &*entry.status == "True",
        reason: entry.reason.unwrap_or_default(),
    }))
}

impl RouteNode {
    /// The node for planning, with the provider's instance ID in place of `spec.providerID`.
    pub(crate) fn to_node(&self, provider: &dyn Provider, capabilities: &Capabilities) -> Node {
        let labels = &self.metadata.labels;
        let id = self.spec.provider_id.as_deref().filter(|id| !id.is_empty());
        let triggers = capabilities.trigger_labels.iter();
        Node {
            name: SharedStr::new(&self.metadata.name),
            uid: SharedStr::new(&self.metadata.uid),
            pod_cidrs: self
                .spec
                .pod_cidrs
                .iter()
                .map(|text| Cidr::parse(text))
                .collect(),
            blocks: Blocks::None,
            addresses: self.status.addresses.iter().map(Address::read).collect(),
            provider_id: id.and_then(|id| provider.instance(id)),
            excluded: labels
                .get(EXCLUDE_LABEL)
                .is_some_and(|value| value != "false"),
            own: false,
            instance_addresses: None,
            network_unavailable: self.status.conditions.clone(),
            triggers: triggers
                .filter_map(|label| labels.get(label))
                .map(SharedStr::new)
                .collect(),
        }
    }

    /// True if two states of a Node differ at most in a heartbeat.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.metadata.uid == other.metadata.uid
            && self.metadata.labels == other.metadata.labels
            && self.spec == other.spec
            && self.status == other.status
    }

    pub(crate) fn name(&self) -> &str {
        &self.metadata.name
    }

    pub(crate) fn uid(&self) -> &str {
        &self.metadata.uid
    }
}

impl Address {
    fn read(&self) -> NodeAddress {
        NodeAddress {
            kind: match &*self.r#type {
                "InternalIP" => AddressKind::InternalIp,
                "ExternalIP" => AddressKind::ExternalIp,
                _ => AddressKind::Name,
            },
            text: self.address.clone(),
        }
    }
}
