//! One module for each command.

use tracing::debug;
use weft_program::{
    build::BuildInfo,
    config::{LogOnly, Settings},
    logging,
};

use crate::args::{Arguments, Command};

pub(crate) mod check;
pub(crate) mod cni;
pub(crate) mod controller;
pub(crate) mod ipam;
mod manager;
pub(crate) mod node;
pub(crate) mod proxy;
pub(crate) mod routes;

/// Runs the command of a command line.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { shared, command } = arguments;
    match command {
        Command::Check(arguments) => check::run(*arguments, shared),
        Command::Cni(arguments) => cni::run(&arguments, shared),
        Command::Routes(arguments) => routes::run(&arguments, shared),
        Command::Controller(arguments) => controller::run(&arguments, shared),
        Command::Ipam(arguments) => ipam::run(&arguments, shared),
        Command::Node(arguments) => node::run(&arguments, shared),
        Command::Proxy(arguments) => proxy::run(&arguments, shared),
        Command::Config(arguments) => {
            let layers = shared.load::<LogOnly>()?;
            logging::start(&layers.log());
            debug!(file = ?layers.file(), "configuration resolved");
            let mut settings = Settings::default();
            layers.log().push(&mut settings);
            arguments.run(&settings)
        }
        Command::Completions(arguments) => arguments.run::<Arguments>(),
        Command::Version(arguments) => arguments.run(&build()),
    }
}

/// The build of this program.
fn build() -> BuildInfo {
    BuildInfo::of("weft")
}
