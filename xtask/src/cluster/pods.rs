//! Measurements and checks with many real pods: start latency, a burst, short Jobs, a pod's own view.

use std::{
    collections::BTreeMap,
    io::BufReader,
    path::Path,
    process::{Child, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{addresses, inside::Cluster, kubectl::Kubectl, settings::Families};
use crate::{
    images::AGNHOST,
    process::{self, Progress},
    workspace,
};

/// Pods that start one after another.
const SINGLE: u32 = 40;
/// Pods that start at the same time on one node.
const BURST: u32 = 100;
/// Pods that kubelet allows on a node.
const MOST_PODS: usize = 110;
/// Pods that end by themselves.
const JOBS: u32 = 300;
const JOBS_AT_ONCE: u32 = 30;
/// Longest wait for one pod.
const LIMIT: Duration = Duration::from_mins(2);

/// Figures of one cluster, in seconds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// From scheduled to ready, one pod at a time.
    pub(crate) start_p50: f64,
    pub(crate) start_p99: f64,
    /// Until the last of the burst is ready.
    pub(crate) burst: f64,
    /// Until all short Jobs have ended.
    pub(crate) jobs: f64,
    /// Median and 99th percentile of kubelet's calls that start a sandbox, in which the CNI plugin
    /// runs; upper bounds of the histogram's buckets.
    pub(crate) sandbox_p50: f64,
    pub(crate) sandbox_p99: f64,
}

impl Cluster {
    /// Measures, checks and writes the figures.
    pub(super) fn run_pods(&self, results: &Path) -> anyhow::Result<()> {
        let mut figures = Figures::default();
        let mut progress = Progress::of(7);
        progress.step("view of a pod", || self.check_view())?;
        progress.step("kubectl logs, exec and port-forward", || {
            self.check_commands()
        })?;
        progress.step("restarts of a StatefulSet", || self.check_stateful_set())?;
        progress.step("drain of a node", || self.check_drain())?;
        progress.step("pods one after another", || {
            let mut times = self.start_one_by_one()?;
            times.sort_by(f64::total_cmp);
            figures.start_p50 = quantile(&times, 0.5);
            figures.start_p99 = quantile(&times, 0.99);
            Ok(())
        })?;
        progress.step("burst of pods on one node", || {
            figures.burst = self.start_at_once()?;
            Ok(())
        })?;
        progress.step("short Jobs", || {
            figures.jobs = self.run_jobs()?;
            Ok(())
        })?;
        let buckets = self.sandbox_buckets()?;
        figures.sandbox_p50 = bucket_quantile(&buckets, 0.5);
        figures.sandbox_p99 = bucket_quantile(&buckets, 0.99);
        addresses::check(self).context("after all pods")?;
        eprintln!("{}", serde_json::to_string_pretty(&figures)?);
        workspace::write_result(results, &figures)
    }

    /// MTU, addresses and name server as a pod sees them.
    fn check_view(&self) -> anyhow::Result<()> {
        let kubectl = self.kubectl();
        kubectl.apply(&pod("view", &json!({"args": ["pause"]}), None))?;
        wait_until_ready(&kubectl, "view")?;
        let inside = |script: &str| kubectl.output(&["exec", "view", "--", "sh", "-c", script]);
        let mtu = inside("cat /sys/class/net/eth0/mtu")?;
        let mut command = self.nodes[0].in_network("ip")?;
        let outside: Value = serde_json::from_str(&process::output(
            command.args(["-j", "link", "show", "eth0"]),
        )?)?;
        ensure!(
            mtu.trim().parse().ok() == outside[0]["mtu"].as_u64(),
            "the pod's MTU is {}, the node's {}",
            mtu.trim(),
            outside[0]["mtu"]
        );
        let addresses = inside("ip -o address show dev eth0 scope global")?;
        ensure!(
            !addresses.contains("tentative") && !addresses.contains("dadfailed"),
            "an address of a pod that runs is not usable yet: {addresses}"
        );
        let expected = match self.settings.families {
            Families::Dual => 2,
            Families::Ipv4 | Families::Ipv6 => 1,
        };
        ensure!(
            addresses.lines().count() == expected,
            "expected {expected} addresses, got: {addresses}"
        );
        let resolver = inside("cat /etc/resolv.conf")?;
        let dns = self.settings.families.dns_address().to_string();
        ensure!(
            resolver.contains(&dns),
            "the pod's name server is not {dns}: {resolver}"
        );
        inside("getent hosts kubernetes.default.svc.cluster.local")
            .context("the cluster's DNS does not answer")?;
        kubectl.run(&["delete", "pod", "view", "--wait=false"])
    }

    /// A pod on another node than the API server's, by the commands that people use.
    fn check_commands(&self) -> anyhow::Result<()> {
        let kubectl = self.kubectl();
        let node = self.nodes.last().context("a cluster without nodes")?;
        let server = json!({"args": ["netexec", "--http-port=8080"]});
        kubectl.apply(&pod("commands", &server, Some(&node.name())))?;
        wait_until_ready(&kubectl, "commands")?;
        let logs = kubectl.output(&["logs", "commands"])?;
        ensure!(!logs.is_empty(), "kubectl logs printed nothing");
        let name = kubectl.output(&["exec", "commands", "--", "hostname"])?;
        ensure!(name.trim() == "commands", "kubectl exec printed {name}");
        let mut forward = kubectl
            .command(&["port-forward", "pod/commands", "18080:8080"])?
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start kubectl port-forward")?;
        let answered = Kubectl::wait_for("answer through kubectl port-forward", || {
            let mut curl = self.nodes[0].in_network("curl")?;
            curl.args(["--silent", "--fail", "http://127.0.0.1:18080/hostname"]);
            Ok(process::output(&mut curl)? == "commands")
        });
        let _ = forward.kill();
        let _ = forward.wait();
        answered?;
        kubectl.run(&["delete", "pod", "commands", "--wait=false"])
    }

    fn start_one_by_one(&self) -> anyhow::Result<Vec<f64>> {
        let kubectl = self.kubectl();
        let watch = PodWatch::start(&kubectl)?;
        let mut times = Vec::new();
        for number in 0..SINGLE {
            let name = format!("single-{number}");
            kubectl.apply(&pod(&name, &json!({"args": ["pause"]}), None))?;
            times.push(watch.start_time(&name)?);
        }
        kubectl.run(&["delete", "pods", "--selector=app=pods", "--wait=true"])?;
        Ok(times)
    }

    fn start_at_once(&self) -> anyhow::Result<f64> {
        let kubectl = self.kubectl();
        let node = self.nodes.last().context("a cluster without nodes")?;
        let began = Instant::now();
        kubectl.apply(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "burst"},
            "spec": {
                "replicas": BURST,
                "selector": {"matchLabels": {"app": "burst"}},
                "template": {
                    "metadata": {"labels": {"app": "burst"}},
                    "spec": {
                        "nodeName": node.name(),
                        "terminationGracePeriodSeconds": 0,
                        "containers": [{"name": "main", "image": AGNHOST, "args": ["pause"]}],
                    },
                },
            },
        }))?;
        kubectl.run(&["rollout", "status", "deployment/burst", "--timeout=600s"])?;
        let seconds = began.elapsed().as_secs_f64();
        let own = format!("--field-selector=spec.nodeName={}", node.name());
        let words = ["get", "pods", "--all-namespaces", &own, "-o", "name"];
        let others = kubectl.output(&words)?.lines().count() - BURST as usize;
        let fill = format!("--replicas={}", MOST_PODS - others);
        kubectl.run(&["scale", "deployment/burst", &fill])?;
        kubectl.run(&["rollout", "status", "deployment/burst", "--timeout=600s"])?;
        addresses::check(self).context("with a full node")?;
        kubectl.run(&["delete", "deployment", "burst"])?;
        let words = ["wait", "--for=delete", "pod", "--selector=app=burst"];
        kubectl.run(&[&words[..], &["--timeout=300s"]].concat())?;
        Ok(seconds)
    }

    fn run_jobs(&self) -> anyhow::Result<f64> {
        let kubectl = self.kubectl();
        let began = Instant::now();
        kubectl.apply(&json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "short"},
            "spec": {
                "completions": JOBS, "parallelism": JOBS_AT_ONCE,
                "template": {
                    "metadata": {"labels": {"app": "short"}},
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [{"name": "main", "image": AGNHOST, "command": ["true"]}],
                    },
                },
            },
        }))?;
        let words = ["wait", "--for=condition=Complete", "job/short"];
        kubectl.run(&[&words[..], &["--timeout=1200s"]].concat())?;
        let seconds = began.elapsed().as_secs_f64();
        kubectl.run(&["delete", "job", "short"])?;
        Ok(seconds)
    }

    /// Upper bounds and counts of kubelet's histogram, of all nodes.
    fn sandbox_buckets(&self) -> anyhow::Result<Vec<(f64, f64)>> {
        let mut buckets: BTreeMap<u64, f64> = BTreeMap::new();
        for node in &self.nodes {
            let path = format!("/api/v1/nodes/{}/proxy/metrics", node.name());
            let metrics = self.kubectl().output(&["get", "--raw", &path])?;
            for (bound, count) in parse_buckets(&metrics, "kubelet_run_podsandbox_duration_seconds")
            {
                *buckets.entry(bound.to_bits()).or_default() += count;
            }
        }
        ensure!(!buckets.is_empty(), "kubelet exposes no sandbox durations");
        let mut buckets: Vec<(f64, f64)> = buckets
            .into_iter()
            .map(|(bound, count)| (f64::from_bits(bound), count))
            .collect();
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        Ok(buckets)
    }
}

/// Times at which pods of the namespace `default` were scheduled and became ready, as a watch saw
/// them; conditions have whole seconds only.
struct PodWatch {
    kubectl: Child,
    ready: mpsc::Receiver<(String, f64)>,
}

impl PodWatch {
    fn start(kubectl: &Kubectl<'_>) -> anyhow::Result<Self> {
        let words = ["get", "pods", "--watch", "--output=json"];
        let mut child = kubectl
            .command(&words)?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start kubectl")?;
        let output = child.stdout.take().context("kubectl has no output")?;
        let (sender, ready) = mpsc::channel();
        thread::spawn(move || {
            let mut scheduled = BTreeMap::new();
            let pods =
                serde_json::Deserializer::from_reader(BufReader::new(output)).into_iter::<Value>();
            for pod in pods.map_while(Result::ok) {
                let now = Instant::now();
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let is = |kind: &str| has_condition(&pod, kind);
                if is("PodScheduled") {
                    scheduled.entry(name.to_owned()).or_insert(now);
                }
                if is("Ready") {
                    let began = scheduled.get(name).copied().unwrap_or(now);
                    let seconds = now.duration_since(began).as_secs_f64();
                    if sender.send((name.to_owned(), seconds)).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Self {
            kubectl: child,
            ready,
        })
    }

    /// Waits for a pod; returns the seconds between scheduled and ready.
    fn start_time(&self, name: &str) -> anyhow::Result<f64> {
        loop {
            let (pod, seconds) = self
                .ready
                .recv_timeout(LIMIT)
                .with_context(|| format!("the pod {name} is not ready after {LIMIT:?}"))?;
            // Others are events of pods that were ready before.
            if pod == name {
                return Ok(seconds);
            }
        }
    }
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

fn has_condition(pod: &Value, kind: &str) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == kind && condition["status"] == "True")
}

fn pod(name: &str, container: &Value, node: Option<&str>) -> Value {
    let mut container = container.clone();
    container["name"] = json!("main");
    container["image"] = json!(AGNHOST);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "pods"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "nodeName": node,
            "containers": [container],
        },
    })
}

fn wait_until_ready(kubectl: &Kubectl<'_>, name: &str) -> anyhow::Result<()> {
    let pod = format!("pod/{name}");
    kubectl.run(&["wait", "--for=condition=Ready", &pod, "--timeout=120s"])
}

/// Of sorted values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a place in a short list"
    )]
    let place = ((sorted.len() as f64 * share).ceil() as usize).max(1) - 1;
    sorted.get(place).copied().unwrap_or_default()
}

/// The bound of the first bucket that has this share of all.
fn bucket_quantile(buckets: &[(f64, f64)], share: f64) -> f64 {
    let total = buckets.last().map_or(0.0, |(_, count)| *count);
    buckets
        .iter()
        .find(|(_, count)| *count >= total * share)
        .map_or(f64::INFINITY, |(bound, _)| *bound)
}

fn parse_buckets<'a>(metrics: &'a str, name: &'a str) -> impl Iterator<Item = (f64, f64)> + 'a {
    metrics.lines().filter_map(move |line| {
        let labels = line.strip_prefix(name)?.strip_prefix("_bucket{")?;
        let (labels, count) = labels.split_once("} ")?;
        let bound = labels.split("le=\"").nth(1)?.split('"').next()?;
        Some((
            bound.replace("+Inf", "inf").parse().ok()?,
            count.parse().ok()?,
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_list() {
        let values = [1.0, 2.0, 3.0, 4.0];
        assert!((quantile(&values, 0.5) - 2.0).abs() < f64::EPSILON);
        assert!((quantile(&values, 0.99) - 4.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_histogram_is_read_from_the_exposition() {
        let text = "kubelet_x_bucket{handler=\"\",le=\"0.1\"} 3\nkubelet_x_bucket{handler=\"\",le=\"0.5\"} 9\nkubelet_x_bucket{handler=\"\",le=\"+Inf\"} 10\nkubelet_x_sum 4\n";
        let buckets: Vec<_> = parse_buckets(text, "kubelet_x").collect();
        assert_eq!(buckets.len(), 3);
        assert!((bucket_quantile(&buckets, 0.5) - 0.5).abs() < f64::EPSILON);
        assert!(bucket_quantile(&buckets, 0.99).is_infinite());
    }
}
