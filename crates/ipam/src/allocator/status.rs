//! What a node has, as its status says it.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr};

use super::{
    Plan, View, Write,
    object::{Claim, ClaimState, Holder, IpPool, Wall, container_id, first_usable, net},
    reconcile::{Client, grant},
    space::{ClaimChange, Space},
};
use crate::{
    ContainerId, ContainerResult, Entry, GrantName, NetworkContainer, NodeConfig, NodeStatus,
    Phase, PoolName,
    range::{address_count, number},
};

/// The entries of a config, read.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    /// Entries that can be read.
    pub(super) entries: Vec<(GrantName, IpNet)>,
    /// All names, also of entries that cannot be read.
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

    /// The version of the container that holds addresses of a range.
    pub(super) fn version(&self, range: IpNet) -> i64 {
        let id = container_id(&self.pool, range);
        self.versions.get(&id).copied().unwrap_or_default()
    }

    /// How many addresses of a family stay.
    pub(super) fn kept(&self, family: IpFamily) -> u64 {
        let of_family = |net: &IpNet| IpFamily::of(net.addr()) == family;
        self.entries
            .iter()
            .filter(|(name, net)| of_family(net) && !self.offered.contains(name))
            .map(|(_, net)| address_count(*net))
            .sum()
    }

    /// Grows with every change of any container.
    fn age(&self) -> u64 {
        let versions = self
            .versions
            .values()
            .filter_map(|version| u64::try_from(*version).ok());
        versions.fold(0, u64::saturating_add)
    }
}

/// The status of a node with what is offered taken out and what is claimed put in, if that changes
/// anything.
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
        let fresh: Vec<Entry> = client
            .pending
            .iter()
            .filter(|(net, _)| range.contains(net))
            .map(|(net, claim)| entry(*net, claim))
            .collect();
        let first = families.insert(IpFamily::of(range.addr()));
        let id = container_id(&pool.name, *range);
        let known = status.containers.iter().any(|container| container.id == id);
        if !known && (first || !fresh.is_empty()) {
            status.containers.push(container(id.clone(), pool, *range));
        }
        let container = status
            .containers
            .iter_mut()
            .find(|container| container.id == id);
        if let Some(container) = container {
            container.result = Some(match client.missing {
                0 => ContainerResult::Success,
                _ => ContainerResult::SubnetFull,
            });
            if !fresh.is_empty() {
                let old = before
                    .containers
                    .iter()
                    .find(|container| container.id == id);
                let claimed = client.pending.iter().filter(|(net, _)| range.contains(net));
                let claimed = claimed
                    .map(|(_, claim)| claim.version)
                    .max()
                    .unwrap_or_default();
                container.version = old.map_or(0, |old| old.version).max(claimed) + 1;
                container.entries.extend(fresh);
            }
        }
    }
    status.scaler = Some(pool.scaler);
    status.phase = Some(match client.missing {
        0 => Phase::Updated,
        _ => Phase::Updating,
    });
    (status != *before).then(|| Write::Status {
        name: client.config.name.clone(),
        precondition: client.config.precondition(),
        status,
    })
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

/// The status of a node that is gone. Every container moves on, also one in which nothing was
/// published yet: nobody can publish there any more what was claimed before.
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
    // What was claimed for a later version, which somebody set back, passes too.
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

/// Everything about a pool whose addresses are the nodes' own: nobody else can have them, so the
/// status itself is the claim.
pub(super) fn plan_own_cidrs(view: &View, pool: &IpPool, plan: &mut Plan) {
    for config in view.configs.values() {
        let Some(node) = view.node_of(config).filter(|_| !config.deleting) else {
            continue;
        };
        let serves = view
            .pool_of(node)
            .is_some_and(|serving| serving.name == pool.name);
        if !serves || pool.disabled || node.pod_cidrs.is_empty() {
            continue;
        }
        let holder = Holder {
            node: node.name.clone(),
            node_uid: node.uid.clone(),
            config: config.uid.clone(),
        };
        let published = Published::read(config, &pool.name);
        let reserved = own_reserved(pool, &node.pod_cidrs);
        // Names grow with the status, and differ from those of a config made again.
        let sequence = Wall((published.age() + 1) << 20);
        let uid: String = config.uid.as_str().chars().take(8).collect();
        let label = format!("{}-{uid}", pool.name);
        let mut space = Space::new(pool, &node.pod_cidrs, &reserved, [], sequence).labelled(label);
        for (name, net) in &published.entries {
            let claim = Claim {
                id: name.clone(),
                holder: holder.clone(),
                version: 0,
                state: ClaimState::Held,
            };
            space.adopt(*net, claim);
        }
        let mut clients = [Client {
            config,
            holder,
            published,
            pending: Vec::new(),
            claiming: false,
            missing: 0,
        }];
        grant(&mut clients, pool, &mut space, false, plan);
        let [mut client] = clients;
        let changes = space.into_drafts().flat_map(|draft| draft.changes);
        client.pending = changes
            .filter_map(|change| match change {
                ClaimChange::Claimed(net, claim) => Some((net, claim)),
                _ => None,
            })
            .collect();
        plan.writes
            .extend(write_status(&client, pool, &node.pod_cidrs));
    }
}

/// The network's own address, the gateway, and of IPv4 the broadcast address.
fn own_reserved(pool: &IpPool, ranges: &[IpNet]) -> Vec<IpNet> {
    let mut reserved = pool.reserved.clone();
    for range in ranges {
        let family = IpFamily::of(range.addr());
        let single = |address| net(number(address), family.width(), family);
        reserved.extend([single(range.network()), single(first_usable(*range))]);
        reserved.push(single(pool.gateway(*range)));
        if family == IpFamily::V4 {
            reserved.push(single(range.broadcast()));
        }
    }
    reserved.sort();
    reserved.dedup();
    reserved
}
