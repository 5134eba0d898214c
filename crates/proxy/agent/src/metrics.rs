//! Metrics: kube-proxy's under their own names, ours under `weft_proxy_`.
//!
//! Names, labels, types and buckets are those of kube-proxy 1.36, so that dashboards and alerts
//! keep working. A series with labels appears on first use.

use std::{fmt, sync::Arc, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use weft_model::IpFamily;
use weft_proxy::{
    AuditReport, RepairedPart, SyncError, SyncReport, config::Mode, schedule::SyncKind,
};

pub mod connections;
mod localhost;
mod mode;

use localhost::LocalhostMetrics;
use mode::ModeMetrics;

/// The kernel's packet counters, read for each scrape. `None` if the kernel has no such counter.
pub trait PacketCounters: Send + Sync + 'static {
    /// Packets dropped in conntrack state INVALID.
    fn invalid_dropped(&self) -> Option<u64>;
    /// Packets to NodePorts on localhost.
    fn localhost_node_ports_accepted(&self) -> Option<u64>;
}

/// A kernel without counters.
impl PacketCounters for () {
    fn invalid_dropped(&self) -> Option<u64> {
        None
    }

    fn localhost_node_ports_accepted(&self) -> Option<u64> {
        None
    }
}

/// A page of the health server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthPage {
    /// The page `/healthz`.
    Healthz,
    /// The page `/livez`.
    Livez,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FamilyLabel {
    ip_family: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TableLabels {
    table: &'static str,
    ip_family: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    traffic_policy: &'static str,
    ip_family: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
    ip_family: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ScopeLabels {
    scope: &'static str,
    ip_family: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

type Durations = Family<FamilyLabel, Histogram, fn() -> Histogram>;
type Timestamps = Family<FamilyLabel, Gauge<f64, std::sync::atomic::AtomicU64>>;

fn label(family: IpFamily) -> FamilyLabel {
    FamilyLabel {
        ip_family: family.as_str(),
    }
}

/// Buckets from 1 ms to 16 s, doubling.
fn sync_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// Buckets from 0.25 s to 5 min, with growing width.
fn programming_histogram() -> Histogram {
    let seconds = (1..60)
        .chain((60..120).step_by(5))
        .chain((120..=300).step_by(30));
    Histogram::new([0.25, 0.5].into_iter().chain(seconds.map(f64::from)))
}

/// All metrics. Clones share the same series.
#[derive(Clone)]
pub struct ProxyMetrics {
    sync: Durations,
    sync_full: Durations,
    sync_partial: Durations,
    last_synced: Timestamps,
    last_queued: Timestamps,
    programming: Durations,
    endpoint_changes_pending: Gauge,
    endpoint_changes: Counter,
    service_changes_pending: Gauge,
    service_changes: Counter,
    mode: ModeMetrics,
    localhost: LocalhostMetrics,
    no_local_endpoints: Family<PolicyLabels, Gauge>,
    healthz: Family<CodeLabel, Counter>,
    livez: Family<CodeLabel, Counter>,
    conntrack: Durations,
    conntrack_deleted: Family<FamilyLabel, Counter>,
    own: OwnMetrics,
}

#[derive(Clone, Default)]
struct OwnMetrics {
    audits: Family<ResultLabels, Counter>,
    repaired_chains: Family<TableLabels, Counter>,
    repaired_elements: Family<FamilyLabel, Counter>,
    restore_bytes: Family<ScopeLabels, Counter>,
    object_problems: Family<KindLabel, Counter>,
    recovered: Family<FamilyLabel, Counter>,
    consecutive_failures: Family<FamilyLabel, Gauge>,
    quarantined: Family<FamilyLabel, Gauge>,
    quarantines: Family<FamilyLabel, Counter>,
}

impl fmt::Debug for ProxyMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProxyMetrics")
    }
}

impl ProxyMetrics {
    /// Creates the metrics of a mode and registers them. The packet counters exist in the iptables
    /// mode only and are not read in another.
    pub fn register(
        registry: &mut Registry,
        mode: Mode,
        counters: Arc<dyn PacketCounters>,
    ) -> Self {
        let metrics = Self::unregistered(mode);
        metrics.mode.register(registry);
        metrics.register_upstream(registry.sub_registry_with_prefix("kubeproxy"));
        metrics
            .own
            .register(registry.sub_registry_with_prefix("weft_proxy"));
        if mode == Mode::Iptables {
            registry.register_collector(Box::new(PacketCollector(counters)));
        }
        metrics
    }

    /// Registers the metrics of NodePorts on loopback addresses, which exist with their gate only.
    pub fn register_localhost(&self, registry: &mut Registry) {
        self.localhost.register(registry);
    }

    /// Sets the number of listeners for NodePorts on the loopback address.
    pub fn localhost_listeners(&self, family: IpFamily, count: usize) {
        let listeners = self.localhost.listeners.get_or_create(&label(family));
        listeners.set(signed(count));
    }

    /// Records a listener for a NodePort on the loopback address that could not be opened.
    pub fn localhost_listener_failed(&self, family: IpFamily) {
        self.localhost.failures.get_or_create(&label(family)).inc();
    }

    fn unregistered(mode: Mode) -> Self {
        let durations = || Durations::new_with_constructor(sync_histogram);
        Self {
            sync: durations(),
            sync_full: durations(),
            sync_partial: durations(),
            last_synced: Family::default(),
            last_queued: Family::default(),
            programming: Durations::new_with_constructor(programming_histogram),
            endpoint_changes_pending: Gauge::default(),
            endpoint_changes: Counter::default(),
            service_changes_pending: Gauge::default(),
            service_changes: Counter::default(),
            mode: ModeMetrics::of(mode),
            localhost: LocalhostMetrics::default(),
            no_local_endpoints: Family::default(),
            healthz: Family::default(),
            livez: Family::default(),
            conntrack: durations(),
            conntrack_deleted: Family::default(),
            own: OwnMetrics::default(),
        }
    }

    /// The encoder appends `_total` to counters; a gauge with that suffix has it in its name.
    fn register_upstream(&self, registry: &mut Registry) {
        registry.register(
            "sync_proxy_rules_duration_seconds",
            "Duration of a sync",
            self.sync.clone(),
        );
        registry.register(
            "sync_full_proxy_rules_duration_seconds",
            "Duration of a full sync",
            self.sync_full.clone(),
        );
        registry.register(
            "sync_partial_proxy_rules_duration_seconds",
            "Duration of a partial sync",
            self.sync_partial.clone(),
        );
        registry.register(
            "sync_proxy_rules_last_timestamp_seconds",
            "Time of the last successful sync",
            self.last_synced.clone(),
        );
        registry.register(
            "sync_proxy_rules_last_queued_timestamp_seconds",
            "Time of the last request for a sync",
            self.last_queued.clone(),
        );
        registry.register(
            "network_programming_duration_seconds",
            "Time from a change of endpoints to the rules for it",
            self.programming.clone(),
        );
        registry.register(
            "sync_proxy_rules_endpoint_changes_pending",
            "EndpointSlice changes that wait for a sync",
            self.endpoint_changes_pending.clone(),
        );
        registry.register(
            "sync_proxy_rules_endpoint_changes",
            "EndpointSlice changes received",
            self.endpoint_changes.clone(),
        );
        registry.register(
            "sync_proxy_rules_service_changes_pending",
            "Service changes that wait for a sync",
            self.service_changes_pending.clone(),
        );
        registry.register(
            "sync_proxy_rules_service_changes",
            "Service changes received",
            self.service_changes.clone(),
        );
        registry.register(
            "sync_proxy_rules_no_local_endpoints_total",
            "Service ports with policy Local and no endpoint on this node",
            self.no_local_endpoints.clone(),
        );
        registry.register(
            "proxy_healthz",
            "Responses of /healthz",
            self.healthz.clone(),
        );
        registry.register("proxy_livez", "Responses of /livez", self.livez.clone());
        registry.register(
            "conntrack_reconciler_sync_duration_seconds",
            "Duration of deleting stale conntrack entries",
            self.conntrack.clone(),
        );
        registry.register(
            "conntrack_reconciler_deleted_entries",
            "Conntrack entries deleted",
            self.conntrack_deleted.clone(),
        );
    }

    /// Records a requested sync. Times are Unix times in seconds.
    pub fn sync_queued(&self, family: IpFamily, at: f64) {
        self.last_queued.get_or_create(&label(family)).set(at);
    }

    /// Records the end of a sync, successful or not.
    pub fn sync_ended(&self, family: IpFamily, kind: SyncKind, took: Duration) {
        let seconds = took.as_secs_f64();
        let of_kind = match kind {
            SyncKind::Full => &self.sync_full,
            SyncKind::Partial => &self.sync_partial,
        };
        for durations in [&self.sync, of_kind] {
            durations.get_or_create(&label(family)).observe(seconds);
        }
    }

    /// Records a successful sync and its report.
    pub fn sync_succeeded(&self, family: IpFamily, at: f64, report: &SyncReport) {
        let family_label = label(family);
        self.last_synced.get_or_create(&family_label).set(at);
        if report.partial_failure.is_some() {
            self.mode.partial_sync_failed(family);
            self.own.recovered.get_or_create(&family_label).inc();
        }
        let refused = report.refusals.len() as u64;
        if refused > 0 {
            self.mode.writes_failed(family, refused);
        }
        self.mode.synced(family, report);
        self.begin_repairs(family, report);
        let missing = report.without_local_endpoints;
        for (traffic_policy, count) in [
            ("internal", missing.internal),
            ("external", missing.external),
        ] {
            let labels = PolicyLabels {
                traffic_policy,
                ip_family: family.as_str(),
            };
            self.no_local_endpoints
                .get_or_create(&labels)
                .set(signed(count));
        }
        let scope = if report.full { "full" } else { "partial" };
        let labels = ScopeLabels {
            scope,
            ip_family: family.as_str(),
        };
        let bytes = self.own.restore_bytes.get_or_create(&labels);
        bytes.inc_by(report.bytes as u64);
        drop(bytes);
        let failures = &self.own.consecutive_failures;
        failures.get_or_create(&family_label).set(0);
    }

    /// Records a failed sync: the full one failed, and a retry follows later. Only a refused input
    /// counts as a failed write, not a state that cannot be read. A partial sync that failed before
    /// it counts too; [`sync_succeeded`](Self::sync_succeeded) counts those whose full sync
    /// succeeded.
    pub fn sync_failed(&self, family: IpFamily, failure: &SyncError) {
        let labels = label(family);
        let tried = std::iter::once(failure).chain(failure.partial());
        for _ in tried.filter(|tried| tried.input().is_some()) {
            self.mode.writes_failed(family, 1);
        }
        if failure.partial().is_some() {
            self.mode.partial_sync_failed(family);
        }
        self.own.consecutive_failures.get_or_create(&labels).inc();
    }

    /// Exposes the counters of repairs before there is one: `increase` in an alert rule does not see
    /// a series that begins above zero.
    fn begin_repairs(&self, family: IpFamily, report: &SyncReport) {
        let by_rules = report.rules.iter().map(|(table, _)| *table);
        let by_elements = report.elements.is_some().then_some(weft_nftables::TABLE);
        for table in by_rules.chain(by_elements) {
            let labels = TableLabels::of(table, family);
            self.own.repaired_chains.get_or_create(&labels).inc_by(0);
        }
        if report.elements.is_some() {
            let elements = &self.own.repaired_elements;
            elements.get_or_create(&label(family)).inc_by(0);
        }
    }

    /// Sets the number of quarantined Services, and counts those added by this sync.
    pub fn quarantined(&self, family: IpFamily, count: usize, new: usize) {
        let family = label(family);
        self.own
            .quarantined
            .get_or_create(&family)
            .set(signed(count));
        self.own
            .quarantines
            .get_or_create(&family)
            .inc_by(new as u64);
    }

    /// Records the time from a change of endpoints to its rules.
    pub fn network_programmed(&self, family: IpFamily, took: Duration) {
        let programming = self.programming.get_or_create(&label(family));
        programming.observe(took.as_secs_f64());
    }

    /// Records a change of a slice. `pending` if a sync has to follow.
    pub fn endpoints_changed(&self, pending: bool) {
        self.endpoint_changes.inc();
        if pending {
            self.endpoint_changes_pending.inc();
        }
    }

    /// Records that a sync took all changes of endpoints.
    pub fn endpoints_taken(&self) {
        self.endpoint_changes_pending.set(0);
    }

    /// Records a change of a Service, with the number that wait for a sync.
    pub fn service_changed(&self, pending: usize) {
        self.service_changes.inc();
        self.service_changes_pending.set(signed(pending));
    }

    /// Records that a sync took all changes of Services.
    pub fn services_taken(&self) {
        self.service_changes_pending.set(0);
    }

    /// Records that stale conntrack entries were deleted.
    pub fn conntrack_cleaned(&self, family: IpFamily, took: Duration, deleted: u64) {
        let family = label(family);
        let durations = self.conntrack.get_or_create(&family);
        durations.observe(took.as_secs_f64());
        drop(durations);
        self.conntrack_deleted
            .get_or_create(&family)
            .inc_by(deleted);
    }

    /// Records a response of the health server.
    pub fn health_answered(&self, page: HealthPage, healthy: bool) {
        let code = if healthy { "200" } else { "503" };
        let answers = match page {
            HealthPage::Healthz => &self.healthz,
            HealthPage::Livez => &self.livez,
        };
        answers.get_or_create(&CodeLabel { code }).inc();
    }

    /// Records an audit: its report, or `None` if it failed.
    pub fn audited(&self, family: IpFamily, report: Option<&AuditReport>) {
        let repaired = match report {
            Some(AuditReport::Read { repaired, .. }) => repaired.as_slice(),
            _ => &[],
        };
        let result = match report {
            None => "failed",
            Some(AuditReport::Postponed) => "postponed",
            Some(_) if repaired.is_empty() => "clean",
            Some(_) => "repaired",
        };
        let labels = ResultLabels {
            result,
            ip_family: family.as_str(),
        };
        self.own.audits.get_or_create(&labels).inc();
        for repair in repaired {
            match repair.part {
                RepairedPart::Elements(count) => {
                    let elements = &self.own.repaired_elements;
                    elements.get_or_create(&label(family)).inc_by(count as u64);
                }
                RepairedPart::Table | RepairedPart::Chain(_) | RepairedPart::VerdictMap(_) => {
                    let labels = TableLabels::of(repair.table, family);
                    self.own.repaired_chains.get_or_create(&labels).inc();
                }
            }
        }
    }

    /// Counts an invalid value in an object.
    pub fn object_problem(&self, kind: &'static str) {
        self.own
            .object_problems
            .get_or_create(&KindLabel { kind })
            .inc();
    }
}

impl TableLabels {
    fn of(table: &'static str, family: IpFamily) -> Self {
        Self {
            table,
            ip_family: family.as_str(),
        }
    }
}

impl OwnMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "audits",
            "Comparisons of the kernel's rules with those written, by result",
            self.audits.clone(),
        );
        registry.register(
            "repaired_chains",
            "Chains changed by another process and repaired",
            self.repaired_chains.clone(),
        );
        registry.register(
            "repaired_elements",
            "Elements of nftables maps changed by another process and repaired",
            self.repaired_elements.clone(),
        );
        registry.register(
            "restore_bytes",
            "Bytes given to iptables-restore, or to nftables",
            self.restore_bytes.clone(),
        );
        registry.register(
            "object_problems",
            "Invalid values in objects that were left out or clamped",
            self.object_problems.clone(),
        );
        registry.register(
            "partial_failures_recovered",
            "Failed partial syncs whose full sync succeeded",
            self.recovered.clone(),
        );
        registry.register(
            "consecutive_sync_failures",
            "Failed syncs since the last successful one",
            self.consecutive_failures.clone(),
        );
        registry.register(
            "quarantined_services",
            "Services without rules because the kernel refuses them",
            self.quarantined.clone(),
        );
        registry.register(
            "quarantines",
            "Times a Service was quarantined because the kernel refused its rules",
            self.quarantines.clone(),
        );
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

struct PacketCollector(Arc<dyn PacketCounters>);

impl fmt::Debug for PacketCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PacketCollector")
    }
}

impl Collector for PacketCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut counter = |name: &str, help: &str, packets: Option<u64>| {
            let Some(packets) = packets else {
                return Ok(());
            };
            encoder
                .encode_descriptor(name, help, None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, _, u64>(&packets, None)
        };
        counter(
            "kubeproxy_iptables_ct_state_invalid_dropped_packets",
            "Packets dropped in conntrack state INVALID.",
            self.0.invalid_dropped(),
        )?;
        counter(
            "kubeproxy_iptables_localhost_nodeports_accepted_packets",
            "Packets accepted for NodePorts on localhost.",
            self.0.localhost_node_ports_accepted(),
        )
    }
}
