//! `weft ipam`: the daemon that keeps a node's addresses, and tools that ask it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use weft_cns::{StatusResponse, path};
use weft_ipam::{
    ScalingMode,
    objects::{GROUP, NetworkObjects},
};
use weft_ipam_daemon::{
    Doors, IpamProcess, IpamSettings, IpamSetup, ask,
    report::{Explanation, status_text},
};

use super::manager::{ControlFlags, GoTime, node_name, start_logging, wrong};
use crate::{args::SharedArguments, config::ConfigError, output, signals};

const AFTER_HELP: &str = "\
Who has which address is remembered in --state-dir before a plugin is answered. A directory that
cannot be written closes the node for new pods; deletions go on. With
--nnc-group=acn.azure.com Azure's own NodeNetworkConfigs are used.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct IpamArguments {
    #[command(flatten)]
    flags: IpamFlags,
    #[command(subcommand)]
    tool: Option<Tool>,
}

#[derive(Debug, Args)]
struct IpamFlags {
    /// How to reach the API server; in a pod its service account does
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Another API server than the kubeconfig's
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// This node's name; the host name if absent
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// The Unix socket that plugins come to
    #[arg(
        long,
        value_name = "PATH",
        default_value = weft_cni::DEFAULT_SOCKET,
        global = true
    )]
    socket: PathBuf,
    #[command(flatten)]
    pool: PoolFlags,
    /// Where to serve health and metrics; port 0 serves nothing
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9440")]
    metrics_bind_address: SocketAddr,
    #[command(flatten)]
    control: ControlFlags,
}

/// How a node's addresses are kept.
#[derive(Debug, Args)]
pub(crate) struct PoolFlags {
    /// Serve plugins on this loopback port too, where any pod of the host's network can ask
    #[arg(long, value_name = "ADDRESS")]
    loopback_bind_address: Option<SocketAddr>,
    /// Where the plugin leaves releases while this daemon is away
    #[arg(long, value_name = "DIRECTORY", default_value = weft_cni::DEFAULT_QUEUE)]
    cni_queue: PathBuf,
    /// Where to remember who has which address
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/weft/ipam")]
    state_dir: PathBuf,
    /// Where machine id and boot id are looked up
    #[arg(long, value_name = "DIRECTORY", default_value = "/")]
    root_dir: PathBuf,
    /// What drives the size of the pool
    #[arg(long, value_enum, default_value = "pods")]
    scaling_mode: Mode,
    /// The API group of NodeNetworkConfigs
    #[arg(long, value_name = "GROUP", default_value = GROUP)]
    nnc_group: String,
    /// The namespace of NodeNetworkConfigs
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    nnc_namespace: String,
    /// How long a released address is not used again
    #[arg(long, value_name = "TIME", default_value = "30s")]
    cooldown: GoTime,
    /// How long an ADD waits for an address at most
    #[arg(long, value_name = "TIME", default_value = "25s")]
    add_wait: GoTime,
    /// How long a larger demand is remembered before addresses are given back
    #[arg(long, value_name = "TIME", default_value = "2m")]
    scale_down_stabilisation: GoTime,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// Pods that are bound to the node: the right size at once
    Pods,
    /// Addresses that were handed out: a batch at a time, as Azure CNS does
    Requests,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// Ask a running daemon how its pool stands
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Ask a running daemon what it knows of a pod
    Explain {
        /// The pod, as NAMESPACE/NAME; without a namespace it is in `default`
        pod: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(arguments: &IpamArguments, shared: SharedArguments) -> anyhow::Result<()> {
    let flags = &arguments.flags;
    match &arguments.tool {
        None => serve(flags, shared),
        Some(Tool::Status { json }) => {
            let status: StatusResponse = question(flags, path::STATUS)?;
            if *json {
                return output::json(&status);
            }
            output::text(&status_text(&status))
        }
        Some(Tool::Explain { pod, json }) => {
            let explanation: Explanation = question(flags, &page_of(pod)?)?;
            if *json {
                return output::json(&explanation);
            }
            output::text(&explanation.to_string())
        }
    }
}

/// The page of a pod. Nothing but a name gets into the request.
fn page_of(pod: &str) -> Result<String, ConfigError> {
    let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
    let is_name = |text: &str| {
        let mut bytes = text.bytes();
        !text.is_empty()
            && bytes.all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)
            })
    };
    if is_name(namespace) && is_name(name) {
        Ok(format!("/v1/pods/{namespace}/{name}"))
    } else {
        Err(ConfigError::Flag(format!("{pod:?} is no name of a pod")))
    }
}

fn question<T: serde::de::DeserializeOwned>(flags: &IpamFlags, page: &str) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    Ok(runtime.block_on(ask(&flags.socket, page))?)
}

fn serve(flags: &IpamFlags, shared: SharedArguments) -> anyhow::Result<()> {
    let process = flags.process()?;
    let log = start_logging(shared)?;
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    runtime.block_on(async {
        let shutdown = signals::listen(log)?;
        let running = process.run(shutdown).await;
        running.map_err(anyhow::Error::from_boxed)
    })
}

impl IpamFlags {
    fn process(&self) -> Result<IpamProcess, ConfigError> {
        let node = node_name(self.node_name.as_deref())?;
        let pages = self.metrics_bind_address;
        Ok(IpamProcess {
            kubeconfig: self.kubeconfig.clone(),
            master: self.master.clone(),
            setup: self.pool.setup(&node, &self.socket)?,
            pages: (pages.port() != 0).then_some(pages),
            control: self.control.control_socket.clone(),
        })
    }
}

impl PoolFlags {
    /// What the daemon of a node is told.
    pub(crate) fn setup(&self, node: &str, socket: &Path) -> Result<IpamSetup, ConfigError> {
        if self
            .loopback_bind_address
            .is_some_and(|address| !address.ip().is_loopback())
        {
            let reason = "only loopback: whoever reaches it can take addresses";
            return Err(wrong("loopback-bind-address", reason));
        }
        if self.add_wait.0.is_zero() {
            return Err(wrong("add-wait", "must not be zero"));
        }
        let mut settings = IpamSettings::new(node, &self.state_dir);
        settings.objects = self.objects();
        settings.pool.cooldown = self.cooldown.0;
        settings.pool.wait = self.add_wait.0;
        settings.monitor.stabilisation = self.scale_down_stabilisation.0;
        settings.monitor.write_demand = !settings.objects.is_azure();
        settings.monitor.mode = match self.scaling_mode {
            Mode::Pods => ScalingMode::Pods,
            Mode::Requests => ScalingMode::Requests,
        };
        Ok(IpamSetup {
            settings,
            doors: Doors {
                socket: socket.to_owned(),
                loopback: self.loopback_bind_address,
                queue: self.cni_queue.clone(),
            },
            root: self.root_dir.clone(),
        })
    }

    /// Whose NodeNetworkConfigs are used.
    pub(crate) fn objects(&self) -> NetworkObjects {
        NetworkObjects {
            group: self.nnc_group.clone(),
            namespace: self.nnc_namespace.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_pods_get_into_a_request() {
        assert_eq!(page_of("web-0").unwrap(), "/v1/pods/default/web-0");
        assert_eq!(page_of("prod/web.0").unwrap(), "/v1/pods/prod/web.0");
        for wrong in ["", "a/", "/b", "a/b/c", "a b", "a\r\nb", "A", "a?b"] {
            assert!(page_of(wrong).is_err(), "{wrong:?}");
        }
    }
}
