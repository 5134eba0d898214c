//! The decoded form of a NodeNetworkConfig, and the address grants it contains.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr};

use crate::{
    ContainerId, GrantName, NodeName, Precondition, ResourceVersion, Uid,
    range::{Addresses, address_count},
    scaling::{MAXIMUM, ScalerParameters},
};

/// A NodeNetworkConfig as it was observed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeConfig {
    /// Name of the node and of the object.
    pub name: NodeName,
    /// UID of the object.
    pub uid: Uid,
    /// UID of the Node that it belongs to: the controller among its owner references.
    pub owner: Option<Uid>,
    /// Resource version as observed.
    pub version: ResourceVersion,
    /// True if it has a deletion timestamp.
    pub deleting: bool,
    /// True if our finalizer is set.
    pub finalized: bool,
    /// The node's request.
    pub spec: NodeSpec,
    /// The node's addresses.
    pub status: NodeStatus,
}

impl NodeConfig {
    /// Precondition that the object is unchanged since it was observed.
    pub fn precondition(&self) -> Precondition {
        Precondition {
            uid: self.uid.clone(),
            version: self.version.clone(),
        }
    }
}

/// The request of a node. Counts are in pods: the node gets as many addresses of each family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSpec {
    /// `requestedIPCount`: the number of addresses wanted in total.
    pub requested: i64,
    /// `ipsNotInUse`: the grants that the node releases.
    pub not_in_use: BTreeSet<GrantName>,
    /// `demandIPCount`, Weft's own: the part of the request that pods need; the rest is buffer.
    pub demand: Option<i64>,
}

/// The addresses of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeStatus {
    /// Scaling parameters for the node.
    pub scaler: Option<ScalerParameters>,
    /// Its addresses, grouped by subnet.
    pub containers: Vec<NetworkContainer>,
    /// Result of the controller's last attempt.
    pub phase: Option<UpdatePhase>,
}

impl NodeStatus {
    /// Every entry of every container.
    pub fn entries(&self) -> impl Iterator<Item = (&NetworkContainer, &Entry)> {
        self.containers.iter().flat_map(|container| {
            container
                .entries
                .iter()
                .map(move |entry| (container, entry))
        })
    }

    /// `assignedIPCount`: the addresses of all readable entries, of the family with fewer of them if
    /// there are two. A pod needs one of each, and `requestedIPCount` counts those of one family too.
    pub fn address_count(&self) -> u64 {
        let mut counts: BTreeMap<IpFamily, u64> = BTreeMap::new();
        let subnets = self
            .containers
            .iter()
            .flat_map(|container| &container.subnets);
        for net in subnets {
            counts.entry(IpFamily::of(net.addr())).or_default();
        }
        for net in self.entries().filter_map(|(_, entry)| entry.net().ok()) {
            *counts.entry(IpFamily::of(net.addr())).or_default() += address_count(net);
        }
        counts.into_values().min().unwrap_or(0)
    }
}

/// State of the controller's work on the request, `status.status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UpdatePhase {
    /// More addresses are being assigned.
    Updating,
    /// The request is met.
    Updated,
    /// The controller reports an error.
    Error,
}

/// `networkContainers[].status`, the values that Weft writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerResult {
    /// Written as `NCUpdateSuccess`.
    Success,
    /// Written as `NCUpdateSubnetFullError`.
    SubnetFull,
}

/// An entry of `networkContainers`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NetworkContainer {
    /// Id of the container.
    pub id: ContainerId,
    /// Incremented with every change of its addresses.
    pub version: i64,
    /// True if it grows and shrinks on request (`dynamic`).
    pub dynamic: bool,
    /// `subnetName`: the pool.
    pub subnet: SharedStr,
    /// The subnets whose prefix lengths pods get, at most one for each family.
    pub subnets: Vec<IpNet>,
    /// Gateways, at most one for each family.
    pub gateways: Vec<IpAddr>,
    /// `ipAssignments`: the granted addresses and blocks.
    pub entries: Vec<Entry>,
    /// Result of the last request.
    pub result: Option<ContainerResult>,
}

impl NetworkContainer {
    /// Prefix length that pods of this family get.
    pub fn prefix(&self, family: IpFamily) -> u8 {
        self.subnets
            .iter()
            .find(|net| IpFamily::of(net.addr()) == family)
            .map_or(family.width(), IpNet::prefix_len)
    }

    /// Gateway that pods of this family get.
    pub fn gateway(&self, family: IpFamily) -> Option<IpAddr> {
        let mut gateways = self.gateways.iter().copied();
        gateways.find(|gateway| IpFamily::of(*gateway) == family)
    }
}

/// An entry of `ipAssignments` as it was written: an address or a block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Name of the grant.
    pub name: GrantName,
    /// An address or a CIDR; not validated.
    pub ip: SharedStr,
}

impl Entry {
    /// Parses the address or CIDR.
    pub fn net(&self) -> Result<IpNet, EntryError> {
        let malformed = || EntryError::Malformed(self.ip.clone());
        let net = match self.ip.parse::<IpAddr>() {
            Ok(address) => IpNet::from(address),
            Err(_) => self.ip.parse::<IpNet>().map_err(|_| malformed())?,
        };
        if net.trunc() != net {
            return Err(malformed());
        }
        if address_count(net) > u64::from(MAXIMUM) {
            return Err(EntryError::TooLarge(net));
        }
        Ok(net)
    }
}

/// An entry that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum EntryError {
    /// Neither an address nor a CIDR without host bits.
    #[error("{0:?} is neither an address nor a CIDR")]
    Malformed(SharedStr),
    /// More addresses than a node may have.
    #[error("{0} has more addresses than a node may have")]
    TooLarge(IpNet),
}

/// An error in a NodeNetworkConfig. Everything else in it is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ConfigFlaw {
    /// It belongs to another Node, perhaps an earlier one of the same name.
    #[error("nodenetworkconfig {config} belongs to node uid {owner:?}, not to {expected}")]
    Foreign {
        /// Name of the object.
        config: NodeName,
        /// UID of the owner; none if it has none.
        owner: Option<Uid>,
        /// UID of this node.
        expected: Uid,
    },
    /// One entry cannot be used.
    #[error("nodenetworkconfig {config}: ipAssignment {name} skipped: {error}")]
    Entry {
        /// Name of the object.
        config: NodeName,
        /// Name of the entry.
        name: GrantName,
        /// Cause of the rejection.
        #[source]
        error: EntryError,
    },
    /// A name occurs twice: the container keeps its earlier entries.
    #[error(
        "nodenetworkconfig {config}: container {container} has {name} twice; keeping its earlier entries"
    )]
    DuplicateName {
        /// Name of the object.
        config: NodeName,
        /// Id of the container.
        container: ContainerId,
        /// The name that occurs twice.
        name: GrantName,
    },
    /// Two entries overlap: the container keeps its earlier entries.
    #[error(
        "nodenetworkconfig {config}: container {container}: {name} overlaps {other}; keeping its \
         earlier entries"
    )]
    Overlap {
        /// Name of the object.
        config: NodeName,
        /// Id of the container.
        container: ContainerId,
        /// The second entry.
        name: GrantName,
        /// The first entry.
        other: GrantName,
    },
}

/// Addresses of one entry, granted to a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub(crate) net: IpNet,
    pub(crate) container: ContainerId,
    pub(crate) version: i64,
}

impl Grant {
    pub(crate) fn addresses(&self) -> Addresses {
        Addresses::of(self.net)
    }

    pub(crate) fn family(&self) -> IpFamily {
        IpFamily::of(self.net.addr())
    }
}

/// The grants of all containers. A container that contradicts itself or an earlier one keeps the
/// grants it had.
pub(crate) fn read_grants(
    config: &NodeConfig,
    before: &BTreeMap<GrantName, Grant>,
) -> (BTreeMap<GrantName, Grant>, Vec<ConfigFlaw>) {
    let mut flaws = Vec::new();
    let mut grants: BTreeMap<GrantName, Grant> = BTreeMap::new();
    for container in &config.status.containers {
        let fresh = container_grants(config, container, &grants, &mut flaws);
        match fresh {
            Ok(fresh) => grants.extend(fresh),
            Err(flaw) => {
                flaws.push(flaw);
                let kept = before
                    .iter()
                    .filter(|(_, grant)| grant.container == container.id);
                for (name, grant) in kept {
                    let taken = grants.values().any(|other| overlap(grant.net, other.net));
                    if !taken && !grants.contains_key(name) {
                        grants.insert(name.clone(), grant.clone());
                    }
                }
            }
        }
    }
    (grants, flaws)
}

fn container_grants(
    config: &NodeConfig,
    container: &NetworkContainer,
    others: &BTreeMap<GrantName, Grant>,
    flaws: &mut Vec<ConfigFlaw>,
) -> Result<BTreeMap<GrantName, Grant>, ConfigFlaw> {
    let mut fresh: BTreeMap<GrantName, Grant> = BTreeMap::new();
    let mut by_start: BTreeMap<IpAddr, (IpNet, GrantName)> = others
        .iter()
        .map(|(name, grant)| (grant.net.network(), (grant.net, name.clone())))
        .collect();
    for entry in &container.entries {
        let net = match entry.net() {
            Ok(net) => net,
            Err(error) => {
                flaws.push(ConfigFlaw::Entry {
                    config: config.name.clone(),
                    name: entry.name.clone(),
                    error,
                });
                continue;
            }
        };
        if fresh.contains_key(&entry.name) || others.contains_key(&entry.name) {
            return Err(ConfigFlaw::DuplicateName {
                config: config.name.clone(),
                container: container.id.clone(),
                name: entry.name.clone(),
            });
        }
        let below = by_start.range(..=net.broadcast()).next_back();
        if let Some((_, (other, name))) = below
            && overlap(*other, net)
        {
            return Err(ConfigFlaw::Overlap {
                config: config.name.clone(),
                container: container.id.clone(),
                name: entry.name.clone(),
                other: name.clone(),
            });
        }
        by_start.insert(net.network(), (net, entry.name.clone()));
        let grant = Grant {
            net,
            container: container.id.clone(),
            version: container.version,
        };
        fresh.insert(entry.name.clone(), grant);
    }
    Ok(fresh)
}

fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}
