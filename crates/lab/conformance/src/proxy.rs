//! Service proxies beside each other: how fast they are, what they take and what packets feel.
//!
//! Each proxy has a network namespace of its own and talks to the same real API server. One runs
//! at a time: two would take the processors from each other. The order of the first pass is turned
//! round in the second, so that a machine that grows slower is to nobody's advantage.

use std::{env, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context as _, ensure};
use clap::Args;

use crate::{Outcome, arguments::Common};

mod arm;
mod cluster;
mod figures;
mod lower_bound;
mod objects;
mod ping;
mod probe;
mod process;
mod relay;
mod samples;
mod testbed;
mod trial;
mod verdict;

use arm::Arm;
use cluster::Cluster;
use testbed::Programs;
use trial::{Effort, Setting, Trial};

/// Tells the process in its own namespaces that it is there.
const INSIDE: &str = "WEFT_CONFORMANCE_INSIDE";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// The administrator's kubeconfig of a real kube-apiserver on loopback.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Numbers of Services, in ascending order.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 5_000, 10_000])]
    sizes: Vec<u32>,
    /// The proxies to compare; all of them if not given.
    #[arg(long, value_delimiter = ',')]
    arms: Vec<Arm>,
    /// How many seconds to wait for a full sync.
    #[arg(long, default_value_t = 1_500)]
    patience: u64,
}

impl Arguments {
    fn arms(&self) -> Vec<Arm> {
        let iptables = [
            Arm::KubeProxyLegacy,
            Arm::WeftLegacy,
            Arm::KubeProxyNft,
            Arm::WeftNft,
        ];
        match (&self.arms[..], self.common.quick) {
            ([], true) => iptables.to_vec(),
            ([], false) => Arm::ALL.to_vec(),
            (given, _) => given.to_vec(),
        }
    }

    fn sizes(&self) -> Vec<u32> {
        if self.common.quick {
            vec![100]
        } else {
            self.sizes.clone()
        }
    }

    fn effort(&self) -> Effort {
        let patience = Duration::from_secs(self.patience);
        if self.common.quick {
            return Effort {
                changes: 2,
                budget: Duration::ZERO,
                patience,
                connections: 100,
            };
        }
        Effort {
            changes: 10,
            budget: Duration::from_secs(60),
            patience,
            connections: 1_000,
        }
    }
}

/// Compares them and writes the outcome.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "service proxies can only be compared by root"
    );
    if env::var_os(INSIDE).is_none() {
        return run_inside();
    }
    // Names of namespaces and the lock of iptables are there; the host's stay as they are.
    let mount = ["-t", "tmpfs", "tmpfs", "/run"];
    let status = Command::new("mount").args(mount).status()?;
    ensure!(status.success(), "mount a /run of our own: {status}");
    compare(arguments)
}

/// Runs this program again where its processes, mounts and namespaces end with it, and all of them
/// with us: `unshare` itself would ignore that it is told to end.
fn run_inside() -> anyhow::Result<()> {
    let status = Command::new("setpriv")
        .args(["--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork"])
        .args(["--kill-child=KILL", "--mount-proc"])
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1")
        .status()
        .context("start setpriv")?;
    ensure!(status.success(), "the comparison failed: {status}");
    Ok(())
}

fn compare(arguments: &Arguments) -> anyhow::Result<()> {
    let arms = arguments.arms();
    if arms.contains(&Arm::KubeProxyNftables) {
        testbed::find("nft").context("kube-proxy nftables needs it (package nftables)")?;
    }
    let names: Vec<&str> = arms.iter().map(|arm| arm.name()).collect();
    let mut outcome = Outcome::new("proxy", "Service proxies", &names);
    let runtime = tokio::runtime::Runtime::new()?;
    let cluster = runtime.block_on(Cluster::connect(&arguments.kubeconfig))?;
    let mut setting = Setting {
        runtime,
        cluster,
        programs: Programs::link()?,
        weft: arguments.common.weft.canonicalize()?,
        kube_proxy: arguments.common.peers.join("kube-proxy").canonicalize()?,
        kubeconfig: arguments.kubeconfig.canonicalize()?,
        effort: arguments.effort(),
    };
    verdict::describe(&mut outcome, &setting)?;
    outcome.incomplete = true;
    for size in arguments.sizes() {
        measure(size, &arms, &mut setting, &mut outcome)?;
        // A run that is interrupted later has shown this much.
        outcome.write(&arguments.common.output)?;
    }
    outcome.incomplete = false;
    if !arguments.common.quick {
        verdict::judge(&mut outcome, &arms);
    }
    outcome.write(&arguments.common.output)?;
    setting.runtime.block_on(setting.cluster.clear())
}

fn measure(
    size: u32,
    arms: &[Arm],
    setting: &mut Setting,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    setting.runtime.block_on(setting.cluster.load(size))?;
    let trials = arms.iter().map(|&arm| Trial::new(arm, size, setting));
    let mut trials = trials.collect::<anyhow::Result<Vec<Trial>>>()?;
    for trial in &mut trials {
        trial.first_pass(setting)?;
    }
    for trial in trials.iter_mut().rev() {
        trial.second_pass(setting)?;
    }
    for trial in &trials {
        trial.figures.report(trial.arm, size, outcome);
        outcome.notes.extend(verdict::remarks(trial, size, setting));
    }
    Ok(())
}
