//! Cost of the smallest change that `iptables-restore` can make: a lower bound for every proxy that
//! calls it.

use std::{
    io::{Seek as _, Write as _},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use weft_testkit::{bench::median, usage::Usage};

use crate::proxy::figures::milliseconds;

/// Measured changes, each in a chain of its own to which no rule jumps.
const ROUNDS: u32 = 9;

/// Cost of one such change in a table with all rules of a proxy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LowerBound {
    /// Median, in milliseconds.
    pub(crate) took: f64,
    /// Mean, because the kernel counts in steps of 10 ms and only a sum is exact.
    pub(crate) processor_time: Duration,
}

/// Runs `iptables-restore` in the namespace of this thread. Meanwhile no other process may write
/// rules there, and no other child of this process may end.
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

/// A rule with a verdict: without one the kernel does not check the rest of the table.
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
        // A child of the proxy may still hold the lock after the proxy has ended.
        .args(["--noflush", "--wait"])
        .stdin(file)
        .status()
        .with_context(|| format!("cannot start {}", restore.display()))?;
    ensure!(status.success(), "{}: {status}", restore.display());
    Ok(())
}
