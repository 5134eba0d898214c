//! A NodeNetworkConfig, as far as it matters here.

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
    /// The node's name, and its own.
    pub name: NodeName,
    /// Its identity.
    pub uid: Uid,
    /// The Node that it belongs to: the controller among its owner references.
    pub owner: Option<Uid>,
    /// Its state.
    pub version: ResourceVersion,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// Whether our finalizer is on it.
    pub finalized: bool,
    /// What the node wants.
    pub spec: NodeSpec,
    /// What the node has.
    pub status: NodeStatus,
}

impl NodeConfig {
    /// That it is still as it was observed.
    pub fn precondition(&self) -> Precondition {
        Precondition {
            uid: self.uid.clone(),
            version: self.version.clone(),
        }
    }
}

/// What a node wants. Counts are pods: of each family it gets so many addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSpec {
    /// `requestedIPCount`.
    pub requested: i64,
    /// `ipsNotInUse`: what the node gives back.
    pub not_in_use: BTreeSet<GrantName>,
    /// `demandIPCount`, ours: how many of the requested are needed and not buffer.
    pub demand: Option<i64>,
}

/// What a node has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeStatus {
    /// How the node is to scale.
    pub scaler: Option<ScalerParameters>,
    /// Its addresses, grouped by subnet.
    pub containers: Vec<NetworkContainer>,
    /// What the controller says about its last attempt.
    pub phase: Option<Phase>,
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

    /// `assignedIPCount`: all addresses of all entries that can be read.
    pub fn address_count(&self) -> u64 {
        self.entries()
            .filter_map(|(_, entry)| entry.net().ok())
            .map(address_count)
            .sum()
    }
}

/// `status.status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// More is to come.
    Updating,
    /// Everything asked for is there.
    Updated,
    /// Something is wrong.
    Error,
}

/// `networkContainers[].status`, as far as we write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerResult {
    /// `NCUpdateSuccess`.
    Success,
    /// `NCUpdateSubnetFullError`.
    SubnetFull,
}

/// An entry of `networkContainers`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NetworkContainer {
    /// Its id.
    pub id: ContainerId,
    /// Grows at every change of its addresses.
    pub version: i64,
    /// Whether it grows and shrinks on request (`dynamic`).
    pub dynamic: bool,
    /// `subnetName`: the pool.
    pub subnet: SharedStr,
    /// The subnets whose prefix lengths pods get, at most one for each family.
    pub subnets: Vec<IpNet>,
    /// Gateways, at most one for each family.
    pub gateways: Vec<IpAddr>,
    /// `ipAssignments`.
    pub entries: Vec<Entry>,
    /// The result of the last request.
    pub result: Option<ContainerResult>,
}

impl NetworkContainer {
    /// The prefix length that pods of this family get.
    pub fn prefix(&self, family: IpFamily) -> u8 {
        self.subnets
            .iter()
            .find(|net| IpFamily::of(net.addr()) == family)
            .map_or(family.width(), IpNet::prefix_len)
    }

    /// The gateway that pods of this family get.
    pub fn gateway(&self, family: IpFamily) -> Option<IpAddr> {
        let mut gateways = self.gateways.iter().copied();
        gateways.find(|gateway| IpFamily::of(*gateway) == family)
    }
}

/// An entry of `ipAssignments` as it was written: an address or a block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Its name.
    pub name: GrantName,
    /// An address or a CIDR, unless it is neither.
    pub ip: SharedStr,
}

impl Entry {
    /// What it means.
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

/// Why an entry is not used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum EntryError {
    /// Neither an address nor a CIDR without host bits.
    #[error("{0:?} is neither an address nor a CIDR")]
    Malformed(SharedStr),
    /// More addresses than a node may have.
    #[error("{0} has more addresses than a node may have")]
    TooLarge(IpNet),
}

/// What is wrong with a NodeNetworkConfig; whatever else it holds is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ConfigFlaw {
    /// It belongs to another Node, perhaps one that had our name before.
    #[error("nodenetworkconfig {config} belongs to node uid {owner:?}, not to {expected}")]
    Foreign {
        /// Its name.
        config: NodeName,
        /// Whose it is.
        owner: Option<Uid>,
        /// Who we are.
        expected: Uid,
    },
    /// One entry cannot be used.
    #[error("nodenetworkconfig {config}: ipAssignment {name} is skipped: {error}")]
    Entry {
        /// The object.
        config: NodeName,
        /// The entry.
        name: GrantName,
        /// Why.
        #[source]
        error: EntryError,
    },
    /// A name stands there twice: the container stays as it was.
    #[error("nodenetworkconfig {config}: container {container} has {name} twice; kept as it was")]
    DuplicateName {
        /// The object.
        config: NodeName,
        /// The container.
        container: ContainerId,
        /// The name.
        name: GrantName,
    },
    /// Addresses stand there twice: the container stays as it was.
    #[error(
        "nodenetworkconfig {config}: container {container}: {name} overlaps {other}; kept as it was"
    )]
    Overlap {
        /// The object.
        config: NodeName,
        /// The container.
        container: ContainerId,
        /// The entry that came second.
        name: GrantName,
        /// The entry that was there.
        other: GrantName,
    },
}

/// What one entry gives to a node.
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
