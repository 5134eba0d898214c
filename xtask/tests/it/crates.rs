//! Arrows between crates point one way, and the pure ones stay pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::tree;

/// The crates of the workspace that each may use. A new crate gets its row here and in ARCHITECTURE.md.
const ARROWS: [(&str, &[&str]); 30] = [
    ("weft-check", &["weft-model"]),
    (
        "weft-conformance",
        &[
            "weft-heap",
            "weft-model",
            "weft-ruleset",
            "weft-runtime",
            "weft-testkit",
        ],
    ),
    ("weft-cns", &[]),
    ("weft-cni", &["weft-cns", "weft-model"]),
    ("weft-heap", &[]),
    ("weft-listener", &[]),
    ("weft-model", &[]),
    ("weft-ruleset", &["weft-model"]),
    ("weft-host", &["weft-model"]),
    ("weft-ipam", &["weft-model"]),
    ("weft-proxy", &["weft-model"]),
    ("weft-routes", &["weft-model"]),
    (
        "weft-providers",
        &["weft-host", "weft-model", "weft-routes"],
    ),
    (
        "weft-iptables",
        &["weft-host", "weft-model", "weft-proxy", "weft-ruleset"],
    ),
    ("weft-nftables", &["weft-host", "weft-model", "weft-proxy"]),
    (
        "weft-ipam-allocator",
        &["weft-ipam", "weft-model", "weft-process", "weft-runtime"],
    ),
    (
        "weft-ipam-daemon",
        &[
            "weft-cni",
            "weft-cns",
            "weft-ipam",
            "weft-listener",
            "weft-model",
            "weft-process",
            "weft-runtime",
        ],
    ),
    ("weft-process", &["weft-host", "weft-model", "weft-runtime"]),
    (
        "weft-proxy-agent",
        &[
            "weft-host",
            "weft-iptables",
            "weft-nftables",
            "weft-listener",
            "weft-model",
            "weft-process",
            "weft-proxy",
            "weft-ruleset",
            "weft-runtime",
        ],
    ),
    (
        "weft-routes-agent",
        &[
            "weft-host",
            "weft-ipam",
            "weft-model",
            "weft-process",
            "weft-providers",
            "weft-routes",
            "weft-runtime",
        ],
    ),
    ("weft-testserver", &["weft-apiserver"]),
    (
        "weft-dashboard",
        &[
            "weft-ipam",
            "weft-listener",
            "weft-model",
            "weft-proxy",
            "weft-runtime",
        ],
    ),
    ("weft-runtime", &["weft-listener", "weft-model"]),
    (
        "weft-playground",
        &[
            "weft-apiserver",
            "weft-check",
            "weft-cns",
            "weft-dashboard",
            "weft-host",
            "weft-model",
            "weft-runtime",
            "weft-testserver",
        ],
    ),
    ("weft-apiserver", &["weft-listener", "weft-model"]),
    ("weft-testkit", &["weft-model"]),
    (
        "weft",
        &[
            "weft-check",
            "weft-cni",
            "weft-cns",
            "weft-dashboard",
            "weft-host",
            "weft-ipam",
            "weft-ipam-allocator",
            "weft-ipam-daemon",
            "weft-iptables",
            "weft-model",
            "weft-nftables",
            "weft-process",
            "weft-program",
            "weft-providers",
            "weft-proxy",
            "weft-proxy-agent",
            "weft-routes",
            "weft-routes-agent",
            "weft-ruleset",
            "weft-runtime",
        ],
    ),
    (
        "weft-lab",
        &[
            "weft-apiserver",
            "weft-check",
            "weft-playground",
            "weft-program",
            "weft-testkit",
        ],
    ),
    ("weft-program", &["weft-listener"]),
    ("xtask", &[]),
];

/// Crates that tests may use in addition.
const FOR_TESTS: [&str; 4] = [
    "weft-apiserver",
    "weft-heap",
    "weft-testkit",
    "weft-testserver",
];

/// Crates that decide and never act.
const PURE: [&str; 6] = [
    "weft-ipam",
    "weft-cns",
    "weft-model",
    "weft-proxy",
    "weft-routes",
    "weft-ruleset",
];

/// Dependencies that do I/O: a crate that reaches one of these, also indirectly, is not pure.
const IMPURE: [&str; 12] = [
    "axum",
    "http",
    "hyper",
    "kube",
    "kube-client",
    "mio",
    "nix",
    "nlink",
    "reqwest",
    "rtnetlink",
    "rustix",
    "tokio",
];

fn strings<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap()
}

fn packages(metadata: &Value) -> &Vec<Value> {
    metadata["packages"].as_array().unwrap()
}

#[test]
fn arrows_between_crates_point_one_way() {
    let metadata = tree::metadata(true);
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
    let ours: BTreeSet<&str> = packages(&metadata)
        .iter()
        .map(|p| strings(p, "name"))
        .collect();
    for package in packages(&metadata) {
        let name = strings(package, "name");
        let allowed = allowed
            .get(name)
            .unwrap_or_else(|| panic!("{name} has no row in ARROWS"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let target = strings(dependency, "name");
            let for_tests = dependency["kind"] == "dev" && FOR_TESTS.contains(&target);
            // A crate names itself to test every feature of its own.
            let itself = dependency["kind"] == "dev" && target == name;
            let fine = !ours.contains(target) || allowed.contains(&target) || for_tests || itself;
            assert!(fine, "{name} must not depend on {target}");
        }
    }
    assert_eq!(
        ours.len(),
        ARROWS.len(),
        "a row in ARROWS of a crate that is gone"
    );
}

#[test]
fn the_arrows_themselves_have_no_circle() {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
    for (start, _) in ARROWS {
        let mut open: Vec<&str> = allowed[start].to_vec();
        let mut seen = BTreeSet::new();
        while let Some(next) = open.pop() {
            assert_ne!(next, start, "{start} depends on itself");
            if seen.insert(next) {
                open.extend(allowed[next]);
            }
        }
    }
}

/// Crates of the laboratory: they must not reach nodes and clusters.
const LABORATORY: [&str; 6] = [
    "weft-apiserver",
    "weft-conformance",
    "weft-heap",
    "weft-playground",
    "weft-testkit",
    "weft-testserver",
];

#[test]
fn nothing_of_the_laboratory_is_linked_into_weft() {
    let metadata = tree::metadata(false);
    let reached = dependencies(&metadata, "weft");
    assert!(reached.contains("weft-proxy-agent"), "{reached:?}");
    for name in LABORATORY {
        assert!(!reached.contains(name), "weft links {name}");
    }
}

#[test]
fn pure_crates_have_no_way_to_act() {
    let metadata = tree::metadata(false);
    for name in PURE {
        let reached = dependencies(&metadata, name);
        assert!(
            reached.contains("serde"),
            "the graph of {name} looks empty: {reached:?}"
        );
        let acting: Vec<&str> = IMPURE
            .into_iter()
            .filter(|impure| reached.contains(*impure))
            .collect();
        assert!(
            acting.is_empty(),
            "{name} decides and must not act, but reaches {acting:?}"
        );
    }
    let shell = dependencies(&metadata, "weft-runtime");
    assert!(
        shell.contains("tokio"),
        "the check does not see through: {shell:?}"
    );
}

/// Everything a crate uses when it runs, directly or not.
fn dependencies<'a>(metadata: &'a Value, name: &str) -> BTreeSet<&'a str> {
    let names: BTreeMap<&str, &str> = packages(metadata)
        .iter()
        .map(|p| (strings(p, "id"), strings(p, "name")))
        .collect();
    let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (strings(node, "id"), node))
        .collect();
    let start = names.iter().find(|(_, known)| **known == name).unwrap().0;
    let mut open = vec![*start];
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        for dependency in nodes[id]["deps"].as_array().unwrap() {
            let kinds = dependency["dep_kinds"].as_array().unwrap();
            if kinds.iter().any(|kind| kind["kind"].is_null())
                && seen.insert(strings(dependency, "pkg"))
            {
                open.push(strings(dependency, "pkg"));
            }
        }
    }
    seen.into_iter().map(|id| names[id]).collect()
}

#[test]
fn crates_are_named_after_their_directories() {
    let metadata = tree::metadata(true);
    for package in packages(&metadata) {
        let manifest = strings(package, "manifest_path");
        let mut folders = manifest.rsplit('/').skip(1);
        let (folder, parent) = (folders.next().unwrap(), folders.next().unwrap());
        let expected = match folder {
            "cli" if parent == "crates" => "weft".to_owned(),
            "xtask" => "xtask".to_owned(),
            "cli" | "core" => format!("weft-{parent}"),
            "agent" | "allocator" | "daemon" => format!("weft-{parent}-{folder}"),
            other => format!("weft-{other}"),
        };
        assert_eq!(strings(package, "name"), expected);
    }
}

#[test]
fn every_crate_has_at_most_one_integration_binary() {
    for package in packages(&tree::metadata(true)) {
        let targets = package["targets"].as_array().unwrap();
        let tests: Vec<&str> = targets
            .iter()
            .filter(|target| target["kind"][0] == "test")
            .map(|target| strings(target, "name"))
            .collect();
        let name = strings(package, "name");
        assert!(
            tests.len() <= 1,
            "{name} links {tests:?}; make them modules of one"
        );
    }
}
