//! `weft check`: a connectivity test of a cluster.

use std::{
    env,
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use weft_check::{CheckOptions, Echo};
use weft_process::client;

use weft_program::{SharedArguments, commands::ReportFormat, config::LogOnly, output, signals};

/// The image of this version, where deploy/ has it: the registry is the user's.
const IMAGE: &str = concat!("REGISTRY/weft-node:", env!("CARGO_PKG_VERSION"));

const AFTER_HELP: &str = "\
It creates a namespace with four pods on two nodes and four Services, lets the pods send requests to
one another, prints a table of the results, and removes everything again, also when it fails or is
interrupted. Exit code 0 means that no check failed. On a single-node or single-stack cluster it
reports which checks were skipped. docs/check.md lists the RBAC rights it needs.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct CheckArguments {
    /// Path to a kubeconfig [default: as kubectl]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The namespace to make, and to remove
    #[arg(long, value_name = "NAME", default_value = "weft-check")]
    namespace: String,
    /// The image of the probes, which has this program; the playground needs none
    #[arg(long, value_name = "IMAGE", default_value = IMAGE)]
    image: String,
    /// Leave what was made, to look at it
    #[arg(long)]
    keep: bool,
    /// Format of the report
    #[arg(long, value_enum, default_value = "text")]
    output: ReportFormat,
    /// Longest time until the probes are ready
    #[arg(long, value_name = "SECONDS", default_value = "120")]
    timeout: u64,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Be a probe: say who answers, and ask others; runs in the pods of a check
    ///
    /// Its pod and node are named by the environment variables POD_NAME and NODE_NAME.
    Probe {
        /// Port of the probe, TCP and UDP
        #[arg(long, default_value = "8080")]
        port: u16,
    },
}

pub(crate) fn run(arguments: CheckArguments, shared: SharedArguments) -> anyhow::Result<()> {
    match arguments.role {
        Some(Role::Probe { port }) => be_probe(port),
        None => check(arguments, shared),
    }
}

fn be_probe(port: u16) -> anyhow::Result<()> {
    let named = |variable| env::var(variable).with_context(|| format!("read {variable}"));
    let echo = Echo {
        pod: named("POD_NAME")?,
        node: named("NODE_NAME")?,
        port,
    };
    echo.serve().context("cannot serve probes")
}

fn check(arguments: CheckArguments, shared: SharedArguments) -> anyhow::Result<()> {
    let log = shared.start_logging::<LogOnly>()?;
    let options = CheckOptions {
        namespace: arguments.namespace,
        image: arguments.image,
        keep: arguments.keep,
        timeout: Duration::from_secs(arguments.timeout),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let report = runtime.block_on(async {
        let stop = signals::listen(log)?;
        let config = client::config(arguments.kubeconfig, None)
            .await
            .map_err(anyhow::Error::from_boxed)
            .context("cannot configure the connection to the cluster")?;
        let client =
            weft_runtime::connect(&config, None).context("cannot connect to the cluster")?;
        let say = |text: &str| {
            // A closed stderr has no reader of the progress.
            let _ = writeln!(io::stderr(), "{text}");
        };
        let report = weft_check::run(&client, &options, &stop, &say).await?;
        Ok::<_, anyhow::Error>(report)
    })?;
    match arguments.output {
        ReportFormat::Text => output::text(&report.to_string())?,
        ReportFormat::Json => output::json(&report)?,
    }
    if !report.ok {
        bail!("{} of {} checks failed", report.failed(), report.rows.len());
    }
    Ok(())
}
