//! One module for each command.

use tracing::debug;
use weft_program::{build::BuildInfo, logging};

use crate::{
    args::{Arguments, Command},
    config::{ApiserverConfig, LabLayer},
};

pub(crate) mod apiserver;
pub(crate) mod playground;
pub(crate) mod testkit;
pub(crate) mod up;

/// Runs the command of a command line.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { shared, command } = arguments;
    match command {
        Command::Up(arguments) => up::run(&arguments, shared),
        Command::Playground(arguments) => playground::run(*arguments, shared),
        Command::Apiserver(arguments) => apiserver::run(*arguments, shared),
        Command::Testkit(arguments) => testkit::run(*arguments, shared),
        Command::Config(arguments) => {
            let layers = shared.load::<LabLayer>()?;
            logging::start(&layers.log());
            debug!(file = ?layers.file(), "configuration resolved");
            arguments.run(&ApiserverConfig::settings(&layers))
        }
        Command::Completions(arguments) => arguments.run::<Arguments>(),
        Command::Version(arguments) => arguments.run(&build()),
    }
}

/// The build of this program.
pub(crate) fn build() -> BuildInfo {
    BuildInfo::of("weft-lab")
}
