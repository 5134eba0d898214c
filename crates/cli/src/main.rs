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

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    exit::report(commands::run(arguments))
}
