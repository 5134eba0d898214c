//! Comparison of service proxies: latency, processor time, memory and gaps in traffic.
//!
//! Each proxy has a network namespace of its own and uses the same real API server. One runs at a
//! time, because two would compete for the processors. The second pass runs them in reverse, so that
//! a machine that becomes slower favours no proxy.

use std::{env, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context as _, ensure};
use clap::Args;

use crate::{Outcome, arguments::Common};

mod arm;
mod bare_watcher;
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

use arm::{Arm, Proxies};
use bare_watcher::BareWatcher;
use cluster::Cluster;
use testbed::Programs;
use trial::{ADDED, Effort, Setting, Trial};

/// Set for the process that runs in namespaces of its own.
const INSIDE: &str = "WEFT_CONFORMANCE_INSIDE";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Administrator's kubeconfig of a real kube-apiserver on loopback.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Numbers of Services, ascending.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 5_000, 10_000])]
    sizes: Vec<u32>,
    /// Proxies to compare (default: all).
    #[arg(long, value_delimiter = ',')]
    arms: Vec<Arm>,
    /// Seconds to wait for a full sync.
    #[arg(long, default_value_t = 1_500)]
    patience: u64,
}

impl Arguments {
    fn arms(&self) -> Vec<Arm> {
        match &self.arms[..] {
            [] => Arm::ALL.to_vec(),
            given => given.to_vec(),
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

/// Runs the comparison and writes its outcome.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "cannot compare service proxies: not running as root"
    );
    if env::var_os(INSIDE).is_none() {
        return run_inside();
    }
    // Names of namespaces and the lock of iptables are in /run; those of the host stay untouched.
    let mount = ["-t", "tmpfs", "tmpfs", "/run"];
    let status = Command::new("mount").args(mount).status()?;
    ensure!(status.success(), "cannot mount a private /run: {status}");
    compare(arguments)
}

/// Runs this program again in namespaces whose processes and mounts end with it. `setpriv` ends all
/// of them if this process ends: `unshare` itself ignores SIGTERM.
fn run_inside() -> anyhow::Result<()> {
    let status = Command::new("setpriv")
        .args(["--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork"])
        .args(["--kill-child=KILL", "--mount-proc"])
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1")
        .status()
        .context("cannot start setpriv")?;
    ensure!(status.success(), "the comparison failed: {status}");
    Ok(())
}

fn compare(arguments: &Arguments) -> anyhow::Result<()> {
    let arms = arguments.arms();
    let most = arguments.sizes().into_iter().max().unwrap_or_default();
    ensure!(
        most <= ADDED,
        "cannot compare at {most} Services: expected at most {ADDED}"
    );
    if arms.iter().any(|arm| !arm.calls_iptables()) {
        testbed::find("nft")
            .context("cannot run kube-proxy in nftables mode (package nftables)")?;
    }
    let peer = |name: &str| arguments.common.peers.join(name).canonicalize();
    let names: Vec<&str> = arms.iter().map(|arm| arm.name()).collect();
    let mut outcome = Outcome::new("proxy", "Service proxies", &names);
    let runtime = tokio::runtime::Runtime::new()?;
    let cluster = runtime.block_on(Cluster::connect(&arguments.kubeconfig))?;
    let mut setting = Setting {
        runtime,
        cluster,
        programs: Programs::link()?,
        proxies: Proxies {
            weft: arguments.common.weft.canonicalize()?,
            kube_proxy: peer("kube-proxy")?,
            newest_kube_proxy: peer("kube-proxy-newest")?,
        },
        watcher: BareWatcher::start(&arguments.kubeconfig)?,
        kubeconfig: arguments.kubeconfig.canonicalize()?,
        effort: arguments.effort(),
    };
    verdict::describe(&mut outcome, &setting)?;
    outcome.incomplete = true;
    for size in arguments.sizes() {
        measure(size, &arms, &mut setting, &mut outcome)?;
        // An interrupted run keeps the sizes measured so far.
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
