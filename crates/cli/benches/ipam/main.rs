//! Benchmarks of addresses: the time until pods have theirs, and the cost for node and cluster.
//!
//! Bursts are played in simulated time, sized by pods and by requests side by side. Everything else
//! is measured on the programs themselves, as processes: the daemon, the plugin, the allocator.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on should panic"
)]

use weft_testkit::bench::Report;

mod adds;
mod allocator;
mod bursts;
mod daemon;
mod judge;
mod plugin;
mod process;
mod reach;
mod restart;
mod stage;

fn main() {
    let mut report = Report::new();
    bursts::measure(&mut report);
    adds::measure(&mut report);
    restart::measure(&mut report);
    plugin::measure(&mut report);
    reach::measure(&mut report);
    allocator::measure(&mut report);
    report.finish().unwrap();
}
