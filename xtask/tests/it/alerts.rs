//! Alert rules are about figures that exist.

use std::{collections::BTreeSet, path::Path};

use crate::tree;

const RULES: &str = "deploy/monitoring/alerts.yaml";

/// The metrics that an expression names: words with an underscore that are no functions.
fn metrics(expression: &str) -> BTreeSet<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    let mut rest = expression;
    while let Some(start) = rest.find(is_word) {
        rest = &rest[start..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.contains('_') && !after.starts_with('(') {
            found.insert(word);
        }
        rest = after;
    }
    found
}

/// Names under which a metric may be registered: an exporter adds a type's ending and a unit,
/// a registry its prefix.
fn spellings(metric: &str) -> Vec<&str> {
    let mut names = vec![metric];
    for ending in ["_total", "_bucket"] {
        if let Some(name) = metric.strip_suffix(ending) {
            // A counter is never registered with its ending.
            names = vec![name];
        }
    }
    let unitless: Vec<&str> = names
        .iter()
        .filter_map(|n| n.strip_suffix("_seconds"))
        .collect();
    names.extend(unitless);
    let bare: Vec<&str> = names
        .iter()
        .flat_map(|name| ["kubeproxy_", "weft_proxy_"].map(|prefix| name.strip_prefix(prefix)))
        .flatten()
        .collect();
    names.extend(bare);
    names
}

#[test]
fn every_alert_is_about_metrics_that_are_registered() {
    let sources: Vec<String> = [
        "crates/ipam/allocator/src",
        "crates/ipam/daemon/src",
        "crates/proxy/agent/src",
        "crates/routes/agent/src",
        "crates/runtime/src",
        "crates/routes/providers/src",
    ]
    .iter()
    .flat_map(|directory| tree::files(Path::new(directory)))
    .map(tree::read)
    .collect();
    let is_registered = |name: &str| {
        let literal = format!("\"{name}\"");
        sources.iter().any(|source| source.contains(&literal))
    };
    let rules = tree::read(RULES);
    let expressions = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    let named: BTreeSet<&str> = expressions.flat_map(metrics).collect();
    assert!(named.len() > 15, "only {named:?}");
    for metric in named {
        let known = spellings(metric).into_iter().any(is_registered);
        assert!(known, "nothing registers {metric}");
    }
}

#[test]
fn every_component_has_alerts_and_each_says_what_it_is_about() {
    let rules = tree::read(RULES);
    for group in ["weft-proxy", "weft-ipam", "weft-routes", "weft-controller"] {
        assert!(rules.contains(&format!("- name: {group}\n")), "{group}");
    }
    let count = |text: &str| {
        rules
            .lines()
            .filter(|line| line.trim().starts_with(text))
            .count()
    };
    let alerts = count("- alert: ");
    assert_eq!(count("expr: "), alerts);
    assert_eq!(count("summary: "), alerts);
    assert_eq!(count("labels: {severity: "), alerts);
}

#[test]
fn names_in_expressions_are_recognised() {
    let expression =
        "histogram_quantile(0.9, rate(a_b_bucket[1m])) > 1 unless on (x) c_d{e=\"f\"} == 0";
    assert_eq!(metrics(expression), BTreeSet::from(["a_b_bucket", "c_d"]));
    assert_eq!(spellings("kubeproxy_a_total"), ["kubeproxy_a", "a"]);
    assert_eq!(spellings("w_s_seconds_bucket"), ["w_s_seconds", "w_s"]);
}
