//! `weft-conformance`: runs Weft and the programs it replaces under the same load and compares them.
//!
//! `make conformance` calls this once for each comparison and then for the report. A comparison
//! starts the peers and `weft` as processes, applies the same changes to both, measures both in the
//! same way and writes an [`Outcome`]. The report turns all outcomes into one HTML page and one
//! Markdown file.

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

/// Compares weft with the programs it replaces.
#[derive(Debug, Parser)]
#[command(name = "weft-conformance")]
enum Command {
    /// Compare routes at a cloud provider with a cloud-controller-manager.
    Routes(routes::Arguments),
    /// Write report.html and report.md from all outcomes in a directory.
    Report {
        /// Directory of the outcomes, into which the report is written.
        directory: PathBuf,
    },
    /// Compare service proxies: latency, processor time, memory and gaps in traffic.
    Proxy(proxy::Arguments),
    /// Compare the runtime with controller-runtime.
    Runtime(runtime::Arguments),
    /// Run the cache of the runtime comparison, controlled by requests on standard input.
    #[command(hide = true)]
    CacheSubject(cache_subject::Arguments),
}

// Counts the live heap exactly; resident memory would include what the allocator keeps.
#[global_allocator]
static ALLOCATOR: weft_heap::Counting = weft_heap::Counting;

fn main() -> anyhow::Result<()> {
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match Command::parse() {
        Command::Routes(arguments) => routes::compare(arguments),
        Command::Report { directory } => report::write(&directory),
        Command::Proxy(arguments) => proxy::run(&arguments),
        Command::Runtime(arguments) => runtime::run(&arguments),
        Command::CacheSubject(arguments) => cache_subject::run(arguments),
    }
}
