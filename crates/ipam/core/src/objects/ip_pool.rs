use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_model::{LabelSelector, SharedStr, null_is_default};

use super::{Meta, POD_CIDR_POOL, ShardFlaw};
use crate::{
    PoolName, allocator,
    allocator::{Exhaustion, PoolSource},
    range::address_count,
    scaling::{Scaler, ScalerFlaw, ScalerParameters},
};

/// An IPPool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IpPool {
    /// `metadata`; the name is that of the subnet.
    pub metadata: Meta,
    /// `spec`.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: IpPoolSpec,
    /// `status`.
    #[serde(deserialize_with = "null_is_default")]
    pub status: IpPoolStatus,
}

/// `spec` of an IPPool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpPoolSpec {
    /// The ranges that nodes share.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cidrs: Vec<SharedStr>,
    /// Instead of ranges: each node has its own `spec.podCIDRs`.
    #[serde(rename = "nodeCIDRs")]
    pub node_cidrs: bool,
    /// The gateway of pods; the first usable address without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<SharedStr>,
    /// The same of IPv6.
    #[serde(rename = "gatewayV6", skip_serializing_if = "Option::is_none")]
    pub gateway_v6: Option<SharedStr>,
    /// Addresses and CIDRs that no node gets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<SharedStr>,
    /// Prefix length of a block of IPv4 addresses.
    #[serde(rename = "blockPrefixV4", skip_serializing_if = "Option::is_none")]
    pub block_prefix_v4: Option<i64>,
    /// Prefix length of a block of IPv6 addresses.
    #[serde(rename = "blockPrefixV6", skip_serializing_if = "Option::is_none")]
    pub block_prefix_v6: Option<i64>,
    /// The labels of the nodes that it serves.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Whether nothing more is handed out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// How its nodes scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaler: Option<ScalerParameters>,
    /// How long a block rests between two nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cooldown_seconds: Option<i64>,
    /// When it counts as nearly empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exhaustion: Option<ExhaustionPercent>,
}

/// `exhaustion` of an IPPool, in percent of free addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExhaustionPercent {
    /// Below this it is nearly empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enter_free_percent: Option<i64>,
    /// From this on it is no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leave_free_percent: Option<i64>,
}

/// `status` of an IPPool. Figures are those of the family with the fewer addresses, since that is
/// the one that runs out; of a pool of nodes' own CIDRs there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpPoolStatus {
    /// Addresses that nodes could have.
    pub total: i64,
    /// Those of them that no node has.
    pub free: i64,
    /// Those that are nodes'.
    pub claimed: i64,
    /// Those that rest.
    pub cooldown: i64,
    /// Whether it is nearly empty.
    pub exhausted: bool,
    /// The generation that this is about.
    pub observed_generation: i64,
    /// `Ready`, and why not.
    pub conditions: Vec<PoolCondition>,
}

/// A condition of an IPPool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolCondition {
    /// Its type.
    pub r#type: String,
    /// `True` or `False`.
    pub status: String,
    /// Why, in a word.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
    /// Since when, in RFC 3339.
    pub last_transition_time: String,
}

/// What is wrong with an IPPool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolFlaw {
    /// Neither a CIDR nor, where that is allowed, an address; or with bits of a host.
    #[error("{field}: {text:?} is no CIDR")]
    Cidr {
        /// Where.
        field: &'static str,
        /// What.
        text: SharedStr,
    },
    /// No address.
    #[error("{field}: {text:?} is no address")]
    Address {
        /// Where.
        field: &'static str,
        /// What.
        text: SharedStr,
    },
    /// There is nothing to hand out, or it is said twice from where.
    #[error("either cidrs or nodeCIDRs must be given")]
    Source,
    /// Claims of another kind have this name.
    #[error("the name {POD_CIDR_POOL} is taken by claims of pod CIDRs")]
    Name,
    /// Two ranges of it overlap.
    #[error("{0} and {1} overlap")]
    OwnOverlap(IpNet, IpNet),
    /// Another pool has these addresses.
    #[error("{range} overlaps {other} of pool {pool}")]
    Overlap {
        /// The range.
        range: IpNet,
        /// The other's.
        other: IpNet,
        /// Whose.
        pool: PoolName,
    },
    /// A number out of its bounds.
    #[error("{field}: {value} is not between {least} and {most}")]
    Number {
        /// Which.
        field: &'static str,
        /// What.
        value: i64,
        /// The smallest.
        least: i64,
        /// The largest.
        most: i64,
    },
    /// Claims were made in blocks of another size, or in other parts of the range.
    #[error("shard {0} was made for other ranges or blocks")]
    Geometry(IpNet),
    /// Claims cannot be read.
    #[error(transparent)]
    Shard(#[from] ShardFlaw),
    /// A parameter of scaling, which is replaced.
    #[error(transparent)]
    Scaler(#[from] ScalerFlaw),
}

impl PoolFlaw {
    /// Whether nothing is handed out because of it.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::Scaler(_))
    }

    /// One word for it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Name => "InvalidName",
            Self::Cidr { .. } | Self::Address { .. } | Self::Source => "InvalidRange",
            Self::OwnOverlap(..) | Self::Overlap { .. } => "Overlap",
            Self::Number { .. } => "InvalidNumber",
            Self::Geometry(_) => "OtherGeometry",
            Self::Shard(_) => "UnreadableClaims",
            Self::Scaler(_) => "InvalidScaler",
        }
    }
}

/// The largest block is what an assignment may hold.
const BLOCKS_V4: (i64, i64) = (20, 32);
const BLOCKS_V6: (i64, i64) = (116, 128);
const MAXIMUM_COOLDOWN: i64 = 86_400;

impl IpPool {
    /// What decisions are made with, and what is wrong. A pool that is wrong is disabled and keeps
    /// the ranges that are right: its nodes are still its own and no other pool's.
    pub fn to_pool(&self) -> (allocator::IpPool, Vec<PoolFlaw>) {
        let mut flaws = Vec::new();
        let spec = &self.spec;
        let usual = allocator::IpPool::new(&self.metadata.name, PoolSource::NodeCidrs);
        let mut bounded = |field, value: Option<i64>, (least, most), usual: i64| match value {
            Some(value) if (least..=most).contains(&value) => value,
            Some(value) => {
                flaws.push(PoolFlaw::Number {
                    field,
                    value,
                    least,
                    most,
                });
                usual
            }
            None => usual,
        };
        let block_v4 = bounded("blockPrefixV4", spec.block_prefix_v4, BLOCKS_V4, 28);
        let block_v6 = bounded("blockPrefixV6", spec.block_prefix_v6, BLOCKS_V6, 124);
        let rest = (0, MAXIMUM_COOLDOWN);
        let cooldown = bounded("cooldownSeconds", spec.cooldown_seconds, rest, 30);
        let percent = spec.exhaustion.unwrap_or_default();
        let enter = bounded("enterFreePercent", percent.enter_free_percent, (0, 100), 10);
        let leave = bounded("leaveFreePercent", percent.leave_free_percent, (0, 100), 15);
        if &*self.metadata.name == POD_CIDR_POOL {
            flaws.push(PoolFlaw::Name);
        }
        let source = self.source(&mut flaws);
        let mut pool = allocator::IpPool {
            source,
            reserved: self.reserved(&mut flaws),
            gateways: self.gateways(&mut flaws),
            block_v4: narrow(block_v4),
            block_v6: narrow(block_v6),
            nodes: LabelSelector::equalities(
                spec.node_selector
                    .iter()
                    .map(|(key, value)| (key.as_str(), value.as_str())),
            ),
            scaler: spec.scaler.map_or(usual.scaler, |scaler| {
                usable(scaler, usual.scaler, &mut flaws)
            }),
            cooldown: Duration::from_secs(cooldown.unsigned_abs()),
            exhaustion: Exhaustion {
                enter: narrow(enter),
                leave: narrow(leave.max(enter)),
            },
            disabled: spec.disabled || flaws.iter().any(PoolFlaw::is_fatal),
            deleting: self.metadata.deletion_timestamp.is_some(),
            finalized: self.metadata.has_finalizer(),
            ..usual
        };
        reserve_ends(&mut pool);
        (pool, flaws)
    }

    fn source(&self, flaws: &mut Vec<PoolFlaw>) -> PoolSource {
        if self.spec.node_cidrs != self.spec.cidrs.is_empty() {
            flaws.push(PoolFlaw::Source);
        }
        if self.spec.node_cidrs {
            return PoolSource::NodeCidrs;
        }
        let mut ranges: Vec<IpNet> = Vec::new();
        for text in &self.spec.cidrs {
            let Some(range) = cidr(text) else {
                flaws.push(PoolFlaw::Cidr {
                    field: "cidrs",
                    text: text.clone(),
                });
                continue;
            };
            match ranges.iter().find(|other| overlap(range, **other)) {
                Some(other) => flaws.push(PoolFlaw::OwnOverlap(*other, range)),
                None => ranges.push(range),
            }
        }
        PoolSource::Ranges(ranges)
    }

    fn reserved(&self, flaws: &mut Vec<PoolFlaw>) -> Vec<IpNet> {
        let mut reserved = Vec::new();
        for text in &self.spec.reserved {
            let address = text.parse::<IpAddr>().ok().map(IpNet::from);
            match address.or_else(|| cidr(text)) {
                Some(net) => reserved.push(net),
                None => flaws.push(PoolFlaw::Cidr {
                    field: "reserved",
                    text: text.clone(),
                }),
            }
        }
        reserved
    }

    fn gateways(&self, flaws: &mut Vec<PoolFlaw>) -> Vec<IpAddr> {
        let texts = [
            ("gateway", &self.spec.gateway),
            ("gatewayV6", &self.spec.gateway_v6),
        ];
        let mut gateways = Vec::new();
        for (field, text) in texts {
            let Some(text) = text else {
                continue;
            };
            match text.parse() {
                Ok(address) => gateways.push(address),
                Err(_) => flaws.push(PoolFlaw::Address {
                    field,
                    text: text.clone(),
                }),
            }
        }
        gateways
    }
}

/// No pod gets the network's own address, the gateway's, or of IPv4 the broadcast address.
fn reserve_ends(pool: &mut allocator::IpPool) {
    let PoolSource::Ranges(ranges) = &pool.source else {
        return;
    };
    let large = ranges.iter().filter(|range| address_count(**range) > 2);
    let mut ends: Vec<IpNet> = Vec::new();
    for range in large {
        ends.push(range.network().into());
        ends.push(pool.gateway(*range).into());
        if range.addr().is_ipv4() {
            ends.push(range.broadcast().into());
        }
    }
    pool.reserved.extend(ends);
    pool.reserved = IpNet::aggregate(&pool.reserved);
}

/// What nodes are told: what was written where that can be used, and the usual where it cannot.
fn usable(
    written: ScalerParameters,
    usual: ScalerParameters,
    flaws: &mut Vec<PoolFlaw>,
) -> ScalerParameters {
    let filled = ScalerParameters {
        batch_size: written.batch_size.or(usual.batch_size),
        request_threshold_percent: written
            .request_threshold_percent
            .or(usual.request_threshold_percent),
        release_threshold_percent: written
            .release_threshold_percent
            .or(usual.release_threshold_percent),
        max_ip_count: written.max_ip_count.or(usual.max_ip_count),
    };
    let (_, wrong) = Scaler::read(Some(&filled));
    if wrong.is_empty() {
        return filled;
    }
    flaws.extend(wrong.into_iter().map(PoolFlaw::Scaler));
    usual
}

fn narrow(number: i64) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

fn cidr(text: &str) -> Option<IpNet> {
    let net = text.parse::<IpNet>().ok()?;
    (net.trunc() == net).then_some(net)
}

pub(super) fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}
