//! The program `weft`: arguments in, exit code out.
//!
//! `args` is what was typed, `config` what it means together with environment and file, and
//! `commands` holds one file for each verb.

use std::process::ExitCode;

use clap::Parser as _;

mod args;
mod build;
mod commands;
mod config;
mod exit;
mod logging;
mod output;
mod process;
mod signals;

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    // Once for the process: with two providers to choose from, rustls would choose none.
    let provider = rustls::crypto::ring::default_provider();
    provider
        .install_default()
        .expect("nobody else installs a provider");
    // Listeners, watches and health checks of Services need more than the default of 1,024. Without
    // the right to raise it, each listener takes its share of what there is.
    let _ = weft_listener::raise_descriptor_limit();
    exit::report(commands::run(arguments))
}
