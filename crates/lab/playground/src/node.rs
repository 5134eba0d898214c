//! A node: a machine on the segment, Weft's agents with the command lines of `deploy/`, and a stand-in
//! kubelet.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use kube::Client;
use thiserror::Error;
use weft_runtime::Cluster;

use crate::{
    agent::{Agent, AgentParts},
    cni::Runtime,
    manifest::{self, ManifestError},
    network::{self, NetworkError},
    place::Place,
    program::blocking,
    standin::kubelet::{Kubelet, KubeletParts, StartError},
};

/// Directories in which distributions install the CNI project's plugins.
const PLUGIN_DIRECTORIES: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];
/// Plugins that a node needs.
const PLUGINS: [&str; 4] = ["bridge", "ptp", "portmap", "loopback"];

/// A node could not be started.
#[derive(Debug, Error)]
pub enum NodeError {
    /// Its network could not be created.
    #[error("cannot create the network of {0}")]
    Network(String, #[source] NetworkError),
    /// Its files could not be written, or an agent could not be started.
    #[error("cannot create the files of {0} or start its agents")]
    Files(String, #[source] io::Error),
    /// The CNI project's plugins are missing.
    #[error(
        "cannot find the CNI project's plugins: they are not installed; on Debian: apt-get install \
         containernetworking-plugins"
    )]
    Plugins,
    /// The DaemonSet of `deploy/` could not be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Its kubelet could not be started.
    #[error("cannot start the stand-in kubelet of {0}")]
    Kubelet(String, #[source] StartError),
}

/// Paths of the programs in the playground.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// `weft`, which runs as agents.
    pub(crate) weft: PathBuf,
    /// `weft-lab`, which runs as pods.
    pub(crate) lab: PathBuf,
}

/// Settings that all nodes share.
#[derive(Clone)]
pub(crate) struct Common {
    /// Paths of the programs in the playground.
    pub(crate) programs: Programs,
    /// Directory of the nodes' files.
    pub(crate) nodes: PathBuf,
    /// Directory of the logs.
    pub(crate) logs: PathBuf,
    /// CA certificate of the API server, as PEM.
    pub(crate) authority: String,
    pub(crate) client: Client,
    pub(crate) cluster: Cluster,
    /// True if agents are not started.
    pub(crate) without_weft: bool,
}

/// A running node.
#[derive(Clone)]
pub struct Node {
    /// Name of the Node and of its namespace, such as `node-1`.
    pub name: String,
    /// Agents, one process for each container of the DaemonSet.
    pub agents: Vec<Agent>,
    pub(crate) kubelet: Kubelet,
    root: PathBuf,
    /// True if pods are on a bridge, as in `deploy/`; otherwise each has a point-to-point link.
    pub bridged: bool,
}

/// Writes the service account files of an in-cluster client.
pub(crate) fn write_secrets(directory: &Path, token: &str, authority: &str) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join("token"), token)?;
    fs::write(directory.join("ca.crt"), authority)?;
    fs::write(directory.join("namespace"), "kube-system")
}

/// Path at which in-cluster clients read them.
pub(crate) fn secrets_path() -> PathBuf {
    let run = fs::canonicalize("/var/run").unwrap_or_else(|_| "/run".into());
    run.join("secrets/kubernetes.io/serviceaccount")
}

/// Environment of an agent: the address of the API server, and nothing of the user's settings.
pub(crate) fn environment() -> Vec<(String, String)> {
    let [address, _] = network::addresses(network::WORLD);
    [
        ("KUBERNETES_SERVICE_HOST", address.to_string()),
        ("KUBERNETES_SERVICE_PORT", "6443".to_owned()),
        ("HOME", "/nonexistent".to_owned()),
        ("KUBECONFIG", String::new()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

impl Node {
    pub(crate) async fn start(common: &Common, number: u8, token: &str) -> Result<Self, NodeError> {
        let name = format!("node-{number}");
        let root = common.nodes.join(&name);
        let bridged = {
            let (name, root) = (name.clone(), root.clone());
            let (token, authority) = (token.to_owned(), common.authority.clone());
            blocking(move || prepare(&name, number, &root, &token, &authority)).await?
        };
        let place = Place {
            namespace: name.clone(),
            mounts: vec![
                (root.join("run/weft"), "/run/weft".into()),
                (root.join("var/lib/weft"), "/var/lib/weft".into()),
                (root.join("run/xtables.lock"), "/run/xtables.lock".into()),
                (root.join("secrets"), secrets_path()),
            ],
        };
        let kubelet = Kubelet::start(
            KubeletParts {
                node: name.clone(),
                addresses: network::addresses(10 + number).into(),
                runtime: Runtime {
                    programs: root.join("opt/cni/bin"),
                    configurations: root.join("etc/cni/net.d"),
                    place: place.clone(),
                },
                program: common.programs.lab.clone(),
                logs: common.logs.clone(),
                client: common.client.clone(),
            },
            &common.cluster,
        );
        let kubelet = kubelet
            .await
            .map_err(|source| NodeError::Kubelet(name.clone(), source))?;
        let agents = agents(common, &name, &root, &place, bridged)?;
        for agent in agents.iter().filter(|_| !common.without_weft) {
            agent
                .start()
                .map_err(|source| NodeError::Files(name.clone(), source))?;
        }
        Ok(Self {
            name,
            agents,
            kubelet,
            root,
            bridged,
        })
    }

    /// Socket of its IPAM daemon.
    pub(crate) fn socket(&self) -> PathBuf {
        self.root.join("run/weft/ipam.sock")
    }

    /// The agent of a component, such as `proxy`.
    pub fn agent(&self, component: &str) -> Option<&Agent> {
        let named = |agent: &&Agent| agent.status().component == component;
        self.agents.iter().find(named)
    }

    /// Stops it in order: pods, then agents, then the machine.
    pub(crate) async fn stop(&self) {
        self.kubelet.stop().await;
        futures::future::join_all(self.agents.iter().map(Agent::stop)).await;
        let name = self.name.clone();
        if let Err(error) = blocking(move || network::remove(&name)).await {
            tracing::warn!(node = self.name, %error, "cannot remove the network namespace of a node");
        }
    }
}

fn prepare(
    name: &str,
    number: u8,
    root: &Path,
    token: &str,
    authority: &str,
) -> Result<bool, NodeError> {
    let network = |source| NodeError::Network(name.to_owned(), source);
    network::make_machine(name, 10 + number).map_err(network)?;
    let bridged = network::make_router(name).map_err(network)?;
    let files = |source| NodeError::Files(name.to_owned(), source);
    furnish(name, root, token, authority).map_err(files)?;
    let plugins = PLUGIN_DIRECTORIES
        .iter()
        .map(Path::new)
        .find(|directory| directory.join("bridge").is_file())
        .ok_or(NodeError::Plugins)?;
    for plugin in PLUGINS {
        let link = root.join("opt/cni/bin").join(plugin);
        symlink(plugins.join(plugin), link).map_err(files)?;
    }
    Ok(bridged)
}

fn furnish(name: &str, root: &Path, token: &str, authority: &str) -> io::Result<()> {
    for directory in [
        "run/weft",
        "var/lib/weft",
        "opt/cni/bin",
        "etc/cni/net.d",
        "proc/sys/kernel/random",
    ] {
        fs::create_dir_all(root.join(directory))?;
    }
    fs::write(root.join("run/xtables.lock"), "")?;
    fs::write(root.join("etc/machine-id"), format!("{name}\n"))?;
    let boot = "proc/sys/kernel/random/boot_id";
    fs::copy(Path::new("/").join(boot), root.join(boot))?;
    write_secrets(&root.join("secrets"), token, authority)
}

fn agents(
    common: &Common,
    name: &str,
    root: &Path,
    place: &Place,
    bridged: bool,
) -> Result<Vec<Agent>, ManifestError> {
    let program = common.programs.weft.display().to_string();
    let root = root.display().to_string();
    let known = [("NODE_NAME", name), ("HOST_ROOT", root.as_str())];
    let agent = |container: manifest::Container| {
        let mut line = container.line(&program, &known);
        if !bridged {
            for word in &mut line {
                *word = word.replace("--main-plugin=bridge", "--main-plugin=ptp");
            }
        }
        Agent::new(AgentParts {
            node: Some(name.to_owned()),
            log: common.logs.join(format!("{name}-{}.log", container.name)),
            component: container.name,
            line,
            environment: environment(),
            place: place.clone(),
        })
    };
    Ok(manifest::containers(manifest::NODE)?
        .into_iter()
        .map(agent)
        .collect())
}
