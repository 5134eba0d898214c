//! `weft proxy diff`.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use weft_host::iptables::{Iptables, VariantChoice};
use weft_iptables::{HostKernel, Options, OwnWrites, Plan};
use weft_model::IpFamily;
use weft_proxy::{Repair, config::Mode};
use weft_proxy_agent::{
    host,
    offline::{FamilyState, Snapshot},
    process,
};
use weft_runtime::connect;

use super::{ABLE, ObjectFiles, family_state};
use weft_program::output;

use crate::commands::proxy::resolve::Resolved;

const AFTER_HELP: &str = "\
Nothing is written. Works with a running kube-proxy too, which writes the same rules. Exits with code
1 if there is a difference.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(in super::super) struct DiffArguments {
    #[command(flatten)]
    objects: ObjectFiles,
    /// Print the changes that remove the differences, as input of iptables-restore --noflush
    #[arg(long)]
    mend: bool,
}

impl DiffArguments {
    pub(super) fn run(
        &self,
        resolved: &Resolved,
        variant: VariantChoice,
        master: Option<&str>,
    ) -> anyhow::Result<()> {
        let snapshot = if self.objects.is_empty() {
            from_cluster(resolved, master)?
        } else {
            self.objects.read()?
        };
        if resolved.config.mode == Mode::Nftables {
            return self.nftables(&snapshot, resolved);
        }
        let mut count = 0;
        let required = process::required_family(&resolved.config);
        for (family, programs) in host::families(required, variant)? {
            let state = family_state(&snapshot, resolved, family)?;
            let (findings, plan) = compare(&programs, &state)?;
            count += findings.len();
            if self.mend {
                output::text(&format!("# {family}\n{plan}"))?;
                continue;
            }
            for finding in &findings {
                output::text(&format!("{family} {finding}\n"))?;
            }
        }
        if count > 0 {
            bail!("the kernel differs in {count} places from what the objects ask for");
        }
        output::text("no difference\n")
    }

    /// In this mode what differs and what would mend it are the same words.
    fn nftables(&self, snapshot: &Snapshot, resolved: &Resolved) -> anyhow::Result<()> {
        let mut count = 0;
        for family in IpFamily::ALL {
            let state = family_state(snapshot, resolved, family)?;
            let mut kernel = weft_nftables::HostKernel::new(family, weft_nftables::Watch::new());
            let differences =
                weft_nftables::differences(&mut kernel, &state.desired, &state.settings)?;
            count += differences.lines().count();
            if self.mend || !differences.is_empty() {
                output::text(&format!("# {family}\n{differences}"))?;
            }
        }
        if count > 0 {
            bail!("the kernel differs in {count} places from what the objects ask for");
        }
        output::text("no difference\n")
    }
}

/// The rules may have been written with or without packet counters; the closer match is used.
fn compare(programs: &Iptables, state: &FamilyState) -> anyhow::Result<(Vec<Repair>, Plan)> {
    let mut best: Option<(Vec<Repair>, Plan)> = None;
    for nfacct in [true, false] {
        let options = Options {
            nfacct,
            random_fully: programs.supports_random_fully(),
            drop_invalid: !host::is_liberal(),
            ..ABLE
        };
        let mut kernel = HostKernel::new(programs.clone(), OwnWrites::default());
        let found =
            weft_iptables::differences(&mut kernel, &state.desired, &state.settings, options)?;
        if best
            .as_ref()
            .is_none_or(|best| found.0.len() < best.0.len())
        {
            best = Some(found);
        }
    }
    best.context("cannot compare with the kernel")
}

fn from_cluster(resolved: &Resolved, master: Option<&str>) -> anyhow::Result<Snapshot> {
    let kubeconfig = resolved.config.client.kubeconfig.as_ref();
    let kubeconfig = kubeconfig.map(PathBuf::from);
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    let read = runtime.block_on(async {
        let config = weft_process::client::config(kubeconfig, master).await?;
        Snapshot::read(&connect(&config, None)?).await
    });
    read.map_err(anyhow::Error::from_boxed)
        .context("cannot read the cluster's objects")
}
