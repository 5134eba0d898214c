//! The kind IPPoolShard, which records the claims in a part of a pool.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_model::{SharedStr, null_is_default};

use super::Meta;
use crate::{
    GrantName, NodeName, PoolName, ResourceVersion, Uid,
    allocator::{Block, Claim, ClaimState, Holder, Shard, WallTime},
};

/// An IPPoolShard: the claims in a part of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IpPoolShard {
    /// `metadata`; the name contains pool and range.
    pub metadata: Meta,
    /// The claims, written by the allocator.
    pub spec: ShardSpec,
}

/// `spec` of an IPPoolShard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ShardSpec {
    /// Name of the pool.
    pub pool: PoolName,
    /// CIDR of the part of the pool.
    pub range: SharedStr,
    /// Prefix length of a block. Block numbers are meaningless without it.
    pub block_prefix: u8,
    /// Number of the last claim ever made here.
    pub sequence: u64,
    /// Blocks with at least one claim, by number.
    #[serde(
        deserialize_with = "null_is_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub blocks: BTreeMap<u32, BlockRecord>,
}

/// A block with at least one claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockRecord {
    /// The claim of the whole block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole: Option<ClaimRecord>,
    /// Claims of single addresses, by offset in the block.
    #[serde(
        deserialize_with = "null_is_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub split: BTreeMap<u32, ClaimRecord>,
}

/// A claim of a block or an address for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRecord {
    /// Name of the assignment that it becomes.
    pub id: GrantName,
    /// Name of the node.
    pub node: NodeName,
    /// UID of the Node.
    #[serde(rename = "nodeUID")]
    pub node_uid: Uid,
    /// UID of the NodeNetworkConfig; for pod CIDRs the Node's again.
    #[serde(rename = "configUID")]
    pub config_uid: Uid,
    /// Version of the holder's container at which the claim may be published.
    pub version: i64,
    /// Set once released: not to be assigned before this time, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cooldown_until: Option<u64>,
}

/// A shard that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardFlaw {
    /// Its range is not a CIDR.
    #[error("shard {name}: {range:?} is not a CIDR")]
    Range {
        /// Name of the shard.
        name: SharedStr,
        /// Invalid range.
        range: SharedStr,
    },
    /// A block is claimed as a whole and in parts, or not at all.
    #[error("shard {name}: block {index} is claimed as a whole and in parts, or not at all")]
    Block {
        /// Name of the shard.
        name: SharedStr,
        /// Number of the block.
        index: u32,
    },
}

impl IpPoolShard {
    /// Converts it to the type that decisions are made with.
    pub fn to_shard(&self) -> Result<Shard, ShardFlaw> {
        let name = &self.metadata.name;
        let range = || self.spec.range.parse::<IpNet>().ok();
        let range = range()
            .filter(|range| range.trunc() == *range)
            .ok_or_else(|| ShardFlaw::Range {
                name: name.clone(),
                range: self.spec.range.clone(),
            })?;
        let mut blocks = BTreeMap::new();
        for (index, record) in &self.spec.blocks {
            let block = match (&record.whole, record.split.is_empty()) {
                (Some(claim), true) => Block::Whole(claim.into()),
                (None, false) => {
                    let claims = record.split.iter();
                    Block::Split(claims.map(|(at, claim)| (*at, claim.into())).collect())
                }
                _ => {
                    return Err(ShardFlaw::Block {
                        name: name.clone(),
                        index: *index,
                    });
                }
            };
            blocks.insert(*index, block);
        }
        Ok(Shard {
            pool: self.spec.pool.clone(),
            range,
            version: Some(ResourceVersion::from(
                self.metadata.resource_version.as_str(),
            )),
            sequence: self.spec.sequence,
            blocks,
        })
    }
}

impl ShardSpec {
    /// The record of a shard whose blocks have this prefix length.
    pub fn of(shard: &Shard, block_prefix: u8) -> Self {
        let blocks = shard.blocks.iter().map(|(index, block)| {
            let record = match block {
                Block::Whole(claim) => BlockRecord {
                    whole: Some(claim.into()),
                    split: BTreeMap::new(),
                },
                Block::Split(claims) => BlockRecord {
                    whole: None,
                    split: claims
                        .iter()
                        .map(|(at, claim)| (*at, claim.into()))
                        .collect(),
                },
            };
            (*index, record)
        });
        Self {
            pool: shard.pool.clone(),
            range: SharedStr::new(&shard.range.to_string()),
            block_prefix,
            sequence: shard.sequence,
            blocks: blocks.collect(),
        }
    }
}

impl From<&ClaimRecord> for Claim {
    fn from(record: &ClaimRecord) -> Self {
        Self {
            id: record.id.clone(),
            holder: Holder {
                node: record.node.clone(),
                node_uid: record.node_uid.clone(),
                config: record.config_uid.clone(),
            },
            version: record.version,
            state: match record.cooldown_until {
                None => ClaimState::Held,
                Some(until) => ClaimState::Cooldown(WallTime(until)),
            },
        }
    }
}

impl From<&Claim> for ClaimRecord {
    fn from(claim: &Claim) -> Self {
        Self {
            id: claim.id.clone(),
            node: claim.holder.node.clone(),
            node_uid: claim.holder.node_uid.clone(),
            config_uid: claim.holder.config.clone(),
            version: claim.version,
            cooldown_until: match claim.state {
                ClaimState::Held => None,
                ClaimState::Cooldown(until) => Some(until.0),
            },
        }
    }
}
