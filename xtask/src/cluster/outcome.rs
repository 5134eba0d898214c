//! The results of all cluster parts as one outcome of the report.
//!
//! Its form is that of `crates/lab/conformance/src/outcome.rs`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    alerts::Watched,
    comparison::ARMS,
    e2e::{Finding, Results, State},
    faults::Observed,
    pods::Figures,
};
use crate::peers;

/// Writes `cluster.json` from whatever results there are.
pub(super) fn write(output: &Path) -> anyhow::Result<()> {
    let found = output.join("cluster");
    let arms: Vec<&str> = ARMS.iter().map(|arm| arm.name).collect();
    let mut tables = Vec::new();
    for (set, title) in [
        ("conformance", "[sig-network] Conformance"),
        ("network", "Other [sig-network] tests"),
    ] {
        tables.extend(tests(&found, set, title, &arms)?);
    }
    let mut faults = Vec::new();
    for name in ["faults.json", "update.json"] {
        faults.extend(read::<Vec<Observed>>(&found.join(name))?.unwrap_or_default());
    }
    if !faults.is_empty() {
        tables.push(table_of_faults(&faults));
    }
    if let Some(watched) = read::<Watched>(&found.join("alerts.json"))? {
        tables.push(table_of_alerts(&watched));
    }
    let figures = |arm: &str| read::<Figures>(&found.join(format!("pods-{arm}.json")));
    let (ours, theirs) = (figures("weft-nftables")?, figures("kube-proxy")?);
    let (measures, claims) = match (ours, theirs) {
        (Some(ours), Some(theirs)) => compare(&ours, &theirs),
        _ => Default::default(),
    };
    let outcome = json!({
        "part": "cluster",
        "title": "A real cluster",
        "method": "Three nodes of kubelet and containerd, dual stack, with Weft from deploy/ \
            or with kube-proxy (nftables) and host-local.",
        "command": "make conformance PART=cluster",
        "versions": [format!("Kubernetes {}", peers::KUBERNETES)],
        "arms": arms,
        "measures": measures,
        "claims": claims,
        "notes": [],
        "tables": tables,
    });
    let file = output.join("cluster.json");
    fs::write(&file, serde_json::to_string_pretty(&outcome)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))
}

/// None if the file does not exist.
fn read<T: DeserializeOwned>(file: &Path) -> anyhow::Result<Option<T>> {
    if !file.is_file() {
        return Ok(None);
    }
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let value =
        serde_json::from_str(&text).with_context(|| format!("cannot parse {}", file.display()))?;
    Ok(Some(value))
}

/// One row for each test, one column for each arm that ran the set; and the tests left out.
fn tests(found: &Path, set: &str, title: &str, arms: &[&str]) -> anyhow::Result<Vec<Value>> {
    let mut by_arm = BTreeMap::new();
    for arm in arms {
        if let Some(results) = read::<Results>(&found.join(format!("{set}-{arm}.json")))? {
            by_arm.insert(*arm, results);
        }
    }
    let ran: Vec<&str> = arms
        .iter()
        .copied()
        .filter(|arm| by_arm.contains_key(arm))
        .collect();
    if ran.is_empty() {
        return Ok(Vec::new());
    }
    let names: BTreeSet<&String> = by_arm
        .values()
        .flat_map(|results| results.tests.keys())
        .collect();
    let rows: Vec<Vec<String>> = names
        .into_iter()
        .map(|name| {
            let cell = |arm: &&str| by_arm[arm].tests.get(name).map_or_else(String::new, cell);
            let mut row = vec![short(name).to_owned()];
            row.extend(ran.iter().map(cell));
            row
        })
        .collect();
    let mut columns = vec!["test"];
    columns.extend(&ran);
    let mut tables = vec![json!({"title": title, "columns": columns, "rows": rows})];
    let left_out: BTreeMap<&String, &String> = by_arm
        .values()
        .flat_map(|results| &results.left_out)
        .collect();
    if !left_out.is_empty() {
        tables.push(reasons(title, &left_out));
    }
    Ok(tables)
}

/// Numbers of tests left out, by reason: there are hundreds.
fn reasons(title: &str, left_out: &BTreeMap<&String, &String>) -> Value {
    let mut by_reason: BTreeMap<&str, u32> = BTreeMap::new();
    for reason in left_out.values() {
        *by_reason.entry(reason).or_default() += 1;
    }
    let rows: Vec<[String; 2]> = by_reason
        .into_iter()
        .map(|(reason, count)| [reason.to_owned(), count.to_string()])
        .collect();
    json!({
        "title": format!("{title}: left out"),
        "columns": ["reason", "tests"],
        "rows": rows,
    })
}

fn cell(finding: &Finding) -> String {
    match finding.state {
        State::Passed => format!("passed, {:.0} s", finding.seconds),
        State::Skipped => format!("skipped: {}", finding.message),
        State::Failed => format!("**failed**: {}", finding.message),
    }
}

fn short(name: &str) -> &str {
    name.strip_prefix("[sig-network] ").unwrap_or(name)
}

fn table_of_faults(faults: &[Observed]) -> Value {
    let rows: Vec<[String; 5]> = faults
        .iter()
        .map(|row| {
            let verdict = row.error.as_deref().unwrap_or("survived");
            let failed = if row.failed == 0 {
                "0".to_owned()
            } else {
                format!("{} within {:.1} s", row.failed, row.failing_seconds)
            };
            [
                row.fault.clone(),
                verdict.to_owned(),
                row.requests.to_string(),
                failed,
                row.addresses.to_string(),
            ]
        })
        .collect();
    json!({
        "title": "Faults",
        "columns": ["fault", "result", "connections", "failed", "addresses checked"],
        "rows": rows,
    })
}

fn table_of_alerts(watched: &Watched) -> Value {
    let names: Vec<&str> = watched.fired.keys().map(String::as_str).collect();
    json!({
        "title": "Alert rules on a cluster in which nothing is wrong",
        "columns": ["minutes", "targets", "rules", "fired"],
        "rows": [[
            watched.minutes.to_string(),
            watched.targets.to_string(),
            watched.rules.to_string(),
            if names.is_empty() { "none".to_owned() } else { names.join(", ") },
        ]],
    })
}

fn compare(ours: &Figures, theirs: &Figures) -> (Vec<Value>, Vec<Value>) {
    let mut measures = Vec::new();
    let mut claims = Vec::new();
    for (name, weft, peer, target) in [
        (
            "pod scheduled to ready, p50",
            ours.start_p50,
            theirs.start_p50,
            Some(1.1),
        ),
        (
            "pod scheduled to ready, p99",
            ours.start_p99,
            theirs.start_p99,
            Some(1.2),
        ),
        (
            "100 pods on one node ready",
            ours.burst,
            theirs.burst,
            Some(1.0),
        ),
        ("300 short Jobs ended", ours.jobs, theirs.jobs, None),
        (
            "sandbox started, p50 at most",
            ours.sandbox_p50,
            theirs.sandbox_p50,
            None,
        ),
        (
            "sandbox started, p99 at most",
            ours.sandbox_p99,
            theirs.sandbox_p99,
            None,
        ),
    ] {
        measures.push(json!({
            "name": name, "size": null, "unit": "s",
            "values": {"weft-nftables": weft, "kube-proxy": peer},
        }));
        claims.push(json!({
            "name": format!("{name}: weft-nftables / kube-proxy"),
            "ratio": weft / peer,
            "target": target.map(|limit: f64| json!({"atMost": limit})),
        }));
    }
    (measures, claims)
}
