//! The program `weft`: everything that runs on nodes and in the cluster.
//!
//! `args` is the command line, and `commands` holds one file for each command. The playground, the
//! API server and the test doubles are the program `weft-lab`.

use std::process::ExitCode;

use clap::Parser as _;

mod args;
mod commands;
mod process;

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    weft_program::run(|| commands::run(arguments))
}
