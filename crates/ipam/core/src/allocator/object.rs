//! Pools, shards, claims and nodes as the allocator plans with them.

use std::{collections::BTreeMap, fmt, net::IpAddr, time::Duration};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_model::{IpFamily, LabelSelector, SharedStr};

use crate::{
    ContainerId, GrantName, NodeName, PoolName, ResourceVersion, Uid,
    range::{address, address_count, number},
    scaling::{DEFAULT_BATCH, ScalerParameters},
};

/// Wall-clock time in milliseconds since 1970, for timestamps that other machines read. A clock
/// that jumps makes a cooldown shorter or longer, and does no other harm.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct WallTime(pub u64);

impl WallTime {
    /// The time `wait` later.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(wait))
    }
}

/// Origin of the addresses of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolSource {
    /// These ranges, shared by all nodes.
    Ranges(Vec<IpNet>),
    /// Each node's own `spec.podCIDRs`.
    NodeCidrs,
}

/// Thresholds of exhaustion, in percent of free addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exhaustion {
    /// Below this the pool is nearly exhausted.
    pub enter: u8,
    /// From this on it is no longer nearly exhausted.
    pub leave: u8,
}

impl Default for Exhaustion {
    fn default() -> Self {
        Self {
            enter: 10,
            leave: 15,
        }
    }
}

/// A validated IPPool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpPool {
    /// Name of the pool and of the subnet.
    pub name: PoolName,
    /// Origin of its addresses.
    pub source: PoolSource,
    /// Addresses that are never assigned. In a node's own CIDRs the first two and, for IPv4, the
    /// last are reserved in addition.
    pub reserved: Vec<IpNet>,
    /// Gateway of each range; defaults to the first address after the network address.
    pub gateways: Vec<IpAddr>,
    /// Prefix length of a block of IPv4 addresses.
    pub block_v4: u8,
    /// Prefix length of a block of IPv6 addresses.
    pub block_v6: u8,
    /// Selector of the nodes that it serves.
    pub nodes: LabelSelector,
    /// True if no more addresses are assigned.
    pub disabled: bool,
    /// True if it has a deletion timestamp: no more addresses are assigned, and it stays until none
    /// is claimed.
    pub deleting: bool,
    /// True if our finalizer is set.
    pub finalized: bool,
    /// Scaling parameters of its nodes.
    pub scaler: ScalerParameters,
    /// Time between the release of a block and its reuse by another node.
    pub cooldown: Duration,
    /// Thresholds of exhaustion.
    pub exhaustion: Exhaustion,
}

impl IpPool {
    /// A pool with default settings, nothing reserved, and our finalizer set.
    pub fn new(name: &str, source: PoolSource) -> Self {
        Self {
            name: name.into(),
            source,
            reserved: Vec::new(),
            gateways: Vec::new(),
            block_v4: 28,
            block_v6: 124,
            nodes: LabelSelector::equalities([]),
            disabled: false,
            deleting: false,
            finalized: true,
            scaler: ScalerParameters {
                batch_size: Some(i64::from(DEFAULT_BATCH)),
                request_threshold_percent: Some(50),
                release_threshold_percent: Some(150),
                max_ip_count: Some(250),
            },
            cooldown: Duration::from_secs(30),
            exhaustion: Exhaustion::default(),
        }
    }

    /// Prefix length of a block in a range: the range's own if that is smaller than a block.
    pub fn block_prefix(&self, range: IpNet) -> u8 {
        let prefix = match IpFamily::of(range.addr()) {
            IpFamily::V4 => self.block_v4.min(32),
            IpFamily::V6 => self.block_v6.min(128),
        };
        prefix.max(range.prefix_len())
    }

    /// The range that contains a network.
    pub fn range_of(&self, net: IpNet) -> Option<IpNet> {
        match &self.source {
            PoolSource::NodeCidrs => None,
            PoolSource::Ranges(ranges) => ranges.iter().copied().find(|range| range.contains(&net)),
        }
    }

    /// Prefix length of a shard of a range: 256 blocks, or the whole range.
    pub(crate) fn shard_prefix(&self, range: IpNet) -> u8 {
        let prefix = self.block_prefix(range).saturating_sub(8);
        prefix.max(range.prefix_len())
    }

    /// Gateway of a range.
    pub(crate) fn gateway(&self, range: IpNet) -> IpAddr {
        let mut gateways = self.gateways.iter().copied();
        gateways
            .find(|gateway| range.contains(gateway))
            .unwrap_or_else(|| first_usable(range))
    }
}

/// The container of a node's status that holds addresses of a range.
pub(crate) fn container_id(pool: &PoolName, range: IpNet) -> ContainerId {
    ContainerId::from(format!("{pool}-{range}"))
}

/// The address after the network address.
pub(crate) fn first_usable(range: IpNet) -> IpAddr {
    let family = IpFamily::of(range.addr());
    address(number(range.network()).saturating_add(1), family)
}

/// The fields of a Node that decide about addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Name of the node.
    pub name: NodeName,
    /// UID of the Node.
    pub uid: Uid,
    /// Resource version as observed.
    pub version: ResourceVersion,
    /// Labels of the Node.
    pub labels: BTreeMap<SharedStr, SharedStr>,
    /// The pod CIDRs of the Node, `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
}

/// The holder of a claim: a NodeNetworkConfig, because its versions fence publication.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holder {
    /// Name of the node.
    pub node: NodeName,
    /// UID of the Node.
    pub node_uid: Uid,
    /// UID of the NodeNetworkConfig; for pod CIDRs the Node's again.
    pub config: Uid,
}

/// Lifecycle of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ClaimState {
    /// Reserved for its holder.
    Held,
    /// Released; not to be claimed by any node before this time.
    Cooldown(WallTime),
}

/// A claim of a block or an address by a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Claim {
    /// Name of the entry that it becomes.
    pub id: GrantName,
    /// The node that holds it.
    pub holder: Holder,
    /// Version of the holder's container at which the claim may be published, and at no other:
    /// once the container has moved on without it, it never will be.
    pub version: i64,
    /// Held, or in cooldown.
    pub state: ClaimState,
}

/// A block with at least one claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Block {
    /// Claimed as a whole.
    Whole(Claim),
    /// Single addresses, by offset.
    Split(BTreeMap<u32, Claim>),
}

/// An IPPoolShard: the claims in a part of a pool. Written only if unchanged since it was read, so
/// no two writers can claim the same address, whichever is the leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// Name of the pool.
    pub pool: PoolName,
    /// Part of the pool.
    pub range: IpNet,
    /// Resource version as read; `None` if the object does not exist yet.
    pub version: Option<ResourceVersion>,
    /// Number of the last claim ever made here, so that no name is reused.
    pub sequence: u64,
    /// Blocks with at least one claim, by number.
    pub blocks: BTreeMap<u32, Block>,
}

impl Shard {
    /// A shard without claims. The clock keeps its claim names apart from those of a shard that was
    /// lost.
    pub fn new(pool: PoolName, range: IpNet, now: WallTime) -> Self {
        Self {
            pool,
            range,
            version: None,
            sequence: now.0,
            blocks: BTreeMap::new(),
        }
    }

    /// Name of the object, from the pool's name and the range.
    pub fn object_name(&self) -> String {
        let range = self.range.to_string().replace([':', '.', '/'], "-");
        format!("{}-{range}", self.pool)
    }

    /// Every claim with the addresses it covers; `block_prefix` is the prefix length of a block.
    pub fn claims(&self, block_prefix: u8) -> impl Iterator<Item = (IpNet, &Claim)> {
        let family = IpFamily::of(self.range.addr());
        let base = number(self.range.network());
        let width = family.width() - block_prefix;
        let start = move |index: u32| base + (u128::from(index) << width);
        self.blocks.iter().flat_map(move |(index, block)| {
            let start = start(*index);
            let claims: Vec<(IpNet, &Claim)> = match block {
                Block::Whole(claim) => vec![(net(start, block_prefix, family), claim)],
                Block::Split(claims) => claims
                    .iter()
                    .map(|(offset, claim)| {
                        let start = start + u128::from(*offset);
                        (net(start, family.width(), family), claim)
                    })
                    .collect(),
            };
            claims
        })
    }
}

pub(crate) fn net(start: u128, prefix: u8, family: IpFamily) -> IpNet {
    let address = address(start, family);
    IpNet::new(address, prefix).unwrap_or_else(|_| IpNet::from(address))
}

/// Number of addresses of a network that are not reserved.
pub(crate) fn unreserved(range: IpNet, reserved: &[IpNet]) -> u64 {
    let taken: u64 = IpNet::aggregate(&reserved.to_vec())
        .into_iter()
        .map(|net| {
            if range.contains(&net) {
                address_count(net)
            } else if net.contains(&range) {
                address_count(range)
            } else {
                0
            }
        })
        .sum();
    address_count(range).saturating_sub(taken)
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}", self.id, self.holder.node)
    }
}
