//! Metrics of a node's addresses: Weft's under `weft_ipam_`, and those of Azure CNS that existing
//! dashboards use.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::Histogram,
    },
    registry::{Registry, Unit},
};
use weft_ipam::{
    needed,
    pool::{AddressCounts, Notice, Reply},
    scaling::Scaler,
};

use crate::{handle::Snapshot, report};

/// Metrics of a node's addresses. Clones share the series.
#[derive(Clone, Debug)]
pub struct IpamMetrics {
    addresses: Family<AddressLabels, Gauge>,
    waiting: Gauge,
    demand: Gauge,
    target: Gauge,
    requested: Gauge,
    cni_repairs: Gauge,
    store_open: Gauge,
    synced: Gauge,
    network_seen: Gauge,
    answers: Family<OutcomeLabels, Counter>,
    add_wait: Histogram,
    commits: Counter,
    syncs: Counter,
    commit_time: Histogram,
    records: Counter,
    store_failures: Counter,
    stores_lost: Counter,
    writes: Family<OutcomeLabels, Counter>,
    notices: Family<NoticeLabels, Counter>,
    requests: Family<RequestLabels, Histogram, Buckets>,
    figures: Arc<[(&'static str, Family<SubnetLabels, Gauge>)]>,
    has_config: Gauge,
    containers: Gauge,
    begun: Arc<Mutex<Option<Instant>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddressLabels {
    family: &'static str,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NoticeLabels {
    what: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    url: &'static str,
    verb: &'static str,
    cns_return_code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SubnetLabels {
    subnet: String,
    subnet_cidr: String,
    podnet_arm_id: String,
    customer_metric: &'static str,
}

/// CNS's buckets: a millisecond, doubled fourteen times.
#[derive(Clone, Debug)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(doubling(0.001))
    }
}

fn doubling(from: f64) -> impl Iterator<Item = f64> {
    std::iter::successors(Some(from), |bound| Some(bound * 2.0)).take(15)
}

/// Azure CNS's gauges of a pool: name and help. They count addresses of one family, that with the
/// fewest free ones.
const AZURE: [(&str, &str); 12] = [
    ("cx_ipam_pod_allocated_ips", "Addresses held by pods"),
    ("cx_ipam_available_ips", "Addresses free to be assigned"),
    ("cx_ipam_batch_size", "The scaler's batch size"),
    (
        "cx_ipam_current_available_ips",
        "Addresses held, neither assigned nor offered",
    ),
    (
        "cx_ipam_expect_available_ips",
        "Addresses requested and not assigned",
    ),
    ("cx_ipam_max_ips", "The scaler's maximum"),
    (
        "cx_ipam_pending_programming_ips",
        "Addresses not usable yet",
    ),
    (
        "cx_ipam_pending_release_ips",
        "Addresses offered for release",
    ),
    ("cx_ipam_requested_ips", "spec.requestedIPCount"),
    ("cx_ipam_secondary_ips", "Addresses held"),
    ("cx_ipam_total_ips", "Addresses held, primary ones included"),
    (
        "cx_ipam_subnet_exhaustion_state",
        "1 while the subnet is nearly exhausted",
    ),
];

impl IpamMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let families = AZURE.map(|(name, _)| (name, Family::default()));
        let metrics = Self {
            addresses: Family::default(),
            waiting: Gauge::default(),
            demand: Gauge::default(),
            target: Gauge::default(),
            requested: Gauge::default(),
            cni_repairs: Gauge::default(),
            store_open: Gauge::default(),
            synced: Gauge::default(),
            network_seen: Gauge::default(),
            answers: Family::default(),
            add_wait: Histogram::new(doubling(0.001)),
            commits: Counter::default(),
            syncs: Counter::default(),
            commit_time: Histogram::new(doubling(0.000_1)),
            records: Counter::default(),
            store_failures: Counter::default(),
            stores_lost: Counter::default(),
            writes: Family::default(),
            notices: Family::default(),
            requests: Family::new_with_constructor(Buckets),
            figures: Arc::new(families),
            has_config: Gauge::default(),
            containers: Gauge::default(),
            begun: Arc::default(),
        };
        metrics.show_gauges(registry);
        metrics.show_counters(registry);
        metrics.show_azure(registry);
        metrics
    }

    fn show_gauges(&self, registry: &mut Registry) {
        let mut gauge = |name: &str, help: &str, gauge: &Gauge| {
            registry.register(name, help, gauge.clone());
        };
        gauge(
            "weft_ipam_waiting_adds",
            "ADDs waiting for an address",
            &self.waiting,
        );
        gauge(
            "weft_ipam_demand",
            "Addresses of each family that the node's pods need",
            &self.demand,
        );
        gauge(
            "weft_ipam_target",
            "Addresses of each family that the node should hold",
            &self.target,
        );
        gauge(
            "weft_ipam_requested",
            "Addresses of each family that the node requests",
            &self.requested,
        );
        gauge(
            "weft_ipam_cni_repairs",
            "Repairs of CNI plugin, configuration and bridge since the installer was started",
            &self.cni_repairs,
        );
        gauge(
            "weft_ipam_store_open",
            "1 while the address store accepts records",
            &self.store_open,
        );
        gauge(
            "weft_ipam_watch_synced",
            "1 while the watch of pods is up to date",
            &self.synced,
        );
        registry.register(
            "weft_ipam_addresses",
            "Addresses of the node, by family and state",
            self.addresses.clone(),
        );
        registry.register_with_unit(
            "weft_ipam_nnc_last_event_timestamp",
            "Time of the last observed change of the NodeNetworkConfig",
            Unit::Seconds,
            self.network_seen.clone(),
        );
    }

    fn show_counters(&self, registry: &mut Registry) {
        registry.register(
            "weft_ipam_answers",
            "Requests answered, by outcome",
            self.answers.clone(),
        );
        registry.register_with_unit(
            "weft_ipam_add_wait",
            "Time from an ADD to its addresses",
            Unit::Seconds,
            self.add_wait.clone(),
        );
        registry.register(
            "weft_ipam_commits",
            "Commits of the address store",
            self.commits.clone(),
        );
        registry.register(
            "weft_ipam_store_syncs",
            "Disk syncs of the address store",
            self.syncs.clone(),
        );
        registry.register_with_unit(
            "weft_ipam_commit",
            "Duration of a commit of the address store",
            Unit::Seconds,
            self.commit_time.clone(),
        );
        registry.register(
            "weft_ipam_records",
            "Records written to the address store",
            self.records.clone(),
        );
        registry.register(
            "weft_ipam_store_failures",
            "Commits of the address store that failed",
            self.store_failures.clone(),
        );
        registry.register(
            "weft_ipam_stores_lost",
            "Address stores that were lost or damaged, and replaced",
            self.stores_lost.clone(),
        );
        registry.register(
            "weft_ipam_spec_writes",
            "Writes of the NodeNetworkConfig, by outcome",
            self.writes.clone(),
        );
        registry.register(
            "weft_ipam_notices",
            "Conditions that should be rare, by kind",
            self.notices.clone(),
        );
    }

    fn show_azure(&self, registry: &mut Registry) {
        for ((name, help), (_, family)) in AZURE.iter().zip(self.figures.iter()) {
            registry.register(*name, *help, family.clone());
        }
        registry.register_with_unit(
            "http_request_latency",
            "Duration of requests, by path and return code",
            Unit::Seconds,
            self.requests.clone(),
        );
        registry.register_with_unit(
            "ip_assignment_latency",
            "Time from the first request of a pod to its addresses",
            Unit::Seconds,
            self.add_wait.clone(),
        );
        registry.register(
            "nnc_has_nodenetworkconfig",
            "1 once the NodeNetworkConfig was observed",
            self.has_config.clone(),
        );
        registry.register("nnc_ncs", "Network containers", self.containers.clone());
    }

    pub(crate) fn network_seen(&self) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seconds = since.map_or(0, |since| since.as_secs());
        self.network_seen.set(i64::try_from(seconds).unwrap_or(0));
    }

    pub(crate) fn commit_begins(&self, records: usize) {
        self.commits.inc();
        self.records.inc_by(records as u64);
        *self.begun.lock() = Some(Instant::now());
    }

    pub(crate) fn committed(&self) {
        if let Some(begun) = self.begun.lock().take() {
            self.commit_time.observe(begun.elapsed().as_secs_f64());
        }
    }

    pub(crate) fn commit_failed(&self) {
        self.begun.lock().take();
    }

    pub(crate) fn synced(&self, times: u64) {
        self.syncs.inc_by(times);
    }

    pub(crate) fn installer_repaired(&self, repairs: i64) {
        self.cni_repairs.set(repairs);
    }

    pub(crate) fn store_failed(&self) {
        self.store_failures.inc();
    }

    pub(crate) fn store_lost(&self) {
        self.stores_lost.inc();
    }

    pub(crate) fn written(&self, outcome: &'static str) {
        self.writes.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    pub(crate) fn answered(&self, reply: &Reply, took: Duration) {
        let outcome = match reply {
            Reply::Assigned(_) => {
                self.add_wait.observe(took.as_secs_f64());
                "assigned"
            }
            Reply::Released => "released",
            Reply::Refused(_) => "refused",
        };
        self.answers.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    pub(crate) fn requested(
        &self,
        url: &'static str,
        verb: &'static str,
        cns_return_code: &'static str,
        took: Duration,
    ) {
        let labels = RequestLabels {
            url,
            verb,
            cns_return_code,
        };
        let histogram = self.requests.get_or_create(&labels);
        histogram.observe(took.as_secs_f64());
    }

    pub(crate) fn noticed(&self, notice: &Notice) {
        let (what, count) = match notice {
            Notice::Config(_) => ("config_flaw", 1),
            Notice::Quarantined(..) => ("quarantined", 1),
            Notice::OfferedInUse(_) => ("offered_in_use", 1),
            Notice::Adopted(..) => ("adopted", 1),
            Notice::Swept(..) => ("swept", 1),
            Notice::LateAdd(_) => ("late_add", 1),
            Notice::Reclaimed(names) => ("reclaimed", names.len() as u64),
        };
        self.notices
            .get_or_create(&NoticeLabels { what })
            .inc_by(count);
    }

    /// Updates the gauges from a snapshot.
    pub(crate) fn measure(&self, snapshot: &Snapshot<'_>) {
        let pool = snapshot.pool;
        for family in pool.served_families() {
            for (state, count) in states(pool.address_counts(family)) {
                let labels = AddressLabels {
                    family: report::family_name(family),
                    state,
                };
                self.addresses.get_or_create(&labels).set(count.into());
            }
        }
        self.waiting.set(pool.waiting().into());
        self.store_open.set(snapshot.store_open.into());
        self.synced.set(snapshot.synced.into());
        self.has_config.set(snapshot.config.is_some().into());
        self.containers
            .set(i64::try_from(pool.container_count()).unwrap_or(i64::MAX));
        let pods = snapshot.pods.map_or(0, <[_]>::len);
        let demand = needed(pool, u32::try_from(pods).unwrap_or(u32::MAX));
        self.demand.set(demand.into());
        if let Some(config) = snapshot.config {
            let (scaler, _) = Scaler::read(config.status.scaler.as_ref());
            self.target.set(scaler.target(demand).into());
            self.requested.set(config.spec.requested);
            self.measure_azure(snapshot, scaler, config.spec.requested);
        }
    }

    fn measure_azure(&self, snapshot: &Snapshot<'_>, scaler: Scaler, requested: i64) {
        let Some(container) = (snapshot.config).and_then(|config| config.status.containers.first())
        else {
            return;
        };
        let cidr = container.subnets.first().map(ToString::to_string);
        let labels = SubnetLabels {
            subnet: container.subnet.to_string(),
            subnet_cidr: cidr.unwrap_or_default(),
            podnet_arm_id: String::new(),
            customer_metric: "customer metric",
        };
        // Of one family, as the request is: a sum over both would look like a leak.
        let all = report::scarcest(snapshot.pool);
        let held = i64::from(all.held());
        let values: [i64; AZURE.len()] = [
            all.assigned.into(),
            all.available.into(),
            scaler.batch().into(),
            held - i64::from(all.assigned) - i64::from(all.releasing),
            requested - i64::from(all.assigned),
            scaler.maximum().into(),
            all.programming.into(),
            all.releasing.into(),
            requested,
            held,
            held,
            snapshot.exhausted.into(),
        ];
        for ((_, family), value) in self.figures.iter().zip(values) {
            family.get_or_create(&labels).set(value);
        }
    }
}

fn states(address_counts: AddressCounts) -> [(&'static str, u32); 6] {
    [
        ("available", address_counts.available),
        ("assigned", address_counts.assigned),
        ("cooling", address_counts.cooling),
        ("releasing", address_counts.releasing),
        ("programming", address_counts.programming),
        ("quarantined", address_counts.quarantined),
    ]
}
