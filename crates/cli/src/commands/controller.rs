//! `weft controller`: the controllers of a cluster in one elected process.

use std::net::SocketAddr;

use clap::Args;
use weft_dashboard::Reach;

use super::manager::{self, Identity, ManagerFlags, Selection};
use crate::{args::SharedArguments, config::ConfigError, process::dashboard::Dashboard};

const AFTER_HELP: &str = "\
Several replicas may run; the one that holds the lease works and the others stand by. Each
controller can be watched at /debug/controllers of the diagnostics, and started and stopped over
--control-socket.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ControllerArguments {
    /// Run these controllers: * for route, name for one, -name for all but one; there are route,
    /// ipam and pod-cidr
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "*")]
    controllers: Vec<String>,
    /// Serve a live page of the cluster's network at this address, such as 127.0.0.1:8088; it shows
    /// and changes nothing
    #[arg(long, value_name = "ADDRESS")]
    dashboard: Option<SocketAddr>,
    /// Let others than this machine see the page: it is not encrypted and asks nobody who they are
    #[arg(long, requires = "dashboard")]
    dashboard_allow_remote: bool,
    #[command(flatten)]
    flags: ManagerFlags,
}

impl ControllerArguments {
    fn dashboard(&self) -> Result<Option<Dashboard>, ConfigError> {
        let Some(address) = self.dashboard else {
            return Ok(None);
        };
        let reach = if self.dashboard_allow_remote {
            Reach::Anywhere
        } else {
            Reach::Loopback
        };
        if reach == Reach::Loopback && !address.ip().is_loopback() {
            let reason = "others can reach this address; if they may see the network, add \
                          --dashboard-allow-remote";
            return Err(manager::wrong("dashboard", reason));
        }
        Ok(Some(Dashboard {
            address,
            reach,
            cluster: self.flags.cluster_name().to_owned(),
        }))
    }
}

pub(crate) fn run(arguments: &ControllerArguments, shared: SharedArguments) -> anyhow::Result<()> {
    let selection = Selection::parse(&arguments.controllers)?;
    let who = Identity {
        manager: "weft-controller",
        lease: "weft-controller",
    };
    let dashboard = arguments.dashboard()?;
    manager::run(&arguments.flags, &selection, who, dashboard, shared)
}
