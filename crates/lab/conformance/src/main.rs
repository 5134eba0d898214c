//! The real programs and ours, side by side in one run.
//!
//! `make conformance` calls this once for each comparison and then for the report. A comparison
//! starts the peers and `weft` as processes, does the same to both, measures both in the same way
//! and writes an [`Outcome`]; the report makes one page and one Markdown file of all of them.

use std::path::PathBuf;

use clap::Parser;

mod arguments;
mod cache_subject;
mod machine;
mod outcome;
mod proxy;
mod report;
mod routes;
mod runtime;
mod version;

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
    /// Compare the runtime with controller-runtime.
    Runtime(runtime::Arguments),
    /// Be the runtime's side of that comparison, and take orders on standard input.
    #[command(hide = true)]
    CacheSubject(cache_subject::Arguments),
}

// What a cache holds is counted exactly; resident memory would tell what the allocator keeps.
#[global_allocator]
static ALLOCATOR: weft_heap::Counting = weft_heap::Counting;

fn main() -> anyhow::Result<()> {
    // Fails only when there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match Command::parse() {
        Command::Routes(arguments) => routes::compare(arguments),
        Command::Report { directory } => report::write(&directory),
        Command::Proxy(arguments) => proxy::run(&arguments),
        Command::Runtime(arguments) => runtime::run(&arguments),
        Command::CacheSubject(arguments) => cache_subject::run(arguments),
    }
}
