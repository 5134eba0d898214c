//! The command line of `weft`.

use clap::{Parser, Subcommand};
use weft_program::{
    AFTER_HELP, SharedArguments,
    commands::{CompletionsArguments, ConfigArguments, VersionArguments},
};

use crate::commands::{
    check::CheckArguments, cni::CniArguments, controller::ControllerArguments, ipam::IpamArguments,
    node::NodeArguments, proxy::ProxyArguments, routes::RoutesArguments,
};

/// Kubernetes networking that does only the work that changed.
#[derive(Debug, Parser)]
#[command(name = "weft", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) shared: SharedArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve Services on this node, as kube-proxy's iptables and nftables modes do
    Proxy(Box<ProxyArguments>),
    /// Keep a route for each node's pod CIDRs at a cloud provider
    Routes(Box<RoutesArguments>),
    /// Run the address daemon of this node, which allocates the addresses of pods
    Ipam(Box<IpamArguments>),
    /// Run proxy, address daemon and kernel routes of this node in one process
    Node(Box<NodeArguments>),
    /// Install the CNI plugin weft-cni and its configuration on this node
    Cni(Box<CniArguments>),
    /// Run the controllers of a cluster in one elected process
    Controller(Box<ControllerArguments>),
    /// Test the network of a cluster with probe pods that send requests to one another
    Check(Box<CheckArguments>),
    /// Print the effective configuration and the source of each value
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
    use weft_program::config::{Environment, Layer as _, LogOnly, variables_in_help};

    use super::*;

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
        LogOnly::from_environment(&environment).unwrap();
        drop(environment);
        assert_eq!(variables_in_help(&Arguments::command()), read.into_inner());
    }
}
