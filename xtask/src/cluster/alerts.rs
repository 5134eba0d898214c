//! The alert rules of `deploy/monitoring` on a cluster in which nothing is wrong: none may fire.
//!
//! A Prometheus reads the agents that the Services of `deploy/monitoring` name, as docs/install.md
//! says.
//! At the end a table of Weft is removed on one node, which has to fire an alert: that nothing fired
//! before then means something.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{faults::under_churn, inside::Cluster, kubectl::Kubectl, workload::Workload};
use crate::{process, workspace};

/// Address of Prometheus in node 1's network.
const ADDRESS: &str = "127.0.0.1:19090";
/// The alert that a removed table fires.
const EXPECTED: &str = "WeftProxyElementsAreChangedByOthers";

/// Alerts of a cluster in which nothing is wrong.
#[derive(Serialize, Deserialize)]
pub(crate) struct Watched {
    pub(super) minutes: u64,
    pub(super) targets: usize,
    pub(super) rules: usize,
    /// Alerts that fired although nothing was wrong, and the most instances of each at one time.
    pub(super) fired: BTreeMap<String, f64>,
}

impl Cluster {
    /// Watches the rules for some time; fails if an alert fires, and if none fires after a fault.
    pub(super) fn run_alerts(
        &self,
        prometheus: &Path,
        minutes: u64,
        results: &Path,
    ) -> anyhow::Result<()> {
        let prometheus = self.start_prometheus(prometheus)?;
        let kubectl = self.kubectl();
        Workload::create(&kubectl, "steady", 6)?;
        Workload::create(&kubectl, "changing", 3)?;
        // Proxy, addresses and routes of every node, and two controllers.
        let expected = 3 * self.nodes.len() + 2;
        Kubectl::wait_for("targets of Prometheus", || {
            Ok(prometheus.values("up == 1")?.len() == expected)
        })?;
        eprintln!("{expected} targets are read; watching for {minutes} min");
        let began = Instant::now();
        under_churn(self, Duration::from_secs(20), || {
            while began.elapsed() < Duration::from_secs(60 * minutes) {
                thread::sleep(Duration::from_secs(60));
                let firing = prometheus.values(r#"ALERTS{alertstate="firing"}"#)?;
                let names: Vec<&str> = firing.iter().map(|(name, _)| name.as_str()).collect();
                eprintln!(
                    "  {} min: {}",
                    began.elapsed().as_secs() / 60,
                    if names.is_empty() {
                        "nothing fires".to_owned()
                    } else {
                        names.join(", ")
                    }
                );
            }
            Ok(())
        })?;
        let fired = format!(
            r#"max by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{}m]))"#,
            minutes + 2
        );
        let lost = prometheus.values(&format!("min_over_time(up[{minutes}m]) == 0"))?;
        ensure!(lost.is_empty(), "not read all the time: {lost:?}");
        let watched = Watched {
            minutes,
            targets: expected,
            rules: prometheus.rules()?,
            fired: prometheus.values(&fired)?.into_iter().collect(),
        };
        workspace::write_result(results, &watched)?;
        ensure!(
            watched.fired.is_empty(),
            "these alerts fired although nothing was wrong: {:?}",
            watched.fired
        );
        self.remove_table()?;
        Kubectl::wait_for("alert about a removed table", || {
            let firing = prometheus.values(r#"ALERTS{alertstate="firing"}"#)?;
            Ok(firing.iter().any(|(name, _)| name == EXPECTED))
        })?;
        eprintln!("a table removed by another program fired {EXPECTED}");
        Ok(())
    }

    /// Removes Weft's table on the last node, as `nft flush ruleset` of another program does.
    fn remove_table(&self) -> anyhow::Result<()> {
        let node = self.nodes.last().context("a cluster without nodes")?;
        process::run(node.inside("nft")?.args(["delete", "table", "ip", "weft"]))
    }

    /// Starts Prometheus in node 1's network; it ends with the cluster at the latest.
    fn start_prometheus(&self, program: &Path) -> anyhow::Result<Prometheus<'_>> {
        let directory = self.directory.join("prometheus");
        if directory.exists() {
            fs::remove_dir_all(&directory).context("cannot remove the data of Prometheus")?;
        }
        fs::create_dir_all(&directory).context("cannot create the directory of Prometheus")?;
        let file = directory.join("prometheus.json");
        let rules = workspace::root().join("deploy/monitoring/alerts.yaml");
        let kubectl = self.kubectl();
        let list = |kind| kubectl.json(&["--namespace=kube-system", "get", kind, "-o", "json"]);
        let (services, slices) = (list("services")?, list("endpointslices")?);
        let services = services["items"].as_array().into_iter().flatten();
        let jobs: Vec<Value> = services
            .filter_map(|service| job(service, &slices))
            .collect();
        fs::write(&file, configuration(&jobs, &rules).to_string())
            .context("cannot write the configuration of Prometheus")?;
        let log = fs::File::create(self.directory.join("logs/prometheus.log"))
            .context("cannot create the log of Prometheus")?;
        let process = self.nodes[0]
            .in_network(program)?
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.join("data").display()
            ))
            .arg(format!("--web.listen-address={ADDRESS}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start Prometheus")?;
        let prometheus = Prometheus {
            cluster: self,
            process,
        };
        Kubectl::wait_for("Prometheus", || {
            prometheus.rules()?;
            Ok(true)
        })?;
        Ok(prometheus)
    }
}

/// Configuration with a job for each Service. JSON is YAML.
fn configuration(jobs: &[Value], rules: &Path) -> Value {
    json!({
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [rules],
        "scrape_configs": jobs,
    })
}

/// The job that the annotations of a Service ask for; none if they ask for nothing. Debian's
/// Prometheus cannot ask the API itself.
fn job(service: &Value, slices: &Value) -> Option<Value> {
    let annotation = |name: &str| {
        let value = &service["metadata"]["annotations"][format!("prometheus.io/{name}")];
        value.as_str()
    };
    if annotation("scrape") != Some("true") {
        return None;
    }
    let name = service["metadata"]["name"].as_str()?;
    let own = slices["items"]
        .as_array()?
        .iter()
        .filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == name);
    let mut targets = Vec::new();
    for slice in own {
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            for port in slice["ports"].as_array().into_iter().flatten() {
                let address = endpoint["addresses"][0].as_str()?;
                targets.push(format!("{address}:{}", port["port"]));
            }
        }
    }
    Some(json!({
        "job_name": name,
        "scheme": annotation("scheme"),
        "metrics_path": annotation("path"),
        // Agents make up their certificates.
        "tls_config": {"insecure_skip_verify": true},
        "static_configs": [{"targets": targets}],
    }))
}

/// A Prometheus that runs, and is ended with this.
struct Prometheus<'a> {
    cluster: &'a Cluster,
    process: Child,
}

impl Prometheus<'_> {
    fn get(&self, path: &str, query: Option<&str>) -> anyhow::Result<Value> {
        let mut curl = self.cluster.nodes[0].in_network("curl")?;
        curl.args(["--silent", "--show-error", "--fail", "--get"]);
        if let Some(query) = query {
            curl.args(["--data-urlencode", &format!("query={query}")]);
        }
        let text = process::output(curl.arg(format!("http://{ADDRESS}/api/v1/{path}")))?;
        let answer: Value =
            serde_json::from_str(&text).context("cannot read what Prometheus answered")?;
        if answer["status"] != "success" {
            bail!("Prometheus refused {path}: {}", answer["error"]);
        }
        Ok(answer["data"].clone())
    }

    /// Name of the alert, else of the target, and value of each result of a query.
    fn values(&self, query: &str) -> anyhow::Result<Vec<(String, f64)>> {
        let data = self.get("query", Some(query))?;
        let results = data["result"].as_array().into_iter().flatten();
        results
            .map(|result| {
                let labels = &result["metric"];
                let name = labels["alertname"].as_str().or(labels["instance"].as_str());
                let value = result["value"][1].as_str().unwrap_or_default();
                let value = value
                    .parse()
                    .with_context(|| format!("{value} is not a number"))?;
                Ok((name.unwrap_or_default().to_owned(), value))
            })
            .collect()
    }

    /// Number of alert rules; an error if one cannot be evaluated.
    fn rules(&self) -> anyhow::Result<usize> {
        let data = self.get("rules", None)?;
        let groups = data["groups"].as_array().into_iter().flatten();
        let mut count = 0;
        for rule in groups.flat_map(|group| group["rules"].as_array().into_iter().flatten()) {
            ensure!(
                rule["health"] != "err",
                "cannot evaluate {}: {}",
                rule["name"],
                rule["lastError"]
            );
            count += 1;
        }
        ensure!(count > 0, "Prometheus has read no rules yet");
        Ok(count)
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
