//! The compared route controllers and their command lines.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::version::{of_weft, output};

/// Cluster CIDR, from which the nodes have their ranges.
const CLUSTER_CIDR: &str = "10.244.0.0/16";
pub(super) const TOKEN: &str = "a-token-of-sixty-four-characters-for-a-double-that-takes-any-one";
pub(super) const NETWORK: &str = "weft";

/// A compared route controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Arm {
    /// Upstream's controller with its defaults: it polls every ten seconds.
    Polling,
    /// Upstream's controller with the feature gate of KEP-5237 on.
    Watching,
    Weft,
}

pub(super) const ARMS: [Arm; 3] = [Arm::Polling, Arm::Watching, Arm::Weft];

/// The column of figures that are computed and not measured.
pub(super) const FORMULA: &str = "formula";

/// Paths of the programs.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) weft: PathBuf,
    pub(super) peers: PathBuf,
    /// A cloud-controller-manager instead of the one among the peers.
    pub(super) ccm: Option<PathBuf>,
}

impl Arm {
    /// Heading of its column.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Polling => "upstream, gate off",
            Self::Watching => "upstream, gate on",
            Self::Weft => "weft",
        }
    }

    /// Name in file names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Watching => "watching",
            Self::Weft => "weft",
        }
    }

    /// Command line with all defaults, except for what a test on loopback needs.
    pub(super) fn command(self, programs: &Programs, kubeconfig: &Path, endpoint: &str) -> Command {
        let mut command = match self {
            Self::Weft => {
                let mut command = Command::new(&programs.weft);
                command.arg("routes");
                command
            }
            Self::Polling | Self::Watching => {
                let gate = self == Self::Watching;
                let mut command = Command::new(programs.ccm());
                command
                    .args(["--allow-untagged-cloud", "--controllers=node-route-controller"])
                    .arg("--bind-address=127.0.0.1")
                    .arg(format!(
                        "--feature-gates=CloudControllerManagerWatchBasedRoutesReconciliation={gate}"
                    ));
                command
            }
        };
        command
            .args(["--cloud-provider=hcloud", "--secure-port=0"])
            // There is no other candidate, and on a busy machine a lease can be lost.
            .arg("--leader-elect=false")
            .arg(format!("--cluster-cidr={CLUSTER_CIDR}"))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .env("HCLOUD_TOKEN", TOKEN)
            .env("HCLOUD_ENDPOINT", endpoint)
            .env("HCLOUD_NETWORK", NETWORK)
            // For hcloud-cloud-controller-manager: no metadata service, no port for metrics, no load
            // balancers.
            .env("HCLOUD_NETWORK_DISABLE_ATTACHED_CHECK", "true")
            .env("HCLOUD_METRICS_ENABLED", "false")
            .env("HCLOUD_LOAD_BALANCERS_ENABLED", "false");
        command
    }
}

impl Programs {
    fn ccm(&self) -> PathBuf {
        self.ccm.clone().unwrap_or_else(|| self.peers.join("ccm"))
    }

    /// Versions as the programs print them.
    pub(super) fn versions(&self) -> anyhow::Result<Vec<String>> {
        let api_server = output(&self.peers.join("kube-apiserver"), "--version")?;
        let mut versions = vec![of_weft(&self.weft)?];
        match &self.ccm {
            None => versions.extend(output(&self.ccm(), "versions")?.lines().map(str::to_owned)),
            Some(ccm) => {
                let name = ccm.file_name().unwrap_or_default().to_string_lossy();
                let version = output(ccm, "--version")?;
                // k8s.io/cloud-provider prints this prefix for every program.
                let version = version.trim_start_matches("Kubernetes ");
                versions.push(format!("{name} {version}"));
            }
        }
        versions.push(format!("kube-apiserver of {api_server}"));
        Ok(versions)
    }
}
