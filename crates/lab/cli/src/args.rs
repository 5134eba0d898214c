//! The command line of `weft-lab`.

use clap::{Parser, Subcommand};
use weft_program::{
    AFTER_HELP, SharedArguments,
    commands::{CompletionsArguments, ConfigArguments, VersionArguments},
};

use crate::commands::{
    apiserver::ApiserverArguments, playground::PlaygroundArguments, testkit::TestkitArguments,
    up::UpArguments,
};

/// A cluster network, an API server and cloud doubles for laptops and CI.
#[derive(Debug, Parser)]
#[command(name = "weft-lab", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) shared: SharedArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a cluster network on this machine: the playground
    Up(Box<UpArguments>),
    /// The processes that `weft-lab up` starts
    #[command(hide = true)]
    Playground(Box<PlaygroundArguments>),
    /// Serve the Kubernetes API from memory, for playgrounds and tests
    Apiserver(Box<ApiserverArguments>),
    /// Serve a test double of a cloud's API, to run controllers against
    Testkit(Box<TestkitArguments>),
    /// Print the effective configuration and the source of each value
    Config(ConfigArguments),
    /// Print a completion script for a shell
    Completions(CompletionsArguments),
    /// Print the version and how this program was built
    Version(VersionArguments),
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeSet};

    use clap::CommandFactory as _;
    use weft_program::config::{Environment, Layer as _, variables_in_help};

    use super::*;
    use crate::config::LabLayer;

    #[test]
    fn the_command_line_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_names_exactly_the_variables_that_are_read() {
        let read = RefCell::new(BTreeSet::from(["WEFT_CONFIG".to_owned()]));
        let environment = Environment::new(|name| {
            read.borrow_mut().insert(name.to_owned());
            None
        });
        LabLayer::from_environment(&environment).unwrap();
        drop(environment);
        assert_eq!(variables_in_help(&Arguments::command()), read.into_inner());
    }
}
