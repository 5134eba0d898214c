use std::{collections::BTreeSet, fmt};

use ipnet::IpNet;

use super::{
    object::{Holder, Shard},
    space::ClaimChange,
};
use crate::{GrantName, NodeName, NodeStatus, PoolName, Precondition, Uid};

/// What is to be written, in order. Each write stands for itself: one that fails or whose end is
/// unknown is left alone, and the next plan starts from what is observed then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The writes.
    pub writes: Vec<Write>,
    /// What people should know.
    pub notices: Vec<Notice>,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// Make a NodeNetworkConfig, owned by the Node and with our finalizer.
    CreateConfig {
        /// The node.
        node: NodeName,
        /// Its identity, for the owner reference.
        owner: Uid,
        /// What it starts with, so that its first pods need not wait.
        requested: i64,
    },
    /// Write what a node has.
    Status {
        /// Whose.
        name: NodeName,
        /// Only if it is still as it was.
        precondition: Precondition,
        /// Everything it has.
        status: NodeStatus,
    },
    /// Write claims: create the shard if it has no version, else only if it still has this one.
    Shard {
        /// The shard as it is to be.
        shard: Shard,
        /// Holders that must be gone for good: read each NodeNetworkConfig from the API server and
        /// not from a cache, and drop this write if one of them is there with this UID.
        gone: Vec<Holder>,
        /// NodeNetworkConfigs that must be as they were: read each from the API server, and drop
        /// this write if one of them is not.
        unchanged: Vec<(NodeName, Precondition)>,
        /// What changes, for people.
        changes: Vec<ClaimChange>,
    },
    /// Delete the NodeNetworkConfig of a node that is gone.
    DeleteConfig {
        /// Which.
        name: NodeName,
        /// Only this one.
        precondition: Precondition,
    },
    /// Make a NodeNetworkConfig its Node's again.
    OwnConfig {
        /// Which.
        name: NodeName,
        /// Only if it is still as it was.
        precondition: Precondition,
        /// The Node.
        owner: Uid,
    },
    /// Let a NodeNetworkConfig go: its node is gone and nothing is claimed for it any more, or its
    /// node is there, and its claims wait for the next one.
    RemoveFinalizer {
        /// Which.
        name: NodeName,
        /// Only if it is still as it was.
        precondition: Precondition,
    },
    /// Put our finalizer on a pool: claims of it mean nothing without it.
    HoldPool(PoolName),
    /// Let a pool go: nothing is claimed of it any more.
    ReleasePool(PoolName),
    /// Tell the nodes of a pool whether it is nearly empty.
    SubnetState {
        /// The pool.
        pool: PoolName,
        /// Whether it is.
        exhausted: bool,
    },
    /// Give a node its pod CIDRs.
    PodCidrs {
        /// The node.
        name: NodeName,
        /// Only this one.
        precondition: Precondition,
        /// What it gets.
        cidrs: Vec<IpNet>,
    },
}

/// Something that people should know.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Notice {
    /// Two nodes publish the same addresses.
    #[error("nodenetworkconfig {config}: {entry} ({net}) is claimed by {holder}")]
    Conflict {
        /// Who publishes it without a claim.
        config: NodeName,
        /// Its entry.
        entry: GrantName,
        /// The addresses.
        net: IpNet,
        /// Who has the claim.
        holder: NodeName,
    },
    /// A node publishes what is no pool's.
    #[error("nodenetworkconfig {config}: {entry} ({net}) is in no range of pool {pool}")]
    Stray {
        /// Who publishes it.
        config: NodeName,
        /// Its entry.
        entry: GrantName,
        /// The addresses.
        net: IpNet,
        /// The pool of the node.
        pool: PoolName,
    },
    /// A node asks for more than there is.
    #[error("node {node}: pool {pool} lacks {missing} addresses")]
    Unmet {
        /// The node.
        node: NodeName,
        /// Its pool.
        pool: PoolName,
        /// How many it does not get.
        missing: u64,
    },
    /// A node's config has no owner, and gets it back.
    #[error("nodenetworkconfig {0} has no owner; it is given to the node of its name")]
    Ownerless(NodeName),
    /// A node's config was deleted, and the node was not.
    #[error(
        "nodenetworkconfig {0} was deleted while its node is there; it is made again with the same \
         addresses"
    )]
    Deleted(NodeName),
    /// Somebody else may have what is a node's own.
    #[error(
        "node {node}: pod CIDR {cidr} overlaps {other} of {owner}; nothing is taken from there"
    )]
    Overlap {
        /// The node.
        node: NodeName,
        /// Its CIDR.
        cidr: IpNet,
        /// The other's.
        other: IpNet,
        /// Whose that is.
        owner: String,
    },
    /// A pool was deleted, and nodes have addresses of it.
    #[error("pool {0} was deleted; it goes when no node has addresses of it")]
    PoolInUse(PoolName),
    /// No pool serves a node.
    #[error("node {0} matches no pool")]
    NoPool(NodeName),
    /// A node has so much that it cannot be told from what is free, and nobody gets anything.
    #[error("node {0}: pod CIDR {1} has too many blocks; no pod CIDR is handed out")]
    HugeCidr(NodeName, IpNet),
    /// Nodes are without pod CIDRs and there are no more.
    #[error("node {0}: no pod CIDR is left")]
    NoCidr(NodeName),
}

impl Plan {
    /// Of two statuses of one config only the first would be written.
    pub(super) fn keep_first_statuses(&mut self) {
        let mut seen = BTreeSet::new();
        self.writes.retain(|write| match write {
            Write::Status { name, .. } => seen.insert(name.clone()),
            _ => true,
        });
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for write in &self.writes {
            writeln!(f, "{write}")?;
        }
        for notice in &self.notices {
            writeln!(f, "! {notice}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateConfig {
                node, requested, ..
            } => {
                write!(f, "+ nodenetworkconfig {node}: request {requested}")
            }
            Self::Status { name, status, .. } => {
                write!(
                    f,
                    "~ nodenetworkconfig {name}: {} addresses",
                    status.address_count()
                )
            }
            Self::Shard {
                shard,
                changes,
                gone,
                ..
            } => {
                write!(f, "~ shard {}:", shard.object_name())?;
                for change in changes {
                    write!(f, " {change}")?;
                }
                for holder in gone {
                    write!(f, " (if {} is gone)", holder.node)?;
                }
                Ok(())
            }
            Self::DeleteConfig { name, .. } => write!(f, "- nodenetworkconfig {name}"),
            Self::OwnConfig { name, .. } => write!(f, "~ nodenetworkconfig {name}: owner"),
            Self::RemoveFinalizer { name, .. } => {
                write!(f, "~ nodenetworkconfig {name}: no finalizer")
            }
            Self::HoldPool(pool) => write!(f, "~ pool {pool}: finalizer"),
            Self::ReleasePool(pool) => write!(f, "~ pool {pool}: no finalizer"),
            Self::SubnetState {
                pool,
                exhausted: true,
            } => write!(f, "~ pool {pool}: exhausted"),
            Self::SubnetState { pool, .. } => write!(f, "~ pool {pool}: not exhausted"),
            Self::PodCidrs { name, cidrs, .. } => write!(f, "~ node {name}: pod CIDRs {cidrs:?}"),
        }
    }
}

impl fmt::Display for ClaimChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claimed(net, claim) => write!(f, "+{net}={}", claim.holder.node),
            Self::Adopted(net, claim) => write!(f, "!{net}={}", claim.holder.node),
            Self::Moved(net, claim) => write!(f, ">{net}={}", claim.holder.node),
            Self::Freed(net, claim) => write!(f, "-{net}={}", claim.holder.node),
        }
    }
}
