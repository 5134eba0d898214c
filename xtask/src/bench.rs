//! Runs every crate's benchmark and prints one table of all figures.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

use crate::{
    process::{self, Progress, cargo},
    request::Request,
    workspace,
};

mod table;

use table::Row;

/// A crate's benchmark.
struct Benchmark {
    target: String,
}

impl Benchmark {
    fn part(&self) -> &str {
        &self.target
    }

    /// True if it belongs to this part: `proxy` and `nftables` both name `proxy-nftables`.
    fn is_of(&self, part: &str) -> bool {
        self.target == part || self.target.split('-').any(|word| word == part)
    }

    fn run(&self, quick: bool, out: &Path) -> anyhow::Result<()> {
        let mut command = build(quick);
        command.args(["--bench", &self.target]);
        command.env("WEFT_BENCH_OUT", out);
        command.env_remove("WEFT_BENCH_QUICK");
        if quick {
            command.env("WEFT_BENCH_QUICK", "1");
        }
        process::run(&mut command)
    }
}

/// The command that builds benchmarks, and runs them unless told otherwise.
fn build(quick: bool) -> Command {
    let mut command = cargo();
    // A quick run shares the debug build with the tests.
    command.arg(if quick { "test" } else { "bench" });
    // With the features of the whole workspace: another choice would build everything again.
    command.args(["--locked", "--quiet", "--workspace"]);
    command
}

/// Builds them all at once: one after the other would leave processors idle.
fn build_all(benchmarks: &[Benchmark], quick: bool) -> anyhow::Result<()> {
    let mut command = build(quick);
    for benchmark in benchmarks {
        command.args(["--bench", &benchmark.target]);
    }
    process::run(command.arg("--no-run"))
}

/// Runs what was asked for; in a full run a missed target is a failure.
pub(crate) fn run(request: &Request) -> anyhow::Result<()> {
    let directory = workspace::target().join("bench");
    fs::create_dir_all(&directory).context("create target/bench")?;
    let benchmarks = chosen(request)?;
    let mut progress = Progress::of(benchmarks.len() + 1);
    progress.step("build", || build_all(&benchmarks, request.quick))?;
    let mut rows: Vec<Row> = Vec::new();
    for benchmark in benchmarks {
        let part = benchmark.part().to_owned();
        let out = directory.join(format!("{part}.json"));
        progress.step(&part, || {
            workspace::remove_result(&out)?;
            benchmark.run(request.quick, &out)?;
            rows.extend(table::read(&part, &out)?);
            Ok(())
        })?;
    }
    if request.quick {
        eprintln!(
            "{} figures were produced; a quick run does not judge them",
            rows.len()
        );
        return Ok(());
    }
    print!("{}", table::Table(&rows));
    let missed: Vec<&str> = rows
        .iter()
        .filter(|row| row.holds == Some(false))
        .map(|row| row.name.as_str())
        .collect();
    ensure!(
        missed.is_empty(),
        "targets that do not hold: {}",
        missed.join(", ")
    );
    Ok(())
}

fn chosen(request: &Request) -> anyhow::Result<Vec<Benchmark>> {
    let mut benchmarks = discover()?;
    let Some(part) = &request.part else {
        return Ok(benchmarks);
    };
    let known: Vec<String> = benchmarks
        .iter()
        .map(|known| known.part().to_owned())
        .collect();
    benchmarks.retain(|benchmark| benchmark.is_of(part));
    if benchmarks.is_empty() {
        bail!(
            "no benchmark called {part}; there are: {}",
            known.join(", ")
        );
    }
    Ok(benchmarks)
}

/// The benchmarks of the workspace: every bench target is a part, and their names differ.
fn discover() -> anyhow::Result<Vec<Benchmark>> {
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--locked"];
    let metadata: Metadata = serde_json::from_str(&process::output(cargo().args(arguments))?)?;
    let mut benchmarks: Vec<Benchmark> = Vec::new();
    let targets = metadata
        .packages
        .into_iter()
        .flat_map(|package| package.targets);
    for target in targets.filter(|target| target.kind.iter().any(|kind| kind == "bench")) {
        let target = target.name;
        let taken = benchmarks.iter().any(|known| known.target == target);
        ensure!(!taken, "two benchmarks are called {target}");
        benchmarks.push(Benchmark { target });
    }
    Ok(benchmarks)
}

/// The part of `cargo metadata` that names benchmarks.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_benchmark_or_all_that_have_it_in_their_names() {
        let chosen = |part: &str| {
            let names = ["ipam", "nftables", "proxy-iptables", "proxy-nftables"];
            let all = names.map(|name| Benchmark {
                target: name.to_owned(),
            });
            let chosen = all.into_iter().filter(|benchmark| benchmark.is_of(part));
            let names: Vec<String> = chosen.map(|benchmark| benchmark.target).collect();
            names.join(" ")
        };
        assert_eq!(chosen("proxy"), "proxy-iptables proxy-nftables");
        assert_eq!(chosen("nftables"), "nftables proxy-nftables");
        assert_eq!(chosen("proxy-nftables"), "proxy-nftables");
        assert_eq!(chosen("ipam"), "ipam");
        assert_eq!(chosen("prox"), "");
    }
}
