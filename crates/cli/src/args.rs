use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::{
    commands::{
        apiserver::ApiserverArguments, check::CheckArguments, cni::CniArguments,
        completions::CompletionsArguments, config::ConfigArguments,
        controller::ControllerArguments, ipam::IpamArguments, node::NodeArguments,
        playground::PlaygroundArguments, proxy::ProxyArguments, routes::RoutesArguments,
        testkit::TestkitArguments, up::UpArguments, version::VersionArguments,
    },
    config::LogLayer,
};

const AFTER_HELP: &str = "\
Configuration:
  A flag wins over its environment variable, that over the file given with --config, and that
  over the default. `weft config` prints the result and where each value came from.

Exit codes:
  0  done, or stopped cleanly by SIGINT or SIGTERM
  1  failed
  2  the command line, the environment or the configuration file is wrong
  3  ended at once by a second SIGINT or SIGTERM

Signals of long-running commands:
  SIGINT, SIGTERM  stop cleanly
  SIGUSR1          log everything from debug up
  SIGUSR2          log what --log-level says again";

/// Kubernetes networking that does only the work that changed.
#[derive(Debug, Parser)]
#[command(name = "weft", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) shared: SharedArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every verb understands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct SharedArguments {
    /// Read settings from this YAML file [env: WEFT_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) log: LogLayer,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a whole cluster network on this machine, to look at and to play with
    Up(Box<UpArguments>),
    /// Test the network of a cluster with probes that ask one another
    Check(Box<CheckArguments>),
    /// The processes that weft up starts
    #[command(hide = true)]
    Playground(Box<PlaygroundArguments>),
    /// Serve the Kubernetes API from memory, for playground and tests
    Apiserver(Box<ApiserverArguments>),
    /// Serve Services on this node as kube-proxy's iptables mode does
    Proxy(Box<ProxyArguments>),
    /// Serve a test double of a cloud's API, to run controllers against
    Testkit(Box<TestkitArguments>),
    /// Keep routes to the nodes' pods at a cloud provider
    Routes(Box<RoutesArguments>),
    /// Keep the addresses of this node: which pod has which, and how many it asks for
    Ipam(Box<IpamArguments>),
    /// Serve Services, keep addresses and kernel routes of this node in one process
    Node(Box<NodeArguments>),
    /// Put the CNI plugin weft-cni and its configuration on this node
    Cni(Box<CniArguments>),
    /// Run the controllers of a cluster in one elected process
    Controller(Box<ControllerArguments>),
    /// Print the effective configuration and where each value came from
    Config(ConfigArguments),
    /// Print a completion script for a shell
    Completions(CompletionsArguments),
    /// Print the version and how this program was built
    Version(VersionArguments),
}

#[cfg(test)]
mod manifests;

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeSet};

    use clap::CommandFactory as _;

    use super::*;
    use crate::config::{Environment, Layer};

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
        Layer::from_environment(&environment).unwrap();
        drop(environment);
        assert_eq!(variables_in_help(&Arguments::command()), read.into_inner());
    }

    fn variables_in_help(command: &clap::Command) -> BTreeSet<String> {
        let helps = command
            .get_arguments()
            .filter_map(|argument| argument.get_help());
        let named = helps.filter_map(|help| {
            let help = help.to_string();
            let (_, rest) = help.split_once("[env: ")?;
            Some(rest.split_once(']')?.0.to_owned())
        });
        named
            .chain(command.get_subcommands().flat_map(variables_in_help))
            .collect()
    }
}
