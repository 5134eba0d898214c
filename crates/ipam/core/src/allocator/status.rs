//! The status of a NodeNetworkConfig: what it publishes, and its next version.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr};

use super::{
    Write,
    object::{Claim, IpPool, container_id},
    reconcile::Client,
};
use crate::{
    ContainerId, ContainerResult, Entry, GrantName, NetworkContainer, NodeConfig, NodeStatus,
    PoolName, UpdatePhase, range::address_count,
};

/// The decoded entries of a config.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    /// Readable entries.
    pub(super) entries: Vec<(GrantName, IpNet)>,
    /// All names, including those of unreadable entries.
    pub(super) names: BTreeSet<GrantName>,
    offered: BTreeSet<GrantName>,
    versions: BTreeMap<ContainerId, i64>,
    pool: PoolName,
}

impl Published {
    pub(super) fn read(config: &NodeConfig, pool: &PoolName) -> Self {
        let names: BTreeSet<GrantName> = config
            .status
            .entries()
            .map(|(_, entry)| entry.name.clone())
            .collect();
        let containers = config.status.containers.iter();
        let readable = config.status.entries();
        Self {
            entries: readable
                .filter_map(|(_, entry)| Some((entry.name.clone(), entry.net().ok()?)))
                .collect(),
            offered: config
                .spec
                .not_in_use
                .intersection(&names)
                .cloned()
                .collect(),
            names,
            versions: containers
                .map(|container| (container.id.clone(), container.version))
                .collect(),
            pool: pool.clone(),
        }
    }

    /// Version of the container that holds addresses of a range.
    pub(super) fn version(&self, range: IpNet) -> i64 {
        let id = container_id(&self.pool, range);
        self.versions.get(&id).copied().unwrap_or_default()
    }

    /// Number of addresses of a family that are not offered for release.
    pub(super) fn kept(&self, family: IpFamily) -> u64 {
        let of_family = |net: &IpNet| IpFamily::of(net.addr()) == family;
        self.entries
            .iter()
            .filter(|(name, net)| of_family(net) && !self.offered.contains(name))
            .map(|(_, net)| address_count(*net))
            .sum()
    }

    /// A number that grows with every change of any container.
    pub(super) fn age(&self) -> u64 {
        let versions = self
            .versions
            .values()
            .filter_map(|version| u64::try_from(*version).ok());
        versions.fold(0, u64::saturating_add)
    }
}

/// The status write that removes released entries and adds claimed ones; none if nothing changes.
pub(super) fn write_status(client: &Client<'_>, pool: &IpPool, ranges: &[IpNet]) -> Option<Write> {
    let before = &client.config.status;
    let mut status = before.clone();
    for container in &mut status.containers {
        let count = container.entries.len();
        container
            .entries
            .retain(|entry| !client.published.offered.contains(&entry.name));
        if container.entries.len() != count {
            container.version += 1;
        }
    }
    let mut families = BTreeSet::new();
    for range in ranges {
        // The first range of a family shows its gateway before there is an address.
        let container = if families.insert(IpFamily::of(range.addr())) {
            EmptyContainer::Add
        } else {
            EmptyContainer::Omit
        };
        let id = container_id(&pool.name, *range);
        publish(client, pool, *range, container, &mut status);
        let mut containers = status.containers.iter_mut();
        if let Some(container) = containers.find(|container| container.id == id) {
            container.result = Some(match client.missing {
                0 => ContainerResult::Success,
                _ => ContainerResult::SubnetFull,
            });
        }
    }
    status.scaler = Some(pool.scaler);
    status.phase = Some(match client.missing {
        0 => UpdatePhase::Updated,
        _ => UpdatePhase::Updating,
    });
    (status != *before).then(|| Write::Status {
        name: client.config.name.clone(),
        precondition: client.config.precondition(),
        status,
    })
}

/// The status write that adds pending claims to a node that another pool serves now; the node
/// itself releases what it does not need.
pub(super) fn publish_pending(
    client: &Client<'_>,
    pool: &IpPool,
    ranges: &[IpNet],
) -> Option<Write> {
    let mut status = client.config.status.clone();
    for range in ranges {
        publish(client, pool, *range, EmptyContainer::Omit, &mut status);
    }
    (status != client.config.status).then(|| Write::Status {
        name: client.config.name.clone(),
        precondition: client.config.precondition(),
        status,
    })
}

/// Treatment of a container that would have no addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EmptyContainer {
    Add,
    Omit,
}

/// Adds the claims of a range to a container.
fn publish(
    client: &Client<'_>,
    pool: &IpPool,
    range: IpNet,
    empty: EmptyContainer,
    status: &mut NodeStatus,
) {
    let pending = client.pending.iter().filter(|(net, _)| range.contains(net));
    let fresh: Vec<Entry> = pending
        .clone()
        .map(|(net, claim)| entry(*net, claim))
        .collect();
    let id = container_id(&pool.name, range);
    let same = |container: &&NetworkContainer| container.id == id;
    if !status.containers.iter().any(|container| same(&container))
        && (empty == EmptyContainer::Add || !fresh.is_empty())
    {
        status.containers.push(container(id.clone(), pool, range));
    }
    let Some(claimed) = pending.map(|(_, claim)| claim.version).max() else {
        return;
    };
    let old = client.config.status.containers.iter().find(same);
    let version = old.map_or(0, |old| old.version).max(claimed) + 1;
    let mut containers = status.containers.iter_mut();
    if let Some(container) = containers.find(|container| container.id == id) {
        container.version = version;
        container.entries.extend(fresh);
    }
}

fn entry(net: IpNet, claim: &Claim) -> Entry {
    let single = net.prefix_len() == net.max_prefix_len();
    let ip = if single {
        net.addr().to_string()
    } else {
        net.to_string()
    };
    Entry {
        name: claim.id.clone(),
        ip: SharedStr::new(&ip),
    }
}

fn container(id: ContainerId, pool: &IpPool, range: IpNet) -> NetworkContainer {
    NetworkContainer {
        id,
        version: 0,
        dynamic: true,
        subnet: SharedStr::new(pool.name.as_str()),
        subnets: vec![range],
        gateways: vec![pool.gateway(range)],
        entries: Vec::new(),
        result: None,
    }
}

/// The status of a node that is gone. Every container's version is incremented, also that of one
/// that published nothing yet, so that no earlier claim can be published any more.
pub(super) fn emptied(config: &NodeConfig, claimed: &[(&IpPool, IpNet, i64)]) -> NodeStatus {
    let mut status = config.status.clone();
    for (pool, range, _) in claimed {
        let id = container_id(&pool.name, *range);
        if !status.containers.iter().any(|container| container.id == id) {
            status.containers.push(container(id, pool, *range));
        }
    }
    for container in &mut status.containers {
        container.entries.clear();
        container.version += 1;
    }
    // Claims for a later version, because the status was set back, expire too.
    for (pool, range, version) in claimed {
        let id = container_id(&pool.name, *range);
        let container = status
            .containers
            .iter_mut()
            .find(|container| container.id == id);
        if let Some(container) = container {
            container.version = container.version.max(version + 1);
        }
    }
    status
}
