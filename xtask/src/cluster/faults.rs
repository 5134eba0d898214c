//! Faults on the cluster, each followed by the same checks.
//!
//! A Service whose pods stay gets a new connection every 25 ms; other pods come and go meanwhile.
//! After a fault all pods become ready, addresses agree in API, pods and daemons, and the proxies'
//! rules are what they should be.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};

use super::{
    addresses,
    inside::Cluster,
    kubectl::Kubectl,
    settings::{Agents, ProxyMode},
    traffic::{Seen, Traffic},
    workload::Workload,
};
use crate::{process, workspace};

/// The node whose disk is filled; the last one is rebooted, and would lose it.
pub(super) const FULL_NODE: u8 = 2;
/// Time for which processes stay away.
const OUTAGE: Duration = Duration::from_secs(60);
/// Time between two changes of the number of pods.
const CHURN: Duration = Duration::from_secs(4);

/// A fault, and what it may do to connections.
struct Fault {
    name: &'static str,
    /// Longest time between the first and the last connection that failed, in seconds.
    allowed: f64,
    run: fn(&mut Cluster) -> anyhow::Result<()>,
}

/// Kubernetes notices a dead node after 40 s; until then its pods' endpoints remain.
const NODE_IS_DOWN: f64 = 90.0;

const FAULTS: &[Fault] = &[
    Fault {
        name: "kill -9 of each Weft process in turn, three rounds",
        allowed: 0.0,
        run: |cluster| kill_processes(cluster, 3),
    },
    Fault {
        name: "kill -9 of kubelet and containerd",
        allowed: 0.0,
        run: kill_kubelet,
    },
    Fault {
        name: "API server and etcd stopped for a minute",
        allowed: 0.0,
        run: stop_control_plane,
    },
    Fault {
        name: "disk of a node's address daemon full",
        allowed: 0.0,
        run: fill_disk,
    },
    Fault {
        name: "proxy mode switched and switched back",
        allowed: 0.0,
        run: switch_mode,
    },
    Fault {
        name: "rolling restart of everything of Weft",
        allowed: 0.0,
        run: roll_out,
    },
    Fault {
        name: "node deleted and registered again",
        allowed: NODE_IS_DOWN,
        run: delete_node,
    },
    Fault {
        name: "node rebooted",
        allowed: NODE_IS_DOWN,
        run: reboot_node,
    },
];

/// The update of an earlier version, which is installed when the cluster starts.
const UPDATE: &[Fault] = &[Fault {
    name: "rolling update from 0.1.0 (9ecddb9) to this version",
    allowed: 0.0,
    run: update,
}];

/// The fault for which CI has time.
const ONE_KILL: &[Fault] = &[Fault {
    name: "kill -9 of each Weft process in turn",
    allowed: 0.0,
    run: |cluster| kill_processes(cluster, 1),
}];

/// Observations of one fault.
#[derive(Serialize, Deserialize)]
pub(super) struct Observed {
    pub(super) fault: String,
    seconds: f64,
    pub(super) requests: u32,
    pub(super) failed: u32,
    /// Between the first and the last connection that failed.
    pub(super) failing_seconds: f64,
    /// Addresses of pods that were compared.
    pub(super) addresses: usize,
    /// Reason for which the fault was not survived.
    pub(super) error: Option<String>,
}

impl Cluster {
    /// Runs every fault; fails at the end if one was not survived.
    pub(super) fn run_faults(&mut self, results: &Path) -> anyhow::Result<()> {
        self.run_each(FAULTS, results)
    }

    /// Updates the earlier version that is installed.
    pub(super) fn run_update(&mut self, results: &Path) -> anyhow::Result<()> {
        self.run_each(UPDATE, results)
    }

    /// Kills every process of Weft once.
    pub(super) fn run_one_kill(&mut self, results: &Path) -> anyhow::Result<()> {
        self.run_each(ONE_KILL, results)
    }

    fn run_each(&mut self, faults: &[Fault], results: &Path) -> anyhow::Result<()> {
        let kubectl = self.kubectl();
        let steady = Workload::create(&kubectl, "steady", 6)?;
        let changing = Workload::create(&kubectl, "changing", 3)?;
        let mut observed = Vec::new();
        for fault in faults {
            eprintln!("fault: {}", fault.name);
            let began = Instant::now();
            let outcome = self.survive(fault, &steady, &changing);
            let (seen, addresses, error) = match outcome {
                Ok((seen, addresses)) => (seen, addresses, None),
                Err(error) => (Seen::default(), 0, Some(format!("{error:#}"))),
            };
            let row = Observed {
                fault: fault.name.to_owned(),
                seconds: began.elapsed().as_secs_f64(),
                requests: seen.requests,
                failed: seen.failed,
                failing_seconds: seen.failing_seconds,
                addresses,
                error,
            };
            eprintln!("  {}", row.text());
            observed.push(row);
            workspace::write_result(results, &observed)?;
        }
        let errors: Vec<String> = observed
            .iter()
            .filter(|row| row.error.is_some())
            .map(Observed::text)
            .collect();
        ensure!(errors.is_empty(), "not survived:\n{}", errors.join("\n"));
        Ok(())
    }

    fn survive(
        &mut self,
        fault: &Fault,
        steady: &Workload,
        changing: &Workload,
    ) -> anyhow::Result<(Seen, usize)> {
        let before = steady.pods(&self.kubectl())?;
        let front = steady.front(&self.kubectl())?;
        let traffic = Traffic::start(&self.nodes[0], front)?;
        let outcome = (fault.run)(self).and_then(|()| self.settle(steady, changing));
        let seen = traffic.stop()?;
        outcome?;
        let addresses = addresses::check(self)?;
        self.check_rules()?;
        if fault.allowed == 0.0 {
            let after = steady.pods(&self.kubectl())?;
            ensure!(
                before == after,
                "pods changed: {before:?} before, {after:?} after"
            );
            ensure!(
                seen.failed == 0,
                "{} of {} connections failed, the first: {}",
                seen.failed,
                seen.requests,
                seen.error.as_deref().unwrap_or_default()
            );
        }
        ensure!(
            seen.failing_seconds <= fault.allowed,
            "connections failed for {:.1} s",
            seen.failing_seconds
        );
        Ok((seen, addresses))
    }

    /// Waits until everything is ready again.
    fn settle(&self, steady: &Workload, changing: &Workload) -> anyhow::Result<()> {
        self.wait_for_nodes()?;
        let kubectl = self.kubectl();
        changing.scale(&kubectl, 9)?;
        changing.wait_until_ready(&kubectl)?;
        changing.scale(&kubectl, 3)?;
        changing.wait_until_ready(&kubectl)?;
        steady.wait_until_ready(&kubectl)
    }

    /// Runs `weft proxy diff` on every node.
    fn check_rules(&self) -> anyhow::Result<()> {
        let container = match self.settings.agents {
            Agents::Separate => "--container=proxy",
            Agents::Node => "--container=node",
        };
        for node in &self.nodes {
            let pod = self.pod_of_weft(&node.name())?;
            // With the flags of the proxy that runs there; errors show what goes to stderr.
            let diff = format!(
                "weft proxy --proxy-mode={} --hostname-override=$NODE_NAME \
                 --cluster-cidr=$CLUSTER_CIDR diff >&2",
                self.settings.proxy_mode.flag()
            );
            let words = ["--namespace=kube-system", "exec", &pod, container, "--"];
            self.kubectl()
                .run(&[&words[..], &["sh", "-c", &diff]].concat())
                .with_context(|| format!("the rules of {} are wrong", node.name()))?;
        }
        Ok(())
    }

    /// The pod of the DaemonSet weft-node on a node.
    pub(super) fn pod_of_weft(&self, node: &str) -> anyhow::Result<String> {
        let selector = format!("--field-selector=spec.nodeName={node}");
        let name = self.kubectl().output(&[
            "--namespace=kube-system",
            "get",
            "pods",
            "--selector=app.kubernetes.io/name=weft-node",
            &selector,
            "-o",
            "jsonpath={.items[0].metadata.name}",
        ])?;
        ensure!(!name.is_empty(), "no pod of weft-node is on {node}");
        Ok(name)
    }
}

impl Observed {
    fn text(&self) -> String {
        let verdict = self.error.as_deref().unwrap_or("survived");
        format!(
            "{}: {verdict}; {} connections, {} failed, {} addresses, {:.0} s",
            self.fault, self.requests, self.failed, self.addresses, self.seconds
        )
    }
}

/// Scales the Deployment `changing` up and down in turn for as long as the work takes.
pub(super) fn under_churn(
    cluster: &Cluster,
    interval: Duration,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let churn = scope.spawn(|| {
            let kubectl = cluster.kubectl();
            let mut replicas = 12;
            while !ended.load(Ordering::Relaxed) {
                let words = ["scale", "deployment/changing"];
                let number = format!("--replicas={replicas}");
                // The API server may be away.
                let _ = kubectl.run(&[&words[..], &[&number]].concat());
                replicas = 15 - replicas;
                thread::sleep(interval);
            }
        });
        let outcome = work();
        ended.store(true, Ordering::Relaxed);
        churn.join().expect("the churn does not panic");
        outcome
    })
}

fn kill_processes(cluster: &mut Cluster, rounds: u32) -> anyhow::Result<()> {
    let programs: &[&str] = match cluster.settings.agents {
        Agents::Separate => &["^weft proxy", "^weft ipam", "^weft routes", "^weft cni"],
        Agents::Node => &["^weft node", "^weft cni"],
    };
    let cluster = &*cluster;
    under_churn(cluster, CHURN, || {
        for _ in 0..rounds {
            for program in programs {
                for node in &cluster.nodes {
                    // It may be waiting for its next start.
                    let _ = node.kill(program);
                }
                cluster.wait_for_weft()?;
            }
            for node in &cluster.nodes {
                let _ = node.kill("^weft controller");
            }
        }
        Ok(())
    })
}

fn kill_kubelet(cluster: &mut Cluster) -> anyhow::Result<()> {
    let cluster = &*cluster;
    under_churn(cluster, CHURN, || {
        for node in &cluster.nodes {
            for program in ["bin/kubelet ", "bin/containerd "] {
                node.kill(program)?;
            }
        }
        thread::sleep(Duration::from_secs(10));
        Ok(())
    })
}

fn stop_control_plane(cluster: &mut Cluster) -> anyhow::Result<()> {
    let Cluster {
        control_plane,
        nodes,
        ..
    } = cluster;
    let stopped = ["kube-apiserver", "etcd"];
    for name in stopped {
        control_plane.stop_one(name)?;
    }
    thread::sleep(OUTAGE);
    for name in ["etcd", "kube-apiserver"] {
        control_plane.start_one(name, &nodes[0])?;
    }
    control_plane.wait_until_ready(&nodes[0])
}

fn fill_disk(cluster: &mut Cluster) -> anyhow::Result<()> {
    let mut nodes = cluster.nodes.iter();
    let node = nodes
        .find(|node| node.number == FULL_NODE)
        .context("the node with a small disk is missing")?;
    let fill = "cat /dev/zero > /var/lib/weft/full 2>/dev/null; test -s /var/lib/weft/full";
    process::run(node.inside("sh")?.args(["-c", fill]))?;
    let kubectl = cluster.kubectl();
    kubectl.run(&["scale", "deployment/changing", "--replicas=9"])?;
    thread::sleep(Duration::from_secs(20));
    process::run(node.inside("rm")?.arg("/var/lib/weft/full"))
}

fn switch_mode(cluster: &mut Cluster) -> anyhow::Result<()> {
    let original = cluster.settings.proxy_mode;
    let other = match original {
        ProxyMode::Nftables => ProxyMode::Iptables,
        ProxyMode::Iptables | ProxyMode::IptablesLegacy => ProxyMode::Nftables,
    };
    for mode in [other, original] {
        cluster.settings.proxy_mode = mode;
        cluster.reinstall()?;
        cluster.wait_for_nodes()?;
        cluster.check_rules()?;
    }
    Ok(())
}

/// Everything of Weft that is rolled out.
const ROLLED_OUT: [&str; 2] = ["daemonset/weft-node", "deployment/weft-controller"];

fn roll_out(cluster: &mut Cluster) -> anyhow::Result<()> {
    let kubectl = cluster.kubectl();
    for name in ROLLED_OUT {
        let namespace = "--namespace=kube-system";
        kubectl.run(&[namespace, "rollout", "restart", name])?;
        kubectl.run(&[namespace, "rollout", "status", name, "--timeout=240s"])?;
    }
    Ok(())
}

fn update(cluster: &mut Cluster) -> anyhow::Result<()> {
    let cluster = &*cluster;
    under_churn(cluster, CHURN, || {
        cluster.reinstall()?;
        for name in ROLLED_OUT {
            let words = ["--namespace=kube-system", "rollout", "status", name];
            let kubectl = cluster.kubectl();
            kubectl.run(&[&words[..], &["--timeout=240s"]].concat())?;
        }
        Ok(())
    })
}

fn delete_node(cluster: &mut Cluster) -> anyhow::Result<()> {
    let node = cluster.nodes.last().context("a cluster without nodes")?;
    let (name, kubectl) = (node.name(), cluster.kubectl());
    let ranges = |kubectl: &Kubectl<'_>| {
        kubectl.output(&["get", "node", &name, "-o", "jsonpath={.spec.podCIDRs}"])
    };
    let before = ranges(&kubectl)?;
    kubectl.run(&["delete", "node", &name])?;
    node.kill("bin/kubelet ")?;
    Kubectl::wait_for("registration", || Ok(ranges(&kubectl)?.len() > 2))?;
    let after = ranges(&kubectl)?;
    ensure!(
        before == after,
        "{name} had {before} and has {after} after it registered again"
    );
    // Zones were a label of the object that was deleted.
    let zone = format!("topology.kubernetes.io/zone=zone-{}", node.number);
    kubectl.run(&["label", "node", &name, &zone, "--overwrite"])
}

fn reboot_node(cluster: &mut Cluster) -> anyhow::Result<()> {
    let node = cluster
        .nodes
        .last_mut()
        .context("a cluster without nodes")?;
    if node.number == 1 {
        bail!("the only node has the control plane");
    }
    node.reboot()?;
    // Ready is what it was before until kubelet reports.
    let (name, kubectl) = (node.name(), cluster.kubectl());
    Kubectl::wait_for("event of the reboot", || {
        let events = kubectl.output(&[
            "get",
            "events",
            "--field-selector",
            &format!("reason=Rebooted,involvedObject.name={name}"),
            "-o",
            "name",
        ])?;
        Ok(!events.is_empty())
    })
}
