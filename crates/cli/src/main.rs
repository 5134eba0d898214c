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
mod signals;

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    // Once for the process: with two providers to choose from, rustls would choose none.
    let provider = rustls::crypto::ring::default_provider();
    provider
        .install_default()
        .expect("nobody else installs a provider");
    exit::report(commands::run(arguments))
}
