use std::{collections::BTreeMap, fmt, net::IpAddr, time::Duration};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_model::{IpFamily, LabelSelector, SharedStr};

use crate::{
    ContainerId, GrantName, NodeName, PoolName, ResourceVersion, Uid,
    range::{address, address_count, number},
    scaling::{DEFAULT_BATCH, ScalerParameters},
};

/// Milliseconds since 1970, as a machine's clock shows them: what is written for other machines to
/// read. A clock that jumps makes a cooldown shorter or longer, and nothing worse.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Wall(pub u64);

impl Wall {
    /// So much later.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(wait))
    }
}

/// Where the addresses of a pool come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolSource {
    /// These ranges, shared by all nodes.
    Ranges(Vec<IpNet>),
    /// Each node's own `spec.podCIDRs`.
    NodeCidrs,
}

/// When a pool counts as nearly empty, in percent of free addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exhaustion {
    /// Below this it does.
    pub enter: u8,
    /// From this on it does no more.
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

/// An IPPool, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpPool {
    /// Its name, which is that of the subnet.
    pub name: PoolName,
    /// Where its addresses come from.
    pub source: PoolSource,
    /// Addresses that no node gets. Those of a node's own CIDRs are reserved besides: the first two
    /// and, of IPv4, the last.
    pub reserved: Vec<IpNet>,
    /// The gateway of each range; where there is none, the first address after the range's own.
    pub gateways: Vec<IpAddr>,
    /// Prefix length of a block of IPv4 addresses.
    pub block_v4: u8,
    /// Prefix length of a block of IPv6 addresses.
    pub block_v6: u8,
    /// Which nodes it serves.
    pub nodes: LabelSelector,
    /// Whether nothing more is handed out.
    pub disabled: bool,
    /// Whether it has a deletion timestamp: nothing more is handed out, and it stays until nothing
    /// is claimed of it.
    pub deleting: bool,
    /// Whether our finalizer is on it.
    pub finalized: bool,
    /// How its nodes scale.
    pub scaler: ScalerParameters,
    /// How long a block rests between two nodes.
    pub cooldown: Duration,
    /// When it counts as nearly empty.
    pub exhaustion: Exhaustion,
}

impl IpPool {
    /// A pool with the usual settings and nothing reserved, and with our finalizer.
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

    /// The range of it that something lies in.
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

    /// The gateway of a range.
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

/// The address after that of the network itself.
pub(crate) fn first_usable(range: IpNet) -> IpAddr {
    let family = IpFamily::of(range.addr());
    address(number(range.network()).saturating_add(1), family)
}

/// A Node, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Its identity.
    pub uid: Uid,
    /// Its state.
    pub version: ResourceVersion,
    /// Its labels.
    pub labels: BTreeMap<SharedStr, SharedStr>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
}

/// Whose a claim is: a NodeNetworkConfig, since what it publishes is fenced by its versions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holder {
    /// The node's name.
    pub node: NodeName,
    /// The Node.
    pub node_uid: Uid,
    /// The NodeNetworkConfig; for pod CIDRs the Node again.
    pub config: Uid,
}

/// Whether a claim holds or rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ClaimState {
    /// Nobody else may have it.
    Held,
    /// Nobody may have it before then.
    Cooldown(Wall),
}

/// That a block or an address is a node's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Claim {
    /// The name of the entry that it becomes.
    pub id: GrantName,
    /// Whose it is.
    pub holder: Holder,
    /// The version of the holder's container at which it may be published, and at no other: once
    /// the container has moved on without it, it never will be.
    pub version: i64,
    /// Whether it holds or rests.
    pub state: ClaimState,
}

/// A block of which something is claimed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Block {
    /// All of it.
    Whole(Claim),
    /// Single addresses, by their offset.
    Split(BTreeMap<u32, Claim>),
}

/// An IPPoolShard: the claims in a part of a pool. Written only if it is still as it was read, so
/// that no two writers can claim the same address, whoever of them is the leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// The pool.
    pub pool: PoolName,
    /// The part of it.
    pub range: IpNet,
    /// The state it was read in; `None` if it does not exist yet.
    pub version: Option<ResourceVersion>,
    /// The number of the last claim ever made here, so that no name is used twice.
    pub sequence: u64,
    /// Blocks of which something is claimed, by their number.
    pub blocks: BTreeMap<u32, Block>,
}

impl Shard {
    /// One without claims. The clock keeps its names apart from those of a shard that was lost.
    pub fn new(pool: PoolName, range: IpNet, now: Wall) -> Self {
        Self {
            pool,
            range,
            version: None,
            sequence: now.0,
            blocks: BTreeMap::new(),
        }
    }

    /// The object's name, from the pool's and the range.
    pub fn object_name(&self) -> String {
        let range = self.range.to_string().replace([':', '.', '/'], "-");
        format!("{}-{range}", self.pool)
    }

    /// Every claim with the addresses that it covers; blocks have this prefix length.
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

/// How many addresses of a network are not reserved.
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
