//! The checks that a change must pass, in the order in which they fail fastest.

use anyhow::ensure;

use crate::{
    bench,
    process::{self, Progress, cargo},
    request::Request,
    setup, suites,
};

/// The checks that every change must pass.
pub(crate) fn test() -> anyhow::Result<()> {
    let mut progress = Progress::of(7);
    progress.step("set-up", || {
        setup::run()?;
        components()
    })?;
    progress.step("format", format)?;
    progress.step("clippy", clippy)?;
    progress.step("documentation", || {
        let mut doc = cargo();
        doc.args(["doc", "--workspace", "--no-deps", "--locked"]);
        process::run(doc.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    let mut built = Vec::new();
    progress.step("build of the tests", || {
        built = suites::build()?;
        Ok(())
    })?;
    progress.step("tests", || {
        suites::run(built, LANES, test_threads())?;
        process::run(cargo().args(["test", "--workspace", "--doc", "--locked", "--quiet"]))
    })?;
    progress.step("benchmarks, quick", || bench::run(&Request::quick()))?;
    progress.finish("all checks passed");
    Ok(())
}

/// Most tests that take long wait for processes and kernels, not for processors: so several test
/// programs run at once, and each runs more tests at once than there are processors.
const LANES: usize = 2;

fn test_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors + 1
}

/// The end-to-end runs that take minutes, one after the other: each has the machine for itself.
pub(crate) fn endurance() -> anyhow::Result<()> {
    setup::run()?;
    let built = suites::build()?;
    let mut tests = suites::integration(&built, "weft-lab")?.command();
    process::run(tests.args(["--ignored", "--test-threads=1", "up::"]))
}

/// The checks that need no test run.
pub(crate) fn lint() -> anyhow::Result<()> {
    components()?;
    let mut progress = Progress::of(2);
    progress.step("format", format)?;
    progress.step("clippy", clippy)
}

fn format() -> anyhow::Result<()> {
    process::run(cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> anyhow::Result<()> {
    let arguments = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    process::run(cargo().args(arguments))
}

/// Minimal Rust installations lack the two.
fn components() -> anyhow::Result<()> {
    for (component, subcommand) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        ensure!(
            process::succeeds(cargo().args([subcommand, "--version"])),
            "cargo {subcommand} is missing; `rustup component add {component}` installs it"
        );
    }
    Ok(())
}
