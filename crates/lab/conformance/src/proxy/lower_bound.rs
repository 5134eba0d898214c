//! What the smallest change costs that a variant's program can make: nobody who calls it is faster.

use std::{
    io::{Seek as _, Write as _},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use weft_testkit::{bench::median, usage::Usage};

use crate::proxy::samples::milliseconds;

/// Changes that are made, each in a chain of its own that nobody calls.
const ROUNDS: u32 = 9;

/// The cost of one such change, beside all rules of a proxy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LowerBound {
    /// The median, in milliseconds.
    pub(crate) took: f64,
    /// The mean, since the kernel counts in steps of 10 ms and only a sum is exact.
    pub(crate) processor_time: Duration,
}

/// Measures it with an `iptables-restore` in the namespace of this thread. Nobody else may write to
/// the kernel meanwhile, and no other child of ours end.
pub(crate) fn measure(restore: &Path) -> anyhow::Result<LowerBound> {
    let before = time_of_ended_children()?;
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let began = Instant::now();
        feed(restore, &addition(round))?;
        times.push(milliseconds(began.elapsed()));
    }
    let used = time_of_ended_children()?.saturating_sub(before);
    feed(restore, &removal())?;
    Ok(LowerBound {
        took: median(times),
        processor_time: used / ROUNDS,
    })
}

fn time_of_ended_children() -> anyhow::Result<Duration> {
    Ok(Usage::of(std::process::id())?.ended_children)
}

fn chain(round: u32) -> String {
    format!("WEFT-BOUND-{round}")
}

/// A rule with a verdict: without one the kernel would not look at the rest of the table.
fn addition(round: u32) -> String {
    let chain = chain(round);
    format!("*nat\n:{chain} - [0:0]\n-A {chain} -j RETURN\nCOMMIT\n")
}

fn removal() -> String {
    let lines =
        |verb: &'static str| (0..ROUNDS).map(move |round| format!("-{verb} {}", chain(round)));
    let lines: Vec<String> = lines("F").chain(lines("X")).collect();
    format!("*nat\n{}\nCOMMIT\n", lines.join("\n"))
}

fn feed(restore: &Path, input: &str) -> anyhow::Result<()> {
    let mut file = tempfile::tempfile()?;
    file.write_all(input.as_bytes())?;
    file.rewind()?;
    let status = Command::new(restore)
        // Something that a proxy began may still hold the lock when it has ended.
        .args(["--noflush", "--wait"])
        .stdin(file)
        .status()
        .with_context(|| format!("start {}", restore.display()))?;
    ensure!(status.success(), "{}: {status}", restore.display());
    Ok(())
}
