//! Invariants of the simulated cluster, numbered as in the table of `docs/ipam.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use weft_ipam::{
    ContainerResult, GrantName, NodeConfig, NodeName, Uid,
    allocator::{ClaimState, IpPool, PoolSource, Write},
    pool::{Key, State},
};
use weft_model::{IpFamily, Moment};

use super::{Agent, Cluster, PodPhase, Violation};

impl Cluster {
    /// Checks the invariants that are met after every step.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        self.one_owner_each()?;
        self.one_config_each()?;
        self.nothing_offered_in_use()?;
        self.nothing_comes_back()?;
        self.published_is_claimed()
    }

    /// I8: a deleted attachment is not made again by a late ADD. I22 is checked when the daemon
    /// decides.
    fn nothing_comes_back(&self) -> Result<(), Violation> {
        for agent in &self.agents {
            if let Some(flaw) = &agent.flaw {
                return Err(flaw.clone());
            }
            let made = |(key, until): &(&Key, &Moment)| {
                **until > self.now && agent.pool.attachments().contains_key(key)
            };
            if let Some((key, _)) = agent.deleted.iter().find(made) {
                return Err(format!("I8: {key} was deleted and is there again"));
            }
        }
        Ok(())
    }

    /// I1: no address belongs to two sandboxes, on one node or on two; I9: all families or none.
    fn one_owner_each(&self) -> Result<(), Violation> {
        let mut owners: BTreeMap<IpAddr, String> = BTreeMap::new();
        for agent in &self.agents {
            for (pod, addresses) in agent.running() {
                for address in addresses {
                    let owner = format!("{}/{pod}", agent.node);
                    if let Some(other) = owners.insert(*address, owner.clone()) {
                        return Err(format!("I1: {address} is {owner}'s and {other}'s"));
                    }
                }
            }
            let mut taken = BTreeSet::new();
            for (key, attachment) in agent.pool.attachments() {
                let families = attachment
                    .leases
                    .iter()
                    .map(|lease| IpFamily::of(lease.address));
                let families: BTreeSet<IpFamily> = families.collect();
                if families.len() != attachment.leases.len() || families.is_empty() {
                    return Err(format!("I9: {key} has {:?}", attachment.leases));
                }
                for lease in &attachment.leases {
                    if !taken.insert(lease.address) {
                        return Err(format!("I1: {} is {key}'s and another's", lease.address));
                    }
                }
            }
        }
        Ok(())
    }

    /// I2: no address is in two statuses.
    fn one_config_each(&self) -> Result<(), Violation> {
        let mut published: Vec<(IpNet, &NodeName)> = Vec::new();
        for config in self.api.view.configs.values() {
            for (_, entry) in config.status.entries() {
                let net = entry.net().map_err(|error| error.to_string())?;
                for (other, owner) in &published {
                    if net.contains(other) || other.contains(&net) {
                        return Err(format!("I2: {net} of {} is {owner}'s", config.name));
                    }
                }
                published.push((net, &config.name));
            }
        }
        Ok(())
    }

    /// I4: an offered address is not in use.
    fn nothing_offered_in_use(&self) -> Result<(), Violation> {
        for agent in &self.agents {
            let Some(config) = self.api.view.configs.get(&agent.node.as_str().into()) else {
                continue;
            };
            let entries = config.status.entries().map(|(_, entry)| entry);
            let offered: Vec<IpNet> = entries
                .filter(|entry| config.spec.not_in_use.contains(&entry.name))
                .filter_map(|entry| entry.net().ok())
                .collect();
            let held = agent.running().flat_map(|(_, addresses)| addresses);
            let attached = agent
                .pool
                .attachments()
                .values()
                .flat_map(|held| &held.leases);
            let attached = attached.map(|lease| &lease.address);
            for address in held.chain(attached) {
                if offered.iter().any(|net| net.contains(address)) {
                    return Err(format!(
                        "I4: {address} of {} is offered and in use",
                        agent.node
                    ));
                }
            }
        }
        Ok(())
    }

    /// I18: published addresses are claimed for their publisher. I19: claims do not overlap, and
    /// lie in the pool outside reserved addresses. Addresses of a Node's own CIDR need no claim.
    fn published_is_claimed(&self) -> Result<(), Violation> {
        let claims = self.claims();
        for (index, (net, id, ..)) in claims.iter().enumerate() {
            for (other, ..) in &claims[..index] {
                if net.contains(other) || other.contains(net) {
                    return Err(format!("I19: {id} ({net}) overlaps {other}"));
                }
            }
        }
        for config in self.api.view.configs.values() {
            for (_, entry) in config.status.entries() {
                let claimed = claims.iter().any(|(net, id, (uid, _), held)| {
                    *held && *id == entry.name && *uid == config.uid && Ok(*net) == entry.net()
                });
                let lent = config.owner.as_ref().and_then(|owner| self.lent.get(owner));
                let own = lent.and_then(|cidr| cidr.parse::<IpNet>().ok());
                let own = own.zip(entry.net().ok());
                if !claimed && !own.is_some_and(|(cidr, net)| cidr.contains(&net)) {
                    return Err(format!(
                        "I18: {} of {} is not claimed",
                        entry.ip, config.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// Every claim: network, name, config and Node, and whether it is held.
    fn claims(&self) -> Vec<(IpNet, GrantName, (Uid, Uid), bool)> {
        let mut claims = Vec::new();
        let wall = self.wall();
        for shard in self.api.view.shards.values() {
            let pool = &self.api.view.pools[&shard.pool];
            let prefix = match IpFamily::of(shard.range.addr()) {
                IpFamily::V4 => pool.block_v4,
                IpFamily::V6 => pool.block_v6,
            };
            for (net, claim) in shard.claims(prefix) {
                let held = claim.state == ClaimState::Held;
                let resting = matches!(claim.state, ClaimState::Cooldown(until) if until > wall);
                if held || resting {
                    let holder = &claim.holder;
                    let holder = (holder.config.clone(), holder.node_uid.clone());
                    claims.push((net, claim.id.clone(), holder, held));
                }
            }
        }
        claims
    }

    /// I5: only offered addresses are withdrawn, unless the Node is gone. I23: no name is used
    /// twice.
    pub(crate) fn check_write(
        &mut self,
        write: &Write,
        before: &BTreeMap<NodeName, NodeConfig>,
    ) -> Result<(), Violation> {
        let Write::Status { name, status, .. } = write else {
            return Ok(());
        };
        let config = &before[name];
        let node = self.api.view.nodes.get(name);
        let alive = node.is_some_and(|node| config.owner.as_ref() == Some(&node.uid));
        let kept: BTreeSet<_> = status.entries().map(|(_, entry)| &entry.name).collect();
        for (_, entry) in config.status.entries() {
            let offered = config.spec.not_in_use.contains(&entry.name);
            if !kept.contains(&entry.name) && !offered && alive {
                return Err(format!("I5: {} was taken from {name}", entry.ip));
            }
        }
        for (_, entry) in status.entries() {
            let meaning = (config.uid.clone(), entry.ip.clone());
            let known = self
                .names
                .entry(entry.name.clone())
                .or_insert_with(|| meaning.clone());
            if *known != meaning {
                return Err(format!(
                    "I23: {} was {known:?} and is {meaning:?}",
                    entry.name
                ));
            }
            let gone = config
                .status
                .entries()
                .all(|(_, old)| old.name != entry.name);
            if gone && self.withdrawn.contains(&entry.name) {
                return Err(format!("I23: {} was taken away and comes back", entry.name));
            }
        }
        for (_, entry) in config.status.entries() {
            if !kept.contains(&entry.name) {
                self.withdrawn.insert(entry.name.clone());
            }
        }
        Ok(())
    }

    /// In quiescence. I10: nothing is stuck; I19: every address is accounted for; I20: a node that
    /// lacks addresses is reported, and no free address is left that it could get.
    pub(crate) fn check_settled(&self) -> Result<(), Violation> {
        let claims = self.claims();
        for agent in &self.agents {
            let name = agent.node.as_str().into();
            let Some(config) = self.api.view.configs.get(&name) else {
                continue;
            };
            let node = self.api.view.nodes.get(&name);
            let ours = node.is_some_and(|node| Some(&node.uid) == config.owner.as_ref());
            if !ours || config.deleting {
                continue;
            }
            for (address, state) in agent.pool.states() {
                if matches!(state, State::Releasing { .. } | State::Programming) {
                    return Err(format!("I10: {address} of {} is still {state}", agent.node));
                }
            }
            if !config.spec.not_in_use.is_empty() {
                return Err(format!("I10: {} still offers", agent.node));
            }
            self.pods_are_covered(agent, config)?;
            let serving = node.and_then(|node| self.api.view.pool_of(node));
            let homeless = node.is_some_and(|node| node.pod_cidrs.is_empty());
            let Some(pool) =
                serving.filter(|pool| matches!(pool.source, PoolSource::Ranges(_)) || !homeless)
            else {
                continue;
            };
            let waits = agent.pods.iter().any(|pod| pod.phase == PodPhase::Asking);
            let full = Some(config.spec.requested) >= pool.scaler.max_ip_count;
            let families = IpFamily::ALL.map(|family| agent.pool.address_counts(family).cooling);
            if waits && !full && families == [0, 0] {
                let mut results = config.status.containers.iter();
                let reported = results.any(|nc| nc.result == Some(ContainerResult::SubnetFull));
                let free = self.free_addresses(pool);
                if !reported || free > 0 {
                    return Err(format!(
                        "I20: {} waits, reported {reported}, {free} free",
                        agent.node
                    ));
                }
            }
        }
        for (net, id, (uid, tenant), held) in claims {
            let owner = self
                .api
                .view
                .configs
                .values()
                .find(|config| config.uid == uid);
            let published = owner
                .is_some_and(|config| config.status.entries().any(|(_, entry)| entry.name == id));
            let lives = owner.is_some_and(|config| {
                let node = self.api.view.nodes.get(&config.name);
                node.is_some_and(|node| Some(&node.uid) == config.owner.as_ref())
            });
            if held && !published && lives {
                return Err(format!("I10: {id} ({net}) is claimed and not published"));
            }
            // Claims of a recreated config were moved to the new one.
            if held
                && owner.is_none()
                && self.api.view.nodes.values().any(|node| node.uid == tenant)
            {
                return Err(format!(
                    "I10: {id} ({net}) is claimed for a config that is gone"
                ));
            }
        }
        Ok(())
    }

    /// I10: addresses of Nodes that are gone for longer than the grace period are free.
    pub(crate) fn check_orphans(&self) -> Result<(), Violation> {
        let present: BTreeSet<&Uid> = self.api.view.nodes.values().map(|node| &node.uid).collect();
        for (net, id, (_, tenant), held) in self.claims() {
            if held && !present.contains(&tenant) {
                return Err(format!(
                    "I10: {id} ({net}) is claimed for {tenant}, which is gone"
                ));
            }
        }
        Ok(())
    }

    /// I5: addresses of pods were not withdrawn, also by a recreated config. In a Node's own CIDR
    /// no other node could have them.
    fn pods_are_covered(&self, agent: &Agent, config: &NodeConfig) -> Result<(), Violation> {
        let nets: Vec<IpNet> = (config.status.entries())
            .filter_map(|(_, entry)| entry.net().ok())
            .collect();
        let pools = &self.api.view.pools;
        for (pod, addresses) in agent.running() {
            for address in addresses {
                let covered = nets.iter().any(|net| net.contains(address));
                let shared = pools
                    .values()
                    .any(|pool| pool.range_of(IpNet::from(*address)).is_some());
                if !covered && shared {
                    return Err(format!("I5: {address} was taken from {}/{pod}", agent.node));
                }
            }
        }
        Ok(())
    }

    /// Number of free addresses of a pool, of the family that has the fewest.
    fn free_addresses(&self, pool: &IpPool) -> u64 {
        let PoolSource::Ranges(ranges) = &pool.source else {
            return 0;
        };
        let mut claims: Vec<IpNet> = self.claims().iter().map(|(net, ..)| *net).collect();
        claims.retain(|net| pool.range_of(*net).is_some());
        let count = |nets: &[IpNet], family: IpFamily| -> u64 {
            let nets = nets.iter().filter(|net| IpFamily::of(net.addr()) == family);
            nets.map(|net| 1_u64 << (net.max_prefix_len() - net.prefix_len()))
                .sum()
        };
        let families: BTreeSet<IpFamily> = ranges
            .iter()
            .map(|range| IpFamily::of(range.addr()))
            .collect();
        let free = families.into_iter().map(|family| {
            count(ranges, family) - count(&pool.reserved, family) - count(&claims, family)
        });
        free.min().unwrap_or_default()
    }
}
