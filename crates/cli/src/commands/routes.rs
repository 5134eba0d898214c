//! `weft routes`: the route controller of a cloud-controller-manager, with its flags.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use weft_process::client;
use weft_providers::Calls;
use weft_routes_agent::{preview, status::RoutesStatus};

use super::manager::{self, Identity, ManagerFlags, Selection};
use weft_program::{SharedArguments, config::LogOnly, output};

const AFTER_HELP: &str = "\
It contends for the lease of a cloud-controller-manager, so that the two never change routes at the
same time. To run it next to one, start that with --controllers=*,-route (or
--configure-cloud-routes=false) and give this another --leader-elect-resource-name. With --observe
it needs no lease and changes nothing.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct RoutesArguments {
    #[command(flatten)]
    flags: ManagerFlags,
    /// Accepted so that a cloud-controller-manager's command line starts
    #[arg(long, hide = true, value_delimiter = ',', default_value = "*")]
    controllers: Vec<String>,
    #[command(subcommand)]
    tool: Option<Tool>,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// Read nodes and table once and print what would be done
    ///
    /// Takes the flags of weft routes before it: weft routes --cloud-provider=hcloud
    /// --cluster-cidr=10.244.0.0/16 plan
    Plan,
    /// Ask a running controller how routes stand
    Status(StatusArguments),
}

#[derive(Debug, Args)]
struct StatusArguments {
    /// URL of the controller's diagnostics
    #[arg(long, value_name = "URL", default_value = "https://127.0.0.1:10258")]
    server: String,
    /// A file with a token that may get /debug/routes; loopback needs none
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &RoutesArguments, shared: SharedArguments) -> anyhow::Result<()> {
    match &arguments.tool {
        None => {
            // A manifest for a CCM that leaves routes to others must not start them here.
            let selection = Selection::of_others(&arguments.controllers);
            let who = Identity {
                manager: "cloud-controller-manager",
                lease: "cloud-controller-manager",
            };
            manager::run(&arguments.flags, &selection, who, None, shared)
        }
        Some(Tool::Plan) => plan(&arguments.flags, shared),
        Some(Tool::Status(status)) => show_status(status),
    }
}

fn plan(flags: &ManagerFlags, shared: SharedArguments) -> anyhow::Result<()> {
    let (features, _) = flags.features()?;
    let process = flags.routes_process(&features)?;
    shared.start_logging::<LogOnly>()?;
    let plan = in_runtime(async {
        let provider = process.open(Calls::default()).await?;
        let (kubeconfig, master) = flags.api_server();
        let config = client::config(kubeconfig, master).await?;
        let client = weft_runtime::connect(&config, None)?;
        let own_node = process.table.own_node();
        let (settings, namespace) = (&process.settings, &process.namespace);
        preview(
            &client,
            &*provider,
            settings,
            namespace,
            own_node.as_deref(),
        )
        .await
    })?;
    output::text(&plan.to_string())
}

fn show_status(arguments: &StatusArguments) -> anyhow::Result<()> {
    let token = match &arguments.token_file {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text =
                text.with_context(|| format!("cannot read the token in {}", path.display()))?;
            Some(text.trim().to_owned())
        }
    };
    let status: RoutesStatus = in_runtime(async {
        let text = client::page(&arguments.server, "/debug/routes", token).await?;
        Ok(serde_json::from_str(&text)?)
    })?;
    if arguments.json {
        output::json(&status)
    } else {
        output::text(&status.to_string())
    }
}

fn in_runtime<T>(
    work: impl Future<Output = Result<T, weft_runtime::Failure>>,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    runtime.block_on(work).map_err(anyhow::Error::from_boxed)
}
