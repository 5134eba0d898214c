//! `weft controller`: the controllers of a cluster in one elected process.

use clap::Args;

use super::manager::{self, Identity, ManagerFlags, Selection};
use crate::args::SharedArguments;

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
    #[command(flatten)]
    flags: ManagerFlags,
}

pub(crate) fn run(arguments: &ControllerArguments, shared: SharedArguments) -> anyhow::Result<()> {
    let selection = Selection::parse(&arguments.controllers)?;
    let who = Identity {
        manager: "weft-controller",
        lease: "weft-controller",
    };
    manager::run(&arguments.flags, &selection, who, shared)
}
