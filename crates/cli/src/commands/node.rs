//! `weft node`: the agents of a node in one process, and commands to control them.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use ipnet::IpNet;
use tracing::warn;
use weft_proxy::config::{KubeProxyConfiguration, METRICS_PORT};
use weft_proxy_agent::{config_file::ConfigFile, process::ProxySetup};
use weft_routes::ConditionPolicy;
use weft_routes_agent::{
    RoutesSettings,
    process::{RoutesProcess, Table},
};

use super::{
    ipam::PoolFlags,
    manager::{ApiFlags, KernelFlags, Selection, check_ranges, node_name, wrong},
    proxy::{IptablesVariant, Resolved, TableFlags, read},
};
use weft_program::{
    SharedArguments,
    config::{ConfigError, LogOnly},
    signals,
};

use crate::process::node::{NodeProcess, ProxyPart};

mod orders;

use orders::Order;

const AFTER_HELP: &str = "\
Each part starts, stops and restarts for itself; one that fails is tried again after a growing
pause, and the others go on. The orders status, stop, start and restart work with every process
that has a --control-socket. When the file of --proxy-config changes, the proxy begins again with
it; addresses of health and metrics stay as they were.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct NodeArguments {
    #[command(flatten)]
    flags: NodeFlags,
    #[command(subcommand)]
    order: Option<Order>,
}

#[derive(Debug, Args)]
struct NodeFlags {
    /// Parts to run: proxy, ipam, routes. '*' means all; '-name' disables one
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "*")]
    controllers: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
    /// Name of this machine's Node [default: the host name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Address of health, metrics and diagnostics; port 0 disables them [default: that of the proxy's configuration, usually 127.0.0.1:10249]
    #[arg(long, value_name = "ADDRESS")]
    metrics_bind_address: Option<SocketAddr>,
    /// Unix socket for weft node status, start, stop and restart
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/weft/node.sock",
        global = true
    )]
    control_socket: PathBuf,
    /// Range of pod addresses, for routes and for a proxy whose configuration has none; two for dual stack
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    cluster_cidr: Vec<IpNet>,
    /// Also route the address blocks of nodes' NodeNetworkConfigs that lie within --cluster-cidr
    #[arg(long)]
    route_blocks: bool,
    #[command(flatten)]
    proxy: ProxyFlags,
    #[command(flatten)]
    addresses: AddressFlags,
    #[command(flatten)]
    kernel: KernelFlags,
}

/// The part proxy.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the part proxy")]
struct ProxyFlags {
    /// Configuration file: a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1)
    #[arg(long, value_name = "FILE")]
    proxy_config: Option<PathBuf>,
    /// Variant of the iptables programs; auto: that of the kubelet's hint chain, else the host's default
    #[arg(long, value_name = "VARIANT", default_value = "auto")]
    iptables_variant: IptablesVariant,
    #[command(flatten)]
    table: TableFlags,
}

/// The part ipam.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the part ipam")]
struct AddressFlags {
    /// Unix socket for the CNI plugin
    #[arg(long, value_name = "PATH", default_value = weft_cni::DEFAULT_SOCKET)]
    socket: PathBuf,
    #[command(flatten)]
    pool: PoolFlags,
}

pub(crate) fn run(arguments: &NodeArguments, shared: SharedArguments) -> anyhow::Result<()> {
    let flags = &arguments.flags;
    if let Some(order) = &arguments.order {
        return order.give(&flags.control_socket);
    }
    let (process, warnings) = flags.process()?;
    let log = shared.start_logging::<LogOnly>()?;
    for warning in warnings {
        warn!("{warning}");
    }
    signals::serve(log, |shutdown| process.run(shutdown))
}

impl NodeFlags {
    fn process(&self) -> Result<(NodeProcess, Vec<String>), ConfigError> {
        let selection = Selection::of_node(&self.controllers)?;
        let node = node_name(self.node_name.as_deref())?;
        let mut warnings = Vec::new();
        let mut pages = Some(SocketAddr::from(([127, 0, 0, 1], METRICS_PORT)));
        let mut proxy = None;
        if selection.includes("proxy") {
            let source = self.proxy_source(&node);
            let (resolved, _) = source.read()?;
            warnings.clone_from(&resolved.warnings);
            pages = resolved.config.metrics;
            proxy = Some(ProxyPart {
                setup: resolved.setup(source.variant.into(), source.table.into()),
                read: Arc::new(move || Ok(source.setup()?)),
            });
        }
        let ipam = selection
            .includes("ipam")
            .then(|| self.addresses.pool.setup(&node, &self.addresses.socket));
        let routes = selection.includes("routes").then(|| self.routes(&node));
        let process = NodeProcess {
            kubeconfig: self.api.kubeconfig.clone(),
            master: self.api.master.clone(),
            pages: self
                .metrics_bind_address
                .or(pages)
                .filter(|address| address.port() != 0),
            control: Some(self.control_socket.clone()),
            proxy,
            ipam: ipam.transpose()?,
            routes: routes.transpose()?,
            version: super::build().to_string(),
            node,
        };
        if process.proxy.is_none() && process.ipam.is_none() && process.routes.is_none() {
            return Err(wrong("controllers", "nothing is left to run"));
        }
        Ok((process, warnings))
    }

    fn proxy_source(&self, node: &str) -> ProxySource {
        let ranges: Vec<String> = self.cluster_cidr.iter().map(IpNet::to_string).collect();
        ProxySource {
            file: self.proxy.proxy_config.clone(),
            variant: self.proxy.iptables_variant,
            table: self.proxy.table,
            node: node.to_owned(),
            cluster_cidr: ranges.join(","),
        }
    }

    fn routes(&self, node: &str) -> Result<RoutesProcess, ConfigError> {
        let missing = "say which range is managed, or leave routes out of --controllers";
        check_ranges(&self.cluster_cidr, missing)?;
        Ok(RoutesProcess {
            table: Table::Kernel {
                settings: self.kernel.netlink(&self.cluster_cidr),
                egress: self.kernel.egress(&self.cluster_cidr),
                node: node.to_owned(),
            },
            settings: RoutesSettings {
                // A node knows its own way to the others and not theirs.
                conditions: ConditionPolicy::Off,
                blocks: self.route_blocks.then(|| self.addresses.pool.objects()),
                ..RoutesSettings::new(self.cluster_cidr.iter().copied())
            },
            namespace: String::new(),
        })
    }
}

/// Reads the proxy's configuration again.
struct ProxySource {
    file: Option<PathBuf>,
    variant: IptablesVariant,
    table: TableFlags,
    node: String,
    cluster_cidr: String,
}

impl ProxySource {
    fn read(&self) -> Result<(Resolved, Option<ConfigFile>), ConfigError> {
        let file = self.file.as_deref().map(read).transpose()?;
        let (file, text) = file.unzip();
        let text = self.file.as_deref().zip(text.as_deref());
        Ok((self.resolve(text)?, file))
    }

    fn resolve(&self, text: Option<(&Path, &str)>) -> Result<Resolved, ConfigError> {
        Resolved::of_file(text, |configuration: &mut KubeProxyConfiguration| {
            configuration.hostname_override.clone_from(&self.node);
            if configuration.cluster_cidr.is_empty() {
                configuration.cluster_cidr.clone_from(&self.cluster_cidr);
            }
        })
    }

    fn setup(&self) -> Result<(ProxySetup, Option<ConfigFile>), ConfigError> {
        let (resolved, file) = self.read()?;
        Ok((resolved.setup(self.variant.into(), self.table.into()), file))
    }
}
