//! `weft ipam`: the address daemon of a node, and tools that query it.

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
    IpamProcess, IpamSettings, IpamSetup, Listeners,
    report::{Explanation, status_text},
    socket_get,
};

use super::manager::{ApiFlags, ControlFlags, GoTime, node_name, wrong};
use weft_program::{
    SharedArguments,
    config::{ConfigError, LogOnly},
    output, signals,
};

const AFTER_HELP: &str = "\
An allocation is written to --state-dir before the CNI plugin is answered. While the directory cannot
be written, new pods are refused and deletions go on. With --nnc-group=acn.azure.com the daemon uses
Azure's NodeNetworkConfigs.";

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
    #[command(flatten)]
    api: ApiFlags,
    /// Name of this machine's Node [default: the host name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Unix socket for the CNI plugin
    #[arg(
        long,
        value_name = "PATH",
        default_value = weft_cni::DEFAULT_SOCKET,
        global = true
    )]
    socket: PathBuf,
    #[command(flatten)]
    pool: PoolFlags,
    /// Address of health and metrics; port 0 disables them
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9440")]
    metrics_bind_address: SocketAddr,
    #[command(flatten)]
    control: ControlFlags,
}

/// Flags of the address pool.
#[derive(Debug, Args)]
pub(crate) struct PoolFlags {
    /// Loopback address that serves plugins too; every pod in the host's network can reach it
    #[arg(long, value_name = "ADDRESS")]
    loopback_bind_address: Option<SocketAddr>,
    /// Directory in which the plugin queues releases while this daemon is not running
    #[arg(long, value_name = "DIRECTORY", default_value = weft_cni::DEFAULT_QUEUE)]
    cni_queue: PathBuf,
    /// Directory of the allocation records
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/weft/ipam")]
    state_dir: PathBuf,
    /// Root directory under which machine ID and boot ID are read
    #[arg(long, value_name = "DIRECTORY", default_value = "/")]
    root_dir: PathBuf,
    /// Signal that drives the size of the pool
    #[arg(long, value_enum, default_value = "pods")]
    scaling_mode: Mode,
    /// API group of NodeNetworkConfigs
    #[arg(long, value_name = "GROUP", default_value = GROUP)]
    nnc_group: String,
    /// Namespace of NodeNetworkConfigs
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    nnc_namespace: String,
    /// Time for which a released address is not reused
    #[arg(long, value_name = "TIME", default_value = "30s")]
    cooldown: GoTime,
    /// Longest time for which an ADD waits for an address
    #[arg(long, value_name = "TIME", default_value = "25s")]
    add_wait: GoTime,
    /// Time with a smaller demand after which addresses are given back
    #[arg(long, value_name = "TIME", default_value = "2m")]
    scale_down_stabilisation: GoTime,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// Pods bound to the node: the pool has the right size at once
    Pods,
    /// Allocated addresses: the pool grows by a batch at a time, as in Azure CNS
    Requests,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// Print the state of a running daemon's pool
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the addresses of a pod and why it has them or waits
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
        Err(ConfigError::Flag(format!(
            "{pod:?} is not a pod name: expected NAMESPACE/NAME"
        )))
    }
}

fn question<T: serde::de::DeserializeOwned>(flags: &IpamFlags, page: &str) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    Ok(runtime.block_on(socket_get(&flags.socket, page))?)
}

fn serve(flags: &IpamFlags, shared: SharedArguments) -> anyhow::Result<()> {
    let process = flags.process()?;
    let log = shared.start_logging::<LogOnly>()?;
    signals::serve(log, |shutdown| process.run(shutdown))
}

impl IpamFlags {
    fn process(&self) -> Result<IpamProcess, ConfigError> {
        let node = node_name(self.node_name.as_deref())?;
        let pages = self.metrics_bind_address;
        Ok(IpamProcess {
            kubeconfig: self.api.kubeconfig.clone(),
            master: self.api.master.clone(),
            setup: self.pool.setup(&node, &self.socket)?,
            pages: (pages.port() != 0).then_some(pages),
            control: self.control.control_socket.clone(),
        })
    }
}

impl PoolFlags {
    /// The configuration of the daemon.
    pub(crate) fn setup(&self, node: &str, socket: &Path) -> Result<IpamSetup, ConfigError> {
        if self
            .loopback_bind_address
            .is_some_and(|address| !address.ip().is_loopback())
        {
            let reason =
                "is not a loopback address: every client of the listener can take addresses";
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
            listeners: Listeners {
                socket: socket.to_owned(),
                loopback: self.loopback_bind_address,
                queue: self.cni_queue.clone(),
            },
            root: self.root_dir.clone(),
        })
    }

    /// The NodeNetworkConfigs to use.
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
