//! Provider calls of routes and the wait of nodes, compared with upstream's rules.
//!
//! The comparison runs in simulated time: the same seeded traces, without faults, for polling every
//! ten seconds, for a model of upstream's watch mode, and for ours. The rest is measured.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on should panic"
)]

use weft_testkit::bench::Report;

mod process;
mod simulated;

fn main() {
    let mut report = Report::new();
    simulated::measure(&mut report);
    process::measure(&mut report);
    report.finish().unwrap();
}
