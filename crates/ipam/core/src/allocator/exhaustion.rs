//! Detection of nearly exhausted pools, with hysteresis.

use weft_model::IpFamily;

use super::{object::IpPool, reconcile::Client, space::Space};
use crate::scaling::Scaler;

/// True if a pool is nearly exhausted. It becomes so when little is free or a node lacks addresses.
/// It ceases to be so when enough is free and would still be if all nodes requested their buffers
/// again: without the latter a small pool would flap for ever.
pub(super) fn is_exhausted(
    pool: &IpPool,
    space: &Space<'_>,
    clients: &[Client<'_>],
    exhausted: bool,
) -> bool {
    let threshold = if exhausted {
        pool.exhaustion.leave
    } else {
        pool.exhaustion.enter
    };
    let unmet = clients.iter().any(|client| client.missing > 0);
    unmet
        || space.families().into_iter().any(|family| {
            let (held, resting) = space.used(family);
            let total = space.total(family);
            let more = if exhausted {
                usual_growth(pool, clients, family, space.block_size(family))
            } else {
                0
            };
            let free = total.saturating_sub(held + resting + more);
            u128::from(free) * 100 < u128::from(total) * u128::from(threshold)
        })
}

/// Number of addresses that the nodes would hold in addition if there were enough.
fn usual_growth(pool: &IpPool, clients: &[Client<'_>], family: IpFamily, block: u64) -> u64 {
    let (scaler, _) = Scaler::read(Some(&pool.scaler));
    let growth = clients.iter().map(|client| {
        let spec = &client.config.spec;
        let demand = spec.demand.unwrap_or(spec.requested).max(0);
        let target = scaler.target(u32::try_from(demand).unwrap_or(u32::MAX));
        let usual = u64::from(target).div_ceil(block) * block;
        usual.saturating_sub(client.has(family))
    });
    growth.sum()
}
