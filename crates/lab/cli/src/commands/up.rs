//! `weft-lab up`: the playground.

use std::{net::SocketAddr, path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, bail};
use clap::Args;
use weft_playground::{
    launch::{Launch, usual_directory},
    world::MOST_NODES,
};

use weft_program::{SharedArguments, commands::ReportFormat, signals};

use crate::{config::LabLayer, weft};

const AFTER_HELP: &str = "\
Nodes and pods are network namespaces, Weft's agents are processes with the command lines of
deploy/, and stand-ins play the parts of Kubernetes that a network needs around it. The host's
network is not touched; everything ends with this command, also when it is killed. Works as root
and as an ordinary user where the kernel lets users make namespaces.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct UpArguments {
    /// Number of nodes
    #[arg(long, value_name = "NUMBER", default_value = "3",
          value_parser = clap::value_parser!(u8).range(1..i64::from(MOST_NODES)))]
    nodes: u8,
    /// Run the demo once and exit: with 0 if every check passed, with 1 if not
    #[arg(long)]
    once: bool,
    /// Format of the report; json prints one document per line
    #[arg(long, value_enum, default_value = "text")]
    output: ReportFormat,
    /// Directory for kubeconfig and logs; must be new, empty, or from an earlier run, whose files are
    /// replaced [default: weft-up-UID in the temporary directory]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Address of the API server for kubectl [default: 127.0.0.1:6443, or a free port if it is taken]
    #[arg(long, value_name = "ADDRESS", value_parser = loopback)]
    api_bind: Option<SocketAddr>,
    /// Address of the live page [default: 127.0.0.1:8088, or a free port if it is taken]
    #[arg(long, value_name = "ADDRESS", value_parser = loopback)]
    page_bind: Option<SocketAddr>,
    /// Instead of the demo, make random changes for this many seconds while requests are sent
    #[arg(long, value_name = "SECONDS", requires = "once")]
    churn: Option<u64>,
    /// Seed of the changes of --churn [default: random]
    #[arg(long, value_name = "NUMBER", requires = "churn")]
    seed: Option<u64>,
    /// Kill processes of Weft too, while changes are made
    #[arg(long, requires = "churn")]
    kill: bool,
    /// Seconds for which the demo makes the API server unavailable
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "3",
        conflicts_with = "churn"
    )]
    outage: u64,
    /// Start no process of Weft: shows that the stand-ins alone change nothing in the network
    #[arg(long, requires = "once", conflicts_with = "churn")]
    without_weft: bool,
    /// Use a user namespace even as root
    #[arg(long)]
    rootless: bool,
    /// Path of the program weft, of the same version [default: next to this program]
    #[arg(long, value_name = "FILE")]
    weft: Option<PathBuf>,
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|error| format!("{error}"))?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("is not a loopback address: every client of the listener is administrator".to_owned())
    }
}

pub(crate) fn run(arguments: &UpArguments, shared: SharedArguments) -> anyhow::Result<()> {
    let directory = arguments.directory.clone().unwrap_or_else(usual_directory);
    let directory = std::path::absolute(&directory).context("cannot resolve --directory")?;
    let weft = weft::find(arguments.weft.as_deref())?;
    let output = match arguments.output {
        ReportFormat::Text => "text",
        ReportFormat::Json => "json",
    };
    let mut words = vec![
        "playground".to_owned(),
        "world".to_owned(),
        format!("--nodes={}", arguments.nodes),
        format!("--output={output}"),
        format!("--directory={}", directory.display()),
        format!("--weft={}", weft.display()),
        format!("--outage={}", arguments.outage),
    ];
    if arguments.once {
        words.push("--once".to_owned());
    }
    if arguments.without_weft {
        words.push("--without-weft".to_owned());
    }
    if let Some(seconds) = arguments.churn {
        words.push(format!("--churn={seconds}"));
        words.extend(arguments.seed.map(|seed| format!("--seed={seed}")));
        words.extend(arguments.kill.then(|| "--kill".to_owned()));
    }
    if shared.log.level.is_none() && std::env::var_os("WEFT_LOG_LEVEL").is_none() {
        // Errors only: Weft's own processes have logs of their own.
        words.push("--log-level=error".to_owned());
    } else if let Some(level) = &shared.log.level {
        words.push(format!("--log-level={level}"));
    }
    let launch = Launch {
        directory: directory.clone(),
        api: arguments.api_bind,
        page: arguments.page_bind,
        arguments: words,
        rootless: arguments.rootless,
    };
    let log = shared.start_logging::<LabLayer>()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.context("cannot start the async runtime")?;
    let stop = {
        let _inside = runtime.enter();
        signals::listen(log)?
    };
    let mut world = launch.start()?;
    let status = loop {
        if let Some(status) = world.ended().context("cannot wait for the playground")? {
            break status;
        }
        if stop.is_cancelled() {
            break world.stop().context("cannot stop the playground")?;
        }
        // Lets signals in, and looks again.
        runtime.block_on(async {
            let pause = tokio::time::sleep(Duration::from_millis(50));
            tokio::select! { () = stop.cancelled() => {} () = pause => {} }
        });
        thread::yield_now();
    };
    match status.code() {
        Some(0) => Ok(()),
        Some(_) => bail!(
            "a check failed; the logs are in {}/logs",
            directory.display()
        ),
        None => bail!("the playground was ended by {status}"),
    }
}
