//! Objects, decoded to what addresses depend on.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;
use weft_ipam::{
    ContainerResult, Entry, GrantName, NetworkContainer, NodeConfig, NodeSpec, NodeStatus, Phase,
    PodSketch, pool::PodIdentity, scaling::ScalerParameters,
};
use weft_model::SharedStr;
use weft_proxy::objects::null_is_default;
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

/// Of all annotations the one that names a static pod's sandbox.
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
    pub(crate) fn sketch(&self) -> PodSketch {
        let addresses = self.status.addresses.iter();
        PodSketch {
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

/// A NodeNetworkConfig, of Azure's group or of ours.
#[derive(Debug, Deserialize)]
pub(crate) struct NodeNetwork {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: NetworkSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    status: NetworkStatus,
}

projection!(NodeNetwork);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NetworkSpec {
    #[serde(rename = "requestedIPCount", deserialize_with = "null_is_default")]
    requested: i64,
    #[serde(rename = "ipsNotInUse", deserialize_with = "null_is_default")]
    not_in_use: Vec<GrantName>,
    #[serde(rename = "demandIPCount")]
    demand: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NetworkStatus {
    scaler: Option<ScalerParameters>,
    #[serde(deserialize_with = "null_is_default")]
    network_containers: Vec<Container>,
    status: Option<SharedStr>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    #[serde(deserialize_with = "null_is_default")]
    id: SharedStr,
    #[serde(deserialize_with = "null_is_default")]
    assignment_mode: SharedStr,
    #[serde(rename = "primaryIP")]
    primary: Option<SharedStr>,
    #[serde(rename = "primaryIPV6")]
    primary_v6: Option<SharedStr>,
    #[serde(deserialize_with = "null_is_default")]
    subnet_name: SharedStr,
    subnet_address_space: Option<SharedStr>,
    subnet_address_space_v6: Option<SharedStr>,
    default_gateway: Option<SharedStr>,
    default_gateway_v6: Option<SharedStr>,
    #[serde(rename = "ipAssignments", deserialize_with = "null_is_default")]
    assignments: Vec<Assignment>,
    #[serde(deserialize_with = "null_is_default")]
    version: i64,
    status: Option<SharedStr>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Assignment {
    #[serde(deserialize_with = "null_is_default")]
    name: GrantName,
    #[serde(deserialize_with = "null_is_default")]
    ip: SharedStr,
}

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
            // Of no consequence on a node.
            finalized: false,
            spec: NodeSpec {
                requested: self.spec.requested,
                not_in_use: self.spec.not_in_use.iter().cloned().collect(),
                demand: self.spec.demand,
            },
            status: NodeStatus {
                scaler: self.status.scaler,
                containers: (self.status.network_containers.iter())
                    .map(Container::to_container)
                    .collect(),
                phase: self.status.status.as_deref().and_then(phase),
            },
        }
    }
}

fn phase(text: &str) -> Option<Phase> {
    match text {
        "Updating" => Some(Phase::Updating),
        "Updated" => Some(Phase::Updated),
        "Error" => Some(Phase::Error),
        _ => None,
    }
}

impl Container {
    fn to_container(&self) -> NetworkContainer {
        let parsed = |texts: [&Option<SharedStr>; 2]| -> Vec<IpNet> {
            let texts = texts.into_iter().flatten();
            texts.filter_map(|text| text.parse().ok()).collect()
        };
        let gateways = [&self.default_gateway, &self.default_gateway_v6];
        let dynamic = &*self.assignment_mode != "static";
        NetworkContainer {
            id: self.id.as_str().into(),
            version: self.version,
            dynamic,
            subnet: self.subnet_name.clone(),
            subnets: parsed([&self.subnet_address_space, &self.subnet_address_space_v6]),
            gateways: (gateways.into_iter().flatten())
                .filter_map(|text| text.parse::<IpAddr>().ok())
                .collect(),
            entries: self.entries(dynamic),
            result: match self.status.as_deref() {
                Some("NCUpdateSuccess") => Some(ContainerResult::Success),
                Some("NCUpdateSubnetFullError") => Some(ContainerResult::SubnetFull),
                _ => None,
            },
        }
    }

    /// A static container's primary addresses are blocks of its own, named as they are written.
    fn entries(&self, dynamic: bool) -> Vec<Entry> {
        let own = [&self.primary, &self.primary_v6].into_iter().flatten();
        let own = own.filter(|text| !dynamic && !text.is_empty());
        own.map(|text| Entry {
            name: text.as_str().into(),
            ip: text.clone(),
        })
        .chain(self.assignments.iter().map(|assignment| Entry {
            name: assignment.name.clone(),
            ip: assignment.ip.clone(),
        }))
        .collect()
    }
}

/// A ClusterSubnetState: whether a subnet is nearly out of addresses.
#[derive(Debug, Deserialize)]
pub(crate) struct SubnetState {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    status: SubnetStatus,
}

projection!(SubnetState);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SubnetStatus {
    #[serde(deserialize_with = "null_is_default")]
    exhausted: bool,
}

impl SubnetState {
    pub(crate) fn is_exhausted(&self) -> bool {
        self.status.exhausted
    }
}
