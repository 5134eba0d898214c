//! The real programs and ours, side by side in one run.
//!
//! `make conformance` calls this once for each comparison and then for the report. A comparison
//! starts the peers and `weft` as processes, does the same to both, measures both in the same way
//! and writes an [`Outcome`]; the report makes one page and one Markdown file of all of them.

use std::path::PathBuf;

use clap::Parser;

mod outcome;
mod proxy;
mod report;
mod routes;

use outcome::Outcome;

/// Compares weft with the programs it wants to replace.
#[derive(Debug, Parser)]
#[command(name = "weft-conformance")]
enum Command {
    /// Routes at a cloud provider, beside a cloud-controller-manager.
    Routes(routes::Arguments),
    /// Make report.html and report.md of all outcomes in a directory.
    Report {
        /// Where the outcomes are, and where the report goes.
        directory: PathBuf,
    },
    /// Compare service proxies in speed, memory and what packets feel.
    Proxy(proxy::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Routes(arguments) => routes::compare(arguments),
        Command::Report { directory } => report::write(&directory),
        Command::Proxy(arguments) => proxy::run(&arguments),
    }
}
