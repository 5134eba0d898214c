//! The process that builds the cluster: the first one of its pid namespace, in network and mount
//! namespaces that end with it.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::{
    addons::{self, Metrics},
    cgroups::Cgroups,
    control_plane::ControlPlane,
    credentials,
    e2e::Selection,
    faults,
    former::Former,
    forward,
    kubectl::Kubectl,
    node::{Node, Places},
    segment,
    settings::{API_PORT, Network, Settings},
};
use crate::{
    images,
    process::{self, Progress},
};

/// Description of a cluster: settings, sources and the job it is built for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) settings: Settings,
    pub(super) job: Job,
    pub(super) directory: PathBuf,
    /// The Debian root of the nodes.
    pub(super) root: PathBuf,
    /// Directory of the peers' programs.
    pub(super) programs: PathBuf,
    pub(super) images: Vec<PathBuf>,
    pub(super) weft: PathBuf,
    pub(super) cgroup: String,
    /// Loopback ports that lead to the API server and to the live page.
    pub(super) ports: [u16; 2],
}

/// The job of a cluster that is ready.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Run until it is stopped.
    Stay,
    /// End after `weft check`.
    Once,
    /// Run Kubernetes' end-to-end tests.
    Tests(Selection),
    /// Run end-to-end tests, then kill every process of Weft once.
    Slice { tests: Selection, results: PathBuf },
    /// Cause faults and check what becomes of them; write what was seen to a file.
    Faults { results: PathBuf },
    /// Install an earlier version of Weft and update it; write what was seen to a file.
    Update { former: Former, results: PathBuf },
    /// Watch the alert rules with a Prometheus; write what was seen to a file.
    Alerts {
        prometheus: PathBuf,
        minutes: u64,
        results: PathBuf,
    },
    /// Start many pods, measure and check them; write the figures to a file.
    Pods { results: PathBuf },
}

/// A cluster that runs.
pub(crate) struct Cluster {
    pub(crate) settings: Settings,
    pub(crate) directory: PathBuf,
    pub(crate) programs: PathBuf,
    pub(crate) weft: PathBuf,
    pub(crate) nodes: Vec<Node>,
    pub(super) control_plane: ControlPlane,
}

/// Builds the cluster and does the job.
pub(super) fn run(order: &Path) -> anyhow::Result<()> {
    let text =
        fs::read_to_string(order).with_context(|| format!("cannot read {}", order.display()))?;
    let order: Order = serde_json::from_str(&text)?;
    let mut cluster = Cluster::build(&order)?;
    match &order.job {
        Job::Stay => {
            cluster.print_addresses(&order)?;
            eprintln!("Ctrl-C ends the cluster and removes everything.");
            loop {
                thread::sleep(Duration::from_secs(3600));
            }
        }
        Job::Once => Ok(()),
        Job::Tests(selection) => cluster.run_tests(selection),
        Job::Slice { tests, results } => {
            cluster.run_tests(tests)?;
            cluster.run_one_kill(results)
        }
        Job::Faults { results } => cluster.run_faults(results),
        Job::Update { results, .. } => cluster.run_update(results),
        Job::Alerts {
            prometheus,
            minutes,
            results,
        } => cluster.run_alerts(prometheus, *minutes, results),
        Job::Pods { results } => cluster.run_pods(results),
    }
}

impl Cluster {
    fn build(order: &Order) -> anyhow::Result<Self> {
        let Order {
            settings,
            directory,
            programs,
            images,
            ..
        } = order;
        let cgroups = Cgroups::named(&order.cgroup)?;
        let mut progress = Progress::of(7);
        let mut nodes = Vec::new();
        progress.step("network and nodes", || {
            segment::create(settings.families)?;
            credentials::write(settings, &directory.join("credentials"))?;
            let places = Places {
                directory,
                root: &order.root,
                programs,
                images,
                small_disk: matches!(order.job, Job::Faults { .. }).then_some(faults::FULL_NODE),
            };
            for number in settings.numbers() {
                let mut node = Node::new(number, settings, &places, &cgroups)?;
                node.start()?;
                nodes.push(node);
            }
            Ok(())
        })?;
        let mut control_plane = None;
        progress.step("control plane", || {
            let started = ControlPlane::start(settings, directory, programs, &nodes[0])?;
            control_plane = Some(started);
            let target = SocketAddr::new(settings.families.api_address(), API_PORT);
            forward::inside(&directory.join("api.sock"), target)
        })?;
        let control_plane = control_plane.context("the control plane did not start")?;
        progress.step("images", || {
            thread::scope(|scope| {
                let imports: Vec<_> = nodes
                    .iter()
                    .map(|node| scope.spawn(|| node.import(images)))
                    .collect();
                imports
                    .into_iter()
                    .try_for_each(|import| import.join().expect("an import does not panic"))
            })
        })?;
        let cluster = Self {
            settings: settings.clone(),
            directory: directory.clone(),
            programs: programs.clone(),
            weft: order.weft.clone(),
            nodes,
            control_plane,
        };
        let former = match &order.job {
            Job::Update { former, .. } => Some(former),
            _ => None,
        };
        let metrics = match &order.job {
            Job::Alerts { .. } => Metrics::Node,
            _ => Metrics::Loopback,
        };
        progress.step("installation", || cluster.install(former, metrics))?;
        progress.step("nodes ready", || cluster.wait_for_nodes())?;
        progress.step("DNS", || {
            cluster.kubectl().run(&[
                "--namespace=kube-system",
                "rollout",
                "status",
                "deployment/coredns",
                "--timeout=180s",
            ])
        })?;
        progress.step("weft check", || cluster.check())?;
        progress.finish("the cluster is ready");
        Ok(cluster)
    }

    /// kubectl as the administrator.
    pub(crate) fn kubectl(&self) -> Kubectl<'_> {
        Kubectl {
            program: self.programs.join("kubectl"),
            kubeconfig: self.kubeconfig(),
            node: &self.nodes[0],
        }
    }

    /// The administrator's kubeconfig in node 1's network.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("credentials/admin.kubeconfig")
    }

    /// Installs an earlier version of Weft if there is one, else this checkout's.
    fn install(&self, former: Option<&Former>, metrics: Metrics) -> anyhow::Result<()> {
        let settings = self.settings.clone();
        let kubectl = self.kubectl();
        Kubectl::wait_for("Nodes", || {
            let nodes = kubectl.output(&["get", "nodes", "-o", "name"])?;
            Ok(nodes.lines().count() == self.nodes.len())
        })?;
        // Zones for tests of topology.
        for node in &self.nodes {
            let zone = format!("topology.kubernetes.io/zone=zone-{}", node.number);
            kubectl.run(&["label", "node", &node.name(), &zone, "--overwrite"])?;
        }
        match settings.network {
            Network::Weft => {
                addons::install_weft(&settings, former, metrics, &self.directory, &kubectl)?;
            }
            Network::KubeProxy => {
                addons::install_kube_proxy(
                    &settings,
                    &self.directory,
                    &self.programs,
                    &self.nodes,
                    &kubectl,
                )?;
            }
        }
        addons::install_dns(settings.families, &self.directory, &kubectl)?;
        Ok(())
    }

    /// Applies the manifests again, after a change of the settings.
    pub(super) fn reinstall(&self) -> anyhow::Result<()> {
        addons::install_weft(
            &self.settings,
            None,
            Metrics::Loopback,
            &self.directory,
            &self.kubectl(),
        )
    }

    /// Waits until the pods of Weft on every node are ready.
    pub(super) fn wait_for_weft(&self) -> anyhow::Result<()> {
        self.kubectl().run(&[
            "--namespace=kube-system",
            "rollout",
            "status",
            "daemonset/weft-node",
            "--timeout=240s",
        ])
    }

    /// Waits until all nodes are Ready and Weft's pods run.
    pub(crate) fn wait_for_nodes(&self) -> anyhow::Result<()> {
        if self.settings.network == Network::Weft {
            self.wait_for_weft()?;
        }
        self.kubectl().run(&[
            "wait",
            "--for=condition=Ready",
            "node",
            "--all",
            "--timeout=240s",
        ])
    }

    /// Runs `weft check`, and prints its table.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let mut check = self.nodes[0].in_network(&self.weft)?;
        let image = format!("{}:{}", images::WEFT_NODE, images::TAG);
        check
            .args(["check", "--image", &image, "--kubeconfig"])
            .arg(self.kubeconfig());
        process::run(&mut check)
    }

    fn print_addresses(&self, order: &Order) -> anyhow::Result<()> {
        let [api, page] = order.ports;
        let url = format!("https://127.0.0.1:{api}");
        let kubeconfig = credentials::kubeconfig_for(&self.directory.join("credentials"), &url)?;
        let path = self.directory.join("kubeconfig");
        fs::write(&path, kubeconfig).with_context(|| format!("cannot write {}", path.display()))?;
        let kubectl = self.programs.join("kubectl");
        eprintln!(
            "\nkubectl:   {} --kubeconfig {} get pods -A",
            kubectl.display(),
            path.display()
        );
        if self.settings.network == Network::Weft {
            self.forward_the_live_page()?;
            eprintln!("live page: http://127.0.0.1:{page}");
        }
        eprintln!("logs:      {}\n", self.directory.join("logs").display());
        Ok(())
    }

    /// The live page listens on the loopback of the node that its pod runs on; kubectl leads there.
    fn forward_the_live_page(&self) -> anyhow::Result<()> {
        let words = [
            "--namespace=kube-system",
            "port-forward",
            "deployment/weft-controller",
            "8088:8088",
        ];
        let mut command = Command::new(self.programs.join("kubectl"));
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        thread::spawn(move || {
            // It ends with the pod that it was connected to.
            while let Ok(mut child) = command.spawn() {
                let _ = child.wait();
                thread::sleep(Duration::from_secs(1));
            }
        });
        let target = SocketAddr::from(([127, 0, 0, 1], 8088));
        forward::inside(&self.directory.join("page.sock"), target)
    }
}
