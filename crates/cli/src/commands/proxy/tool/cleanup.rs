//! `weft proxy cleanup`: removes the rules of service proxies from the kernel.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use weft_host::iptables::VariantChoice;
use weft_model::IpFamily;
use weft_proxy_agent::process;

use super::kernel_rules::{KernelRules, find};

const AFTER_HELP: &str = "\
The way back to kube-proxy, which does not know the nftables table of weft: stop weft proxy, start
kube-proxy, and run this with --hand-over. Services work all the while.";

/// Interval at which the kernel is asked for the rules of the next proxy.
const INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which a wait is logged.
const REMINDER: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(in super::super) struct CleanupArguments {
    /// Wait until another service proxy has written its rules, then remove only the nftables table
    /// of weft
    #[arg(long)]
    hand_over: bool,
}

impl CleanupArguments {
    pub(super) fn run(&self, variant: VariantChoice) -> anyhow::Result<()> {
        if !self.hand_over {
            return process::cleanup(variant).map_err(anyhow::Error::from_boxed);
        }
        for family in IpFamily::ALL {
            if find(family)?.contains(&KernelRules::OwnTable(family)) {
                wait_for_another(family)?;
                process::remove_own_table(family)
                    .with_context(|| format!("cannot remove the {family} table of weft"))?;
            }
        }
        Ok(())
    }
}

/// Waits for the rules of another proxy. Those that are found are complete: kube-proxy writes its
/// first ones at once, and chains count once they are filled.
fn wait_for_another(family: IpFamily) -> anyhow::Result<()> {
    let mut reminder = Instant::now();
    while !find(family)?
        .iter()
        .any(|rules| rules.are_of_another_proxy())
    {
        if reminder <= Instant::now() {
            tracing::info!(%family, "waiting for the rules of another service proxy");
            reminder = Instant::now() + REMINDER;
        }
        thread::sleep(INTERVAL);
    }
    Ok(())
}
