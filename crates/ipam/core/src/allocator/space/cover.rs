//! Claims for published addresses that are not whole blocks, and transfer of claims.

use ipnet::IpNet;

use super::{ClaimChange, Space};
use crate::{
    GrantName, NodeName, Precondition,
    allocator::object::{Claim, Holder},
};

/// Largest difference between the prefix lengths of a block and of a published network: a network
/// of more than 2^16 blocks is not claimed block by block.
const MAX_BLOCK_BITS: u32 = 16;

impl Space<'_> {
    /// A number that grows with every claim, also across restarts.
    pub(in crate::allocator) fn turn(&self) -> u64 {
        let numbers = self.drafts.values().map(|draft| draft.shard.sequence);
        numbers.fold(0, u64::wrapping_add)
    }

    /// The parts of a network that are claimed one by one: an address, or the blocks it touches.
    /// Parts outside all ranges are left out. None if there are too many blocks.
    pub(in crate::allocator) fn covered(&self, net: IpNet) -> Option<Vec<IpNet>> {
        let mut parts = Vec::new();
        for range in self.ranges {
            let inner = if range.contains(&net) {
                net
            } else if net.contains(range) {
                *range
            } else {
                continue;
            };
            let block = self.pool.block_prefix(*range);
            if inner.prefix_len() == inner.max_prefix_len() && block < inner.max_prefix_len() {
                parts.push(inner);
            } else if inner.prefix_len() >= block {
                let whole = IpNet::new(inner.addr(), block).unwrap_or(inner);
                parts.push(whole.trunc());
            } else if u32::from(block - inner.prefix_len()) > MAX_BLOCK_BITS {
                return None;
            } else {
                parts.extend(inner.subnets(block).into_iter().flatten());
            }
        }
        Some(parts)
    }

    /// Transfers a claim to another config of its node, which publishes it under this name already
    /// or will under a new one. The writer must verify that the former config is gone and that the
    /// other is unchanged: the version at which the claim is published is read from it.
    pub(in crate::allocator) fn hand_over(
        &mut self,
        net: IpNet,
        to: (&Holder, Precondition),
        published: Option<&GrantName>,
        version: i64,
    ) {
        let Some(range) = self.range_of(net) else {
            return;
        };
        let shard = self.place_of(range, net).shard;
        let fresh = self.fresh(shard, to.0, version);
        let claim = match published {
            Some(name) => Claim {
                id: name.clone(),
                version: version - 1,
                ..fresh
            },
            None => fresh,
        };
        let mut former = None;
        let moved = self.change(net, |held| {
            former = Some(std::mem::replace(held, claim).holder);
        });
        if let Some((draft, claim)) = moved {
            let name: NodeName = claim.holder.node.clone();
            draft.gone.extend(former);
            draft.unchanged.push((name, to.1));
            draft.changes.push(ClaimChange::Moved(net, claim));
        }
    }

    /// Transfers the claim of a range to the Node that is registered under its holder's name now.
    /// The writer must verify that this Node exists: then the former one is gone for good.
    pub(in crate::allocator) fn pass_on(&mut self, net: IpNet, to: &Holder) {
        let moved = self.change(net, |held| held.holder = to.clone());
        if let Some((draft, claim)) = moved {
            draft.present.push((to.node.clone(), to.node_uid.clone()));
            draft.changes.push(ClaimChange::Moved(net, claim));
        }
    }
}
