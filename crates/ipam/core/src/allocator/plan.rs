//! The plan of the allocator: writes to make and conditions to report.

use std::{collections::BTreeSet, fmt};

use ipnet::IpNet;

use super::{
    object::{Holder, Shard},
    space::ClaimChange,
};
use crate::{GrantName, NodeName, NodeStatus, PoolName, Precondition, Uid};

/// Writes to make, in order. Each write is independent: one that fails or whose result is unknown
/// is not repeated, and the next plan starts from the state observed then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Writes in order.
    pub writes: Vec<Write>,
    /// Conditions to report to operators.
    pub notices: Vec<Notice>,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// Create a NodeNetworkConfig, owned by the Node and with our finalizer.
    CreateConfig {
        /// Name of the node.
        node: NodeName,
        /// UID of the Node, for the owner reference.
        owner: Uid,
        /// Initial request, so that the node's first pods need not wait.
        requested: i64,
    },
    /// Write a node's status.
    Status {
        /// Name of the config.
        name: NodeName,
        /// State in which it was read.
        precondition: Precondition,
        /// The complete new status.
        status: NodeStatus,
    },
    /// Write claims: create the shard if it has no version, else update it only at this version.
    Shard {
        /// The new shard.
        shard: Shard,
        /// Holders that must be gone for good: read each NodeNetworkConfig from the API server, not
        /// from a cache, and drop this write if one exists with this UID.
        gone: Vec<Holder>,
        /// NodeNetworkConfigs that must be unchanged: read each from the API server, and drop this
        /// write if one has changed.
        unchanged: Vec<(NodeName, Precondition)>,
        /// Nodes that claims of a former Node of their name are moved to: read each from the API
        /// server, and drop this write if it does not exist with this UID.
        present: Vec<(NodeName, Uid)>,
        /// The changes, for logs.
        changes: Vec<ClaimChange>,
    },
    /// Delete the NodeNetworkConfig of a node that is gone.
    DeleteConfig {
        /// Name of the config.
        name: NodeName,
        /// State in which it was read.
        precondition: Precondition,
    },
    /// Set the owner reference of a NodeNetworkConfig to its Node again.
    SetConfigOwner {
        /// Name of the config.
        name: NodeName,
        /// State in which it was read.
        precondition: Precondition,
        /// UID of the Node.
        owner: Uid,
    },
    /// Remove our finalizer from a NodeNetworkConfig: its node is gone and no address is claimed
    /// for it, or its node exists and the claims pass to the next config.
    RemoveConfigFinalizer {
        /// Name of the config.
        name: NodeName,
        /// State in which it was read.
        precondition: Precondition,
    },
    /// Add our finalizer to a pool: its claims are meaningless without it.
    AddPoolFinalizer(PoolName),
    /// Remove our finalizer from a pool: none of its addresses is claimed.
    RemovePoolFinalizer(PoolName),
    /// Publish whether a pool is nearly exhausted.
    SubnetState {
        /// Name of the pool.
        pool: PoolName,
        /// True if it is nearly exhausted.
        exhausted: bool,
    },
    /// Set a node's pod CIDRs.
    PodCidrs {
        /// Name of the node.
        name: NodeName,
        /// State in which it was read.
        precondition: Precondition,
        /// At most one CIDR of each family.
        cidrs: Vec<IpNet>,
    },
}

/// A condition to report to operators.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Notice {
    /// Two nodes publish the same addresses.
    #[error("nodenetworkconfig {config}: {entry} ({net}) is claimed by {holder}")]
    Conflict {
        /// The config that publishes them without a claim.
        config: NodeName,
        /// Name of its entry.
        entry: GrantName,
        /// The addresses.
        net: IpNet,
        /// Name of the node that has the claim.
        holder: NodeName,
    },
    /// A node publishes addresses that belong to no pool.
    #[error("nodenetworkconfig {config}: {entry} ({net}) is in no range of pool {pool}")]
    Stray {
        /// The config that publishes them.
        config: NodeName,
        /// Name of its entry.
        entry: GrantName,
        /// The addresses.
        net: IpNet,
        /// The pool of the node.
        pool: PoolName,
    },
    /// A node requests more than is free.
    #[error("node {node}: pool {pool} lacks {missing} addresses")]
    Unmet {
        /// Name of the node.
        node: NodeName,
        /// The pool of the node.
        pool: PoolName,
        /// Number of addresses it does not get.
        missing: u64,
    },
    /// A config has no owner and gets one again.
    #[error("nodenetworkconfig {0} has no owner; setting the node of its name")]
    Ownerless(NodeName),
    /// A node's config was deleted, but not the node.
    #[error(
        "nodenetworkconfig {0} was deleted while its node exists; recreating it with the same \
         addresses"
    )]
    Deleted(NodeName),
    /// A node's pod CIDR overlaps addresses of another owner.
    #[error("node {node}: pod CIDR {cidr} overlaps {other} of {owner}; not assigning the overlap")]
    Overlap {
        /// Name of the node.
        node: NodeName,
        /// Its pod CIDR.
        cidr: IpNet,
        /// The overlapping network.
        other: IpNet,
        /// Owner of that network.
        owner: String,
    },
    /// A deleted pool still has addresses in use.
    #[error("pool {0} was deleted; it is removed when no node has addresses of it")]
    PoolInUse(PoolName),
    /// No pool's selector matches a node.
    #[error("node {0} matches no pool")]
    NoPool(NodeName),
    /// A node's CIDR covers too many blocks to claim them, so free ranges are unknown and no node
    /// gets a CIDR.
    #[error("node {0}: pod CIDR {1} has too many blocks; assigning no pod CIDRs")]
    HugeCidr(NodeName, IpNet),
    /// All pod CIDRs are claimed.
    #[error("node {0}: no pod CIDR is left")]
    NoCidr(NodeName),
}

impl Plan {
    /// Drops all but the first status write of each config: the others would fail their
    /// precondition.
    pub(super) fn keep_first_statuses(&mut self) {
        let mut seen = BTreeSet::new();
        self.writes.retain(|write| match write {
            Write::Status { name, .. } => seen.insert(name.clone()),
            _ => true,
        });
    }

    /// True if there is nothing to write.
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
            Self::SetConfigOwner { name, .. } => write!(f, "~ nodenetworkconfig {name}: owner"),
            Self::RemoveConfigFinalizer { name, .. } => {
                write!(f, "~ nodenetworkconfig {name}: no finalizer")
            }
            Self::AddPoolFinalizer(pool) => write!(f, "~ pool {pool}: finalizer"),
            Self::RemovePoolFinalizer(pool) => write!(f, "~ pool {pool}: no finalizer"),
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
