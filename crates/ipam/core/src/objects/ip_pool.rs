//! The kind IPPool: fields, defaults and validation.

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

/// An IPPool: addresses for the nodes that its selector matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IpPool {
    /// `metadata`; the name is the subnet's name in a NodeNetworkConfig.
    pub metadata: Meta,
    /// Ranges and settings, written by an operator.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: IpPoolSpec,
    /// Usage and conditions, written by the allocator.
    #[serde(deserialize_with = "null_is_default")]
    pub status: IpPoolStatus,
}

/// `spec` of an IPPool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpPoolSpec {
    /// CIDRs that nodes share.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cidrs: Vec<SharedStr>,
    /// Instead of CIDRs: each node uses its own `spec.podCIDRs`.
    #[serde(rename = "nodeCIDRs")]
    pub node_cidrs: bool,
    /// IPv4 gateway of pods; defaults to the first usable address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<SharedStr>,
    /// IPv6 gateway of pods; defaults to the first usable address.
    #[serde(rename = "gatewayV6", skip_serializing_if = "Option::is_none")]
    pub gateway_v6: Option<SharedStr>,
    /// Addresses and CIDRs that are never assigned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<SharedStr>,
    /// Prefix length of a block of IPv4 addresses.
    #[serde(rename = "blockPrefixV4", skip_serializing_if = "Option::is_none")]
    pub block_prefix_v4: Option<i64>,
    /// Prefix length of a block of IPv6 addresses.
    #[serde(rename = "blockPrefixV6", skip_serializing_if = "Option::is_none")]
    pub block_prefix_v6: Option<i64>,
    /// Labels of the nodes that it serves.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// True if no more addresses are assigned.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// Scaling parameters of its nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaler: Option<ScalerParameters>,
    /// Time in seconds between the release of a block and its reuse by another node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cooldown_seconds: Option<i64>,
    /// Thresholds of exhaustion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exhaustion: Option<ExhaustionPercent>,
}

/// `exhaustion` of an IPPool, in percent of free addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExhaustionPercent {
    /// Below this the pool is nearly exhausted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enter_free_percent: Option<i64>,
    /// From this on it is no longer nearly exhausted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leave_free_percent: Option<i64>,
}

/// `status` of an IPPool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpPoolStatus {
    /// Usage; absent for a pool of the nodes' own CIDRs, which has no addresses itself.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub figures: Option<PoolFigures>,
    /// True if it is nearly exhausted.
    pub exhausted: bool,
    /// `metadata.generation` that this status is about.
    pub observed_generation: i64,
    /// `Ready`, with the reason if it is false.
    pub conditions: Vec<PoolCondition>,
}

/// Usage of an IPPool, in its `status`: that of the family with fewer addresses, because it runs out
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFigures {
    /// Addresses that can be assigned.
    pub total: i64,
    /// Addresses neither claimed nor in cooldown.
    pub free: i64,
    /// Addresses claimed by nodes.
    pub claimed: i64,
    /// Addresses in cooldown.
    pub cooldown: i64,
}

impl PoolFigures {
    /// Names of the fields in the object.
    pub const FIELDS: [&str; 4] = ["total", "free", "claimed", "cooldown"];
}

/// A condition of an IPPool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolCondition {
    /// Condition type, `Ready`.
    pub r#type: String,
    /// `True` or `False`.
    pub status: String,
    /// Reason in CamelCase.
    pub reason: String,
    /// Human-readable reason.
    pub message: String,
    /// Time of the last change of status, in RFC 3339.
    pub last_transition_time: String,
}

/// An error in an IPPool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolFlaw {
    /// Neither a CIDR nor, where that is allowed, an address; or a CIDR with host bits.
    #[error("{field}: {text:?} is not a CIDR")]
    Cidr {
        /// Field of the spec.
        field: &'static str,
        /// Invalid value.
        text: SharedStr,
    },
    /// Not an IP address.
    #[error("{field}: {text:?} is not an IP address")]
    Address {
        /// Field of the spec.
        field: &'static str,
        /// Invalid value.
        text: SharedStr,
    },
    /// A range of length 0: it contains the addresses of every node and of everything else.
    #[error("cidrs: {0} is the whole address space")]
    Everything(IpNet),
    /// Neither or both of `cidrs` and `nodeCIDRs` are set.
    #[error("either cidrs or nodeCIDRs must be given")]
    Source,
    /// The name is reserved for claims of pod CIDRs.
    #[error("the name {POD_CIDR_POOL} is reserved for claims of pod CIDRs")]
    Name,
    /// Two of its own ranges overlap.
    #[error("{0} and {1} overlap")]
    OwnOverlap(IpNet, IpNet),
    /// A range overlaps that of another pool.
    #[error("{range} overlaps {other} of pool {pool}")]
    Overlap {
        /// Range of this pool.
        range: IpNet,
        /// Range of the other pool.
        other: IpNet,
        /// Name of the other pool.
        pool: PoolName,
    },
    /// A number out of bounds.
    #[error("{field}: {value} is not between {least} and {most}")]
    Number {
        /// Field of the spec.
        field: &'static str,
        /// Invalid value.
        value: i64,
        /// Smallest allowed value.
        least: i64,
        /// Largest allowed value.
        most: i64,
    },
    /// Existing claims were made with another block size or in another part of the range.
    #[error("shard {0} was created for other ranges or another block size")]
    Geometry(IpNet),
    /// Claims that cannot be read.
    #[error(transparent)]
    Shard(#[from] ShardFlaw),
    /// An invalid scaling parameter, which is replaced.
    #[error(transparent)]
    Scaler(#[from] ScalerFlaw),
}

impl PoolFlaw {
    /// True if no address is assigned because of it.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::Scaler(_))
    }

    /// Reason in CamelCase, for conditions and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Name => "InvalidName",
            Self::Cidr { .. } | Self::Address { .. } | Self::Everything(_) | Self::Source => {
                "InvalidRange"
            }
            Self::OwnOverlap(..) | Self::Overlap { .. } => "Overlap",
            Self::Number { .. } => "InvalidNumber",
            Self::Geometry(_) => "OtherGeometry",
            Self::Shard(_) => "UnreadableClaims",
            Self::Scaler(_) => "InvalidScaler",
        }
    }
}

/// The largest block is the largest allowed assignment.
const BLOCKS_V4: (i64, i64) = (20, 32);
const BLOCKS_V6: (i64, i64) = (116, 128);
const MAXIMUM_COOLDOWN: i64 = 86_400;

impl IpPool {
    /// Converts it to the type that decisions are made with, and lists its errors. A pool with a
    /// fatal error is disabled and keeps its valid ranges: its nodes still belong to it and to no
    /// other pool.
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
            if range.prefix_len() == 0 {
                flaws.push(PoolFlaw::Everything(range));
                continue;
            }
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

/// Reserves the network address, the gateway and, for IPv4, the broadcast address.
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

/// Scaling parameters for nodes: the written ones where valid, the defaults elsewhere.
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
