//! Metrics that exist in one mode only: of rules in the iptables mode, of elements in the nftables
//! mode.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use weft_model::IpFamily;
use weft_proxy::{SyncReport, config::Mode};

use super::{FamilyLabel, TableLabels, label, signed};

/// The metrics of the mode that the process runs in.
#[derive(Clone)]
pub(super) enum ModeMetrics {
    Iptables(RuleMetrics),
    Nftables(ElementMetrics),
}

#[derive(Clone, Default)]
pub(super) struct RuleMetrics {
    total: Family<TableLabels, Gauge>,
    last: Family<TableLabels, Gauge>,
    failures: Family<FamilyLabel, Counter>,
    partial_failures: Family<FamilyLabel, Counter>,
}

#[derive(Clone, Default)]
pub(super) struct ElementMetrics {
    total: Family<FamilyLabel, Gauge>,
    last: Family<FamilyLabel, Gauge>,
    failures: Family<FamilyLabel, Counter>,
    cleanup_failures: Family<FamilyLabel, Counter>,
    contested: Family<FamilyLabel, Gauge>,
}

impl ModeMetrics {
    pub(super) fn of(mode: Mode) -> Self {
        match mode {
            Mode::Iptables => Self::Iptables(RuleMetrics::default()),
            Mode::Nftables => Self::Nftables(ElementMetrics::default()),
        }
    }

    /// Registers kube-proxy's metrics of the mode, and our own.
    pub(super) fn register(&self, registry: &mut Registry) {
        match self {
            Self::Iptables(rules) => {
                rules.register(registry.sub_registry_with_prefix("kubeproxy"));
            }
            Self::Nftables(elements) => {
                elements.register(registry.sub_registry_with_prefix("kubeproxy"));
                elements.register_own(registry.sub_registry_with_prefix("weft_proxy"));
            }
        }
    }

    /// Records the report of a successful sync.
    pub(super) fn synced(&self, family: IpFamily, report: &SyncReport) {
        match self {
            Self::Iptables(rules) => rules.synced(family, report),
            Self::Nftables(elements) => elements.synced(family, report),
        }
    }

    /// Records writes that failed.
    pub(super) fn writes_failed(&self, family: IpFamily, count: u64) {
        let failures = match self {
            Self::Iptables(rules) => &rules.failures,
            Self::Nftables(elements) => &elements.failures,
        };
        failures.get_or_create(&label(family)).inc_by(count);
    }

    /// Records a failed partial sync, whose write counts as failed.
    pub(super) fn partial_sync_failed(&self, family: IpFamily) {
        self.writes_failed(family, 1);
        // kube-proxy's nftables mode does not count them apart.
        if let Self::Iptables(rules) = self {
            rules.partial_failures.get_or_create(&label(family)).inc();
        }
    }
}

impl RuleMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "sync_proxy_rules_iptables_total",
            "Rules that should exist",
            self.total.clone(),
        );
        registry.register(
            "sync_proxy_rules_iptables_last",
            "Rules written by the last sync",
            self.last.clone(),
        );
        registry.register(
            "sync_proxy_rules_iptables_restore_failures",
            "Failed restores",
            self.failures.clone(),
        );
        registry.register(
            "sync_proxy_rules_iptables_partial_restore_failures",
            "Failed partial syncs that were followed by a full one",
            self.partial_failures.clone(),
        );
    }

    fn synced(&self, family: IpFamily, report: &SyncReport) {
        for (table, count) in &report.rules {
            let labels = TableLabels::of(table, family);
            self.total.get_or_create(&labels).set(signed(count.total));
            self.last.get_or_create(&labels).set(signed(count.written));
        }
    }
}

impl ElementMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "sync_proxy_rules_nftables_sync_failures",
            "Cumulative proxy nftables sync failures",
            self.failures.clone(),
        );
        registry.register(
            "sync_proxy_rules_nftables_cleanup_failures",
            "Cumulative proxy nftables cleanup failures",
            self.cleanup_failures.clone(),
        );
    }

    fn register_own(&self, registry: &mut Registry) {
        registry.register(
            "nftables_elements",
            "Elements of maps and sets that should exist",
            self.total.clone(),
        );
        registry.register(
            "nftables_elements_last",
            "Elements added, replaced or deleted by the last sync",
            self.last.clone(),
        );
        registry.register(
            "contested_fronts",
            "Addresses and ports that a Service names and another Service has",
            self.contested.clone(),
        );
    }

    fn synced(&self, family: IpFamily, report: &SyncReport) {
        let label = label(family);
        if let Some(count) = report.elements {
            let contested = self.contested.get_or_create(&label);
            contested.set(signed(count.contested));
            self.total.get_or_create(&label).set(signed(count.total));
            self.last.get_or_create(&label).set(signed(count.written));
        }
        if report.cleanup_failure.is_some() {
            self.cleanup_failures.get_or_create(&label).inc();
        }
    }
}
