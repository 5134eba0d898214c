//! Metrics of the allocator.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use weft_ipam::{
    PoolName,
    allocator::{Notice, Usage, Write},
};

/// Metrics of the allocator. Clones share the series.
#[derive(Clone, Debug)]
pub struct AllocatorMetrics {
    plan_duration: Histogram,
    writes: Family<WriteLabels, Counter>,
    notices: Family<NoticeLabels, Gauge>,
    addresses: Family<AddressLabels, Gauge>,
    exhausted: Family<PoolLabels, Gauge>,
    flawed_pools: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    object: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NoticeLabels {
    reason: &'static str,
}

// Pools are created by operators, so there are few.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddressLabels {
    pool: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabels {
    pool: String,
}

impl AllocatorMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            plan_duration: Histogram::new([0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0]),
            writes: Family::default(),
            notices: Family::default(),
            addresses: Family::default(),
            exhausted: Family::default(),
            flawed_pools: Gauge::default(),
        };
        registry.register_with_unit(
            "weft_allocator_plan_duration",
            "Duration of planning",
            Unit::Seconds,
            metrics.plan_duration.clone(),
        );
        registry.register(
            "weft_allocator_writes",
            "Writes, by object and outcome",
            metrics.writes.clone(),
        );
        registry.register(
            "weft_allocator_notices",
            "Conditions found by the last plan, by reason",
            metrics.notices.clone(),
        );
        registry.register(
            "weft_allocator_addresses",
            "Addresses of a pool, of the family with fewer addresses, by state",
            metrics.addresses.clone(),
        );
        registry.register(
            "weft_allocator_pool_exhausted",
            "1 while a pool is nearly exhausted",
            metrics.exhausted.clone(),
        );
        registry.register(
            "weft_allocator_flawed_pools",
            "Invalid pools, from which no addresses are assigned",
            metrics.flawed_pools.clone(),
        );
        metrics
    }

    /// Counts a plan and its notices. `reasons` are all those that the controller can report.
    pub(super) fn planned(&self, took: Duration, notices: &[Notice], reasons: &[&'static str]) {
        self.plan_duration.observe(took.as_secs_f64());
        for of_this in reasons {
            let count = notices.iter().filter(|notice| reason(notice) == *of_this);
            let labels = NoticeLabels { reason: of_this };
            let count = gauge(count.count() as u64);
            self.notices.get_or_create(&labels).set(count);
        }
    }

    pub(super) fn wrote(&self, write: &Write, outcome: &'static str) {
        let object = match write {
            Write::CreateConfig { .. } => "config",
            Write::Status { .. } => "config_status",
            Write::Shard { .. } => "shard",
            Write::SetConfigOwner { .. } => "config_owner",
            Write::DeleteConfig { .. } => "config_deletion",
            Write::RemoveConfigFinalizer { .. } => "config_finalizer",
            Write::AddPoolFinalizer(_) | Write::RemovePoolFinalizer(_) => "pool_finalizer",
            Write::SubnetState { .. } => "subnet_state",
            Write::PodCidrs { .. } => "pod_cidrs",
        };
        self.wrote_object(object, outcome);
    }

    pub(super) fn wrote_object(&self, object: &'static str, outcome: &'static str) {
        let labels = WriteLabels { object, outcome };
        self.writes.get_or_create(&labels).inc();
    }

    pub(super) fn pools<'a>(
        &self,
        pools: impl Iterator<Item = (&'a PoolName, Option<Usage>, bool)>,
        flawed: usize,
    ) {
        self.addresses.clear();
        self.exhausted.clear();
        for (pool, usage, exhausted) in pools {
            let pool = pool.to_string();
            let states = usage.map(|usage| {
                [
                    ("free", usage.free()),
                    ("claimed", usage.claimed),
                    ("cooldown", usage.cooldown),
                ]
            });
            for (state, count) in states.into_iter().flatten() {
                let labels = AddressLabels {
                    pool: pool.clone(),
                    state,
                };
                self.addresses.get_or_create(&labels).set(gauge(count));
            }
            let labels = PoolLabels { pool };
            self.exhausted.get_or_create(&labels).set(exhausted.into());
        }
        self.flawed_pools.set(gauge(flawed as u64));
    }
}

fn gauge(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Reasons of notices about addresses.
pub(super) const ADDRESS_REASONS: [&str; 8] = [
    "AddressConflict",
    "AddressInNoPool",
    "SubnetFull",
    "NoPool",
    "OwnerMissing",
    "ConfigDeleted",
    "CIDROverlap",
    "PoolInUse",
];
/// Reasons of notices about pod CIDRs.
pub(super) const CIDR_REASONS: [&str; 2] = ["CIDRNotAvailable", "CIDRTooLarge"];

/// Reason of a notice, also used in events.
pub(super) fn reason(notice: &Notice) -> &'static str {
    match notice {
        Notice::Conflict { .. } => "AddressConflict",
        Notice::Stray { .. } => "AddressInNoPool",
        Notice::Unmet { .. } => "SubnetFull",
        Notice::NoPool(_) => "NoPool",
        Notice::Ownerless(_) => "OwnerMissing",
        Notice::Deleted(_) => "ConfigDeleted",
        Notice::Overlap { .. } => "CIDROverlap",
        Notice::PoolInUse(_) => "PoolInUse",
        Notice::HugeCidr(..) => "CIDRTooLarge",
        // The reason that kube-controller-manager uses.
        Notice::NoCidr(_) => "CIDRNotAvailable",
    }
}
