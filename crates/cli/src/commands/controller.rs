//! `weft controller`: the controllers of a cluster in one elected process.

use std::net::SocketAddr;

use clap::Args;
use weft_dashboard::Reach;

use super::manager::{self, Identity, ManagerFlags, Selection};
use weft_program::{SharedArguments, config::ConfigError};

use crate::process::dashboard::Dashboard;

const AFTER_HELP: &str = "\
Several replicas may run; the one that holds the lease works and the others are on standby. The page
/debug/controllers of the diagnostics shows the state of each controller; --control-socket starts
and stops them.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ControllerArguments {
    /// Controllers to run: route, ipam, pod-cidr. '*' means the defaults (route); '-name' disables one
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "*")]
    controllers: Vec<String>,
    /// Address of a read-only live page of the cluster's network, such as 127.0.0.1:8088
    #[arg(long, value_name = "ADDRESS")]
    dashboard: Option<SocketAddr>,
    /// Allow --dashboard on a non-loopback address (no TLS, no authentication)
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
            let reason = "is not a loopback address; --dashboard-allow-remote allows it (no TLS, no \
                          authentication)";
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
