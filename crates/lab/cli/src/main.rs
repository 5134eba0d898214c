//! The program `weft-lab`: a cluster network, an API server and cloud doubles for laptops and CI.
//!
//! It starts the program `weft` for everything that Weft does in a cluster; nothing of it is linked
//! into `weft`.

use std::process::ExitCode;

use clap::Parser as _;

mod args;
mod commands;
mod config;
mod service_ranges;
mod weft;

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    weft_program::run(|| commands::run(arguments))
}
