//! One module for each verb.

use crate::args::{Arguments, Command};

pub(crate) mod apiserver;
pub(crate) mod check;
pub(crate) mod cni;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod controller;
pub(crate) mod ipam;
mod manager;
pub(crate) mod node;
pub(crate) mod playground;
pub(crate) mod proxy;
pub(crate) mod routes;
pub(crate) mod testkit;
pub(crate) mod up;
pub(crate) mod version;

/// Runs the verb that was asked for.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { shared, command } = arguments;
    match command {
        Command::Apiserver(arguments) => apiserver::run(*arguments, shared),
        Command::Check(arguments) => check::run(*arguments, shared),
        Command::Cni(arguments) => cni::run(&arguments, shared),
        Command::Routes(arguments) => routes::run(&arguments, shared),
        Command::Controller(arguments) => controller::run(&arguments, shared),
        Command::Ipam(arguments) => ipam::run(&arguments, shared),
        Command::Node(arguments) => node::run(&arguments, shared),
        Command::Up(arguments) => up::run(&arguments, shared),
        Command::Playground(arguments) => playground::run(*arguments, shared),
        Command::Proxy(arguments) => proxy::run(&arguments, shared),
        Command::Testkit(arguments) => testkit::run(*arguments, shared),
        Command::Config(arguments) => config::run(&arguments, shared),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Version(arguments) => version::run(&arguments),
    }
}
