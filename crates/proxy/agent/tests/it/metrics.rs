//! Metrics compared with the names, types, labels and buckets of kube-proxy.

use std::{sync::Arc, time::Duration};

use prometheus_client::registry::Registry;
use weft_model::IpFamily;
use weft_proxy::{
    AuditReport, Deviation, ElementCount, Repair, RepairedPart, SyncError, SyncReport,
    backend::{RuleCount, WithoutLocalEndpoints},
    config::Mode,
    schedule::SyncKind,
};
use weft_proxy_agent::metrics::{HealthPage, PacketCounters, ProxyMetrics};
use weft_runtime::prometheus_text;

struct Counting;

impl PacketCounters for Counting {
    fn invalid_dropped(&self) -> Option<u64> {
        Some(3)
    }

    fn localhost_node_ports_accepted(&self) -> Option<u64> {
        Some(4)
    }
}

fn used(mode: Mode) -> Registry {
    let mut registry = Registry::default();
    let metrics = ProxyMetrics::register(&mut registry, mode, Arc::new(Counting));
    let family = IpFamily::V4;
    metrics.sync_queued(family, 1.5);
    metrics.sync_ended(family, SyncKind::Full, Duration::ZERO);
    metrics.sync_ended(family, SyncKind::Partial, Duration::ZERO);
    let counted = |total, written| RuleCount { total, written };
    let refused = SyncError::unreadable("refused");
    let report = SyncReport {
        full: true,
        partial_failure: Some(refused),
        bytes: 100,
        rules: match mode {
            Mode::Iptables => vec![("filter", counted(5, 1)), ("nat", counted(6, 2))],
            Mode::Nftables => Vec::new(),
        },
        elements: (mode == Mode::Nftables).then_some(ElementCount {
            total: 11,
            written: 12,
            contested: 3,
        }),
        cleanup_failure: (mode == Mode::Nftables).then(|| "it is in use".to_owned()),
        without_local_endpoints: WithoutLocalEndpoints {
            internal: 7,
            external: 8,
        },
        ..SyncReport::default()
    };
    metrics.sync_succeeded(family, 2.5, &report);
    metrics.sync_failed(family, &SyncError::unavailable("refused", "*nat"));
    metrics.network_programmed(family, Duration::ZERO);
    metrics.endpoints_changed(true);
    metrics.service_changed(9);
    metrics.health_answered(HealthPage::Healthz, true);
    metrics.health_answered(HealthPage::Livez, false);
    metrics.conntrack_cleaned(family, Duration::ZERO, 2);
    let repair = |table, part| Repair {
        table,
        part,
        deviation: Deviation::Differs,
    };
    let repaired = match mode {
        Mode::Iptables => vec![
            repair("nat", RepairedPart::Chain("KUBE-SERVICES".into())),
            repair("nat", RepairedPart::Chain("KUBE-NODEPORTS".into())),
            repair("filter", RepairedPart::Chain("KUBE-FORWARD".into())),
        ],
        Mode::Nftables => vec![
            repair("weft", RepairedPart::Chain("services".into())),
            repair("weft", RepairedPart::Elements(13)),
        ],
    };
    let report = AuditReport::Read {
        repaired,
        children: Duration::ZERO,
    };
    metrics.audited(family, Some(&report));
    metrics.object_problem("Service");
    metrics.quarantined(family, 3, 4);
    registry
}

fn histogram(name: &str, bounds: &[String]) -> Vec<String> {
    let count = if name.ends_with("sync_proxy_rules_duration_seconds") {
        2
    } else {
        1
    };
    let mut lines = vec![
        format!("# TYPE {name} histogram"),
        format!("{name}_sum{{ip_family=\"IPv4\"}} 0.0"),
        format!("{name}_count{{ip_family=\"IPv4\"}} {count}"),
    ];
    let bounds = bounds.iter().map(String::as_str).chain(["+Inf"]);
    lines.extend(
        bounds.map(|le| format!("{name}_bucket{{le=\"{le}\",ip_family=\"IPv4\"}} {count}")),
    );
    lines
}

/// The names, types, labels and buckets that kube-proxy 1.36.4 exposes in iptables mode.
#[test]
fn every_metric_has_kube_proxys_name_type_labels_and_buckets() {
    let sync: Vec<String> = [
        "0.001", "0.002", "0.004", "0.008", "0.016", "0.032", "0.064", "0.128", "0.256", "0.512",
        "1.024", "2.048", "4.096", "8.192", "16.384",
    ]
    .map(str::to_owned)
    .into();
    let programming: Vec<String> = ["0.25", "0.5"]
        .map(str::to_owned)
        .into_iter()
        .chain((1..=59).map(|second| second.to_string()))
        .chain((0..12).map(|step| (60 + 5 * step).to_string()))
        .chain((0..7).map(|step| (120 + 30 * step).to_string()))
        .collect();
    let plain = |lines: &[&str]| -> Vec<String> {
        lines
            .iter()
            .map(|line| line.replace("(4)", "{ip_family=\"IPv4\"}"))
            .collect()
    };
    let expected: Vec<String> = [
        histogram("kubeproxy_sync_proxy_rules_duration_seconds", &sync),
        histogram("kubeproxy_sync_full_proxy_rules_duration_seconds", &sync),
        histogram("kubeproxy_sync_partial_proxy_rules_duration_seconds", &sync),
        plain(&[
            "# TYPE kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds(4) 2.5",
            "# TYPE kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge",
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds(4) 1.5",
        ]),
        histogram(
            "kubeproxy_network_programming_duration_seconds",
            &programming,
        ),
        plain(&[
            "# TYPE kubeproxy_sync_proxy_rules_endpoint_changes_pending gauge",
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending 1",
            "# TYPE kubeproxy_sync_proxy_rules_endpoint_changes_total counter",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total 1",
            "# TYPE kubeproxy_sync_proxy_rules_service_changes_pending gauge",
            "kubeproxy_sync_proxy_rules_service_changes_pending 9",
            "# TYPE kubeproxy_sync_proxy_rules_service_changes_total counter",
            "kubeproxy_sync_proxy_rules_service_changes_total 1",
            "# TYPE kubeproxy_sync_proxy_rules_iptables_total gauge",
            "kubeproxy_sync_proxy_rules_iptables_total{table=\"filter\",ip_family=\"IPv4\"} 5",
            "kubeproxy_sync_proxy_rules_iptables_total{table=\"nat\",ip_family=\"IPv4\"} 6",
            "# TYPE kubeproxy_sync_proxy_rules_iptables_last gauge",
            "kubeproxy_sync_proxy_rules_iptables_last{table=\"filter\",ip_family=\"IPv4\"} 1",
            "kubeproxy_sync_proxy_rules_iptables_last{table=\"nat\",ip_family=\"IPv4\"} 2",
            "# TYPE kubeproxy_sync_proxy_rules_iptables_restore_failures_total counter",
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total(4) 2",
            "# TYPE kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total counter",
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total(4) 1",
            "# TYPE kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge",
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total\
             {traffic_policy=\"external\",ip_family=\"IPv4\"} 8",
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total\
             {traffic_policy=\"internal\",ip_family=\"IPv4\"} 7",
            "# TYPE kubeproxy_proxy_healthz_total counter",
            "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
            "# TYPE kubeproxy_proxy_livez_total counter",
            "kubeproxy_proxy_livez_total{code=\"503\"} 1",
        ]),
        histogram(
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            &sync,
        ),
        plain(&[
            "# TYPE kubeproxy_conntrack_reconciler_deleted_entries_total counter",
            "kubeproxy_conntrack_reconciler_deleted_entries_total(4) 2",
            "# TYPE weft_proxy_audits_total counter",
            "weft_proxy_audits_total{result=\"repaired\",ip_family=\"IPv4\"} 1",
            "# TYPE weft_proxy_repaired_chains_total counter",
            "weft_proxy_repaired_chains_total{table=\"filter\",ip_family=\"IPv4\"} 1",
            "weft_proxy_repaired_chains_total{table=\"nat\",ip_family=\"IPv4\"} 2",
            "# TYPE weft_proxy_restore_bytes_total counter",
            "weft_proxy_restore_bytes_total{scope=\"full\",ip_family=\"IPv4\"} 100",
            "# TYPE weft_proxy_object_problems_total counter",
            "weft_proxy_object_problems_total{kind=\"Service\"} 1",
            "# TYPE weft_proxy_partial_failures_recovered_total counter",
            "weft_proxy_partial_failures_recovered_total(4) 1",
            "# TYPE weft_proxy_consecutive_sync_failures gauge",
            "weft_proxy_consecutive_sync_failures(4) 1",
            "# TYPE weft_proxy_quarantined_services gauge",
            "weft_proxy_quarantined_services(4) 3",
            "# TYPE weft_proxy_quarantines_total counter",
            "weft_proxy_quarantines_total(4) 4",
            "# TYPE kubeproxy_iptables_ct_state_invalid_dropped_packets_total counter",
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total 3",
            "# TYPE kubeproxy_iptables_localhost_nodeports_accepted_packets_total counter",
            "kubeproxy_iptables_localhost_nodeports_accepted_packets_total 4",
        ]),
    ]
    .concat();
    // The order within a family of series is not defined.
    assert_eq!(
        sorted(&lines(&prometheus_text(&used(Mode::Iptables)))),
        sorted(&expected)
    );
}

/// The names and types that kube-proxy 1.37.1 exposes in nftables mode, and no others of its own.
#[test]
fn the_nftables_mode_has_the_metrics_of_kube_proxys_nftables_mode() {
    let text = prometheus_text(&used(Mode::Nftables));
    let types = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE kubeproxy_"));
    let mut types: Vec<&str> = types.collect();
    types.sort_unstable();
    assert_eq!(
        types,
        [
            "conntrack_reconciler_deleted_entries_total counter",
            "conntrack_reconciler_sync_duration_seconds histogram",
            "network_programming_duration_seconds histogram",
            "proxy_healthz_total counter",
            "proxy_livez_total counter",
            "sync_full_proxy_rules_duration_seconds histogram",
            "sync_partial_proxy_rules_duration_seconds histogram",
            "sync_proxy_rules_duration_seconds histogram",
            "sync_proxy_rules_endpoint_changes_pending gauge",
            "sync_proxy_rules_endpoint_changes_total counter",
            "sync_proxy_rules_last_queued_timestamp_seconds gauge",
            "sync_proxy_rules_last_timestamp_seconds gauge",
            "sync_proxy_rules_nftables_cleanup_failures_total counter",
            "sync_proxy_rules_nftables_sync_failures_total counter",
            "sync_proxy_rules_no_local_endpoints_total gauge",
            "sync_proxy_rules_service_changes_pending gauge",
            "sync_proxy_rules_service_changes_total counter",
        ]
    );
    for line in [
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 2",
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family=\"IPv4\"} 1",
        "# HELP kubeproxy_sync_proxy_rules_nftables_sync_failures_total Cumulative proxy nftables \
         sync failures.",
        "weft_proxy_nftables_elements{ip_family=\"IPv4\"} 11",
        "weft_proxy_nftables_elements_last{ip_family=\"IPv4\"} 12",
        "weft_proxy_contested_fronts{ip_family=\"IPv4\"} 3",
        "weft_proxy_repaired_chains_total{table=\"weft\",ip_family=\"IPv4\"} 1",
        "weft_proxy_repaired_elements_total{ip_family=\"IPv4\"} 13",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

fn lines(text: &str) -> Vec<String> {
    let kept = text.lines().filter(|line| !line.starts_with("# HELP"));
    kept.map(str::to_owned).collect()
}

fn sorted(lines: &[String]) -> Vec<String> {
    let mut lines = lines.to_vec();
    lines.sort();
    lines
}

#[test]
fn series_with_labels_appear_when_they_are_used_and_packets_where_they_are_counted() {
    let mut registry = Registry::default();
    ProxyMetrics::register(&mut registry, Mode::Iptables, Arc::new(()));
    let text = prometheus_text(&registry);
    let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        series,
        [
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total 0",
            "kubeproxy_sync_proxy_rules_service_changes_pending 0",
            "kubeproxy_sync_proxy_rules_service_changes_total 0",
        ]
    );
    assert!(!text.contains("nodeports_accepted"), "{text}");
}

#[test]
fn counters_of_repairs_are_there_after_the_first_sync() {
    for (mode, expected) in [
        (
            Mode::Iptables,
            &[
                "weft_proxy_repaired_chains_total{table=\"filter\",ip_family=\"IPv4\"} 0",
                "weft_proxy_repaired_chains_total{table=\"nat\",ip_family=\"IPv4\"} 0",
            ][..],
        ),
        (
            Mode::Nftables,
            &[
                "weft_proxy_repaired_chains_total{table=\"weft\",ip_family=\"IPv4\"} 0",
                "weft_proxy_repaired_elements_total{ip_family=\"IPv4\"} 0",
            ],
        ),
    ] {
        let mut registry = Registry::default();
        let metrics = ProxyMetrics::register(&mut registry, mode, Arc::new(()));
        let rules = RuleCount::default();
        let report = match mode {
            Mode::Iptables => SyncReport {
                rules: vec![("filter", rules), ("nat", rules)],
                ..SyncReport::default()
            },
            Mode::Nftables => SyncReport {
                elements: Some(ElementCount::default()),
                ..SyncReport::default()
            },
        };
        metrics.sync_succeeded(IpFamily::V4, 2.5, &report);
        let text = prometheus_text(&registry);
        let is_repair = |line: &&str| line.starts_with("weft_proxy_repaired");
        let mut found: Vec<&str> = text.lines().filter(is_repair).collect();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_sync_that_succeeds_ends_a_row_of_failures() {
    let mut registry = Registry::default();
    let metrics = ProxyMetrics::register(&mut registry, Mode::Iptables, Arc::new(()));
    let failures = || {
        let text = prometheus_text(&registry);
        let line = text
            .lines()
            .find(|line| line.starts_with("weft_proxy_consecutive_sync_failures{"));
        line.unwrap().rsplit(' ').next().unwrap().to_owned()
    };
    let refused = SyncError::unavailable("refused", "*nat");
    metrics.sync_failed(IpFamily::V6, &refused);
    metrics.sync_failed(IpFamily::V6, &refused);
    assert_eq!(failures(), "2");
    metrics.sync_succeeded(IpFamily::V6, 1.0, &SyncReport::default());
    assert_eq!(failures(), "0");
}
