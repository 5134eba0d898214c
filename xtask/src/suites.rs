//! Test programs: built once with the whole workspace, run directly.
//!
//! `cargo test` runs one program after the other, and most of ours wait for processes and kernels
//! for much of their time; and choosing one package would choose other features of its
//! dependencies, and build them all again.

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

use crate::{peers, process::cargo};

/// The test program of one target.
#[derive(Debug, PartialEq)]
pub(crate) struct Suite {
    package: String,
    target: String,
    executable: PathBuf,
    directory: PathBuf,
}

impl Suite {
    /// Such as `weft-proxy-agent it`.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }

    /// The command that runs it as cargo would: in the directory of its package.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.directory);
        command.env("CARGO_MANIFEST_DIR", &self.directory);
        // Where `make peers` puts them is known here alone.
        if let Ok(peers) = peers::directory() {
            command.env("WEFT_PEERS", peers.join("bin"));
        }
        command
    }

    /// True if it has tests with this in their names.
    pub(crate) fn has(&self, name: &str) -> anyhow::Result<bool> {
        let output = self.command().args(["--list", name]).output();
        let output = output.with_context(|| format!("list the tests of {}", self.name()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().any(|line| line.ends_with(": test")))
    }
}

/// Builds every test program of the workspace.
pub(crate) fn build() -> anyhow::Result<Vec<Suite>> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--locked", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo test")?;
    ensure!(output.status.success(), "tests do not build");
    let text = String::from_utf8(output.stdout).context("what cargo says")?;
    let mut suites = read(&text)?;
    // Large programs test much: those that take longest should not begin last.
    suites.sort_by_key(|suite| fs::metadata(&suite.executable).map_or(0, |file| file.len()));
    suites.reverse();
    Ok(suites)
}

/// The integration tests of a package.
pub(crate) fn integration<'a>(suites: &'a [Suite], package: &str) -> anyhow::Result<&'a Suite> {
    suites
        .iter()
        .find(|suite| suite.package == package && suite.target == "it")
        .with_context(|| format!("{package} has no integration tests"))
}

/// Runs them all, several at a time. What a program prints appears when it ends; one that fails
/// stops none of the others.
pub(crate) fn run(suites: Vec<Suite>, lanes: usize, threads: usize) -> anyhow::Result<()> {
    let waiting = Mutex::new(VecDeque::from(suites));
    let failed = Mutex::new(Vec::new());
    let next = || {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.pop_front()
    };
    let lane = || {
        while let Some(suite) = next() {
            if let Err(error) = run_one(&suite, threads) {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.push(format!("{}: {error:#}", suite.name()));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(lane);
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() {
        return Ok(());
    }
    bail!("tests failed in {}", failed.join("; "))
}

fn run_one(suite: &Suite, threads: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut command = suite.command();
    command.env("RUST_TEST_THREADS", threads.to_string());
    let output = command.stdin(Stdio::null()).output().context("start")?;
    let seconds = began.elapsed().as_secs_f64();
    // In one piece: two lanes print.
    let text = format!(
        "{} ({seconds:.1} s)\n{}{}",
        suite.name(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    eprintln!("{}", text.trim_end());
    ensure!(output.status.success(), "{}", output.status);
    Ok(())
}

fn read(messages: &str) -> anyhow::Result<Vec<Suite>> {
    #[derive(Deserialize)]
    struct Message {
        reason: String,
        package_id: Option<String>,
        manifest_path: Option<PathBuf>,
        target: Option<Target>,
        profile: Option<Profile>,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    let mut suites = Vec::new();
    for line in messages.lines() {
        let message: Message = serde_json::from_str(line).context("what cargo says")?;
        let is_test = message.profile.is_some_and(|profile| profile.test);
        let (Some(id), Some(manifest), Some(target), Some(executable)) = (
            message.package_id,
            message.manifest_path,
            message.target,
            message.executable,
        ) else {
            continue;
        };
        // Benchmarks are built as tests too, and have runs of their own.
        let is_bench = target.kind.iter().any(|kind| kind == "bench");
        if message.reason != "compiler-artifact" || !is_test || is_bench {
            continue;
        }
        let directory = manifest.parent().unwrap_or(Path::new("/")).to_owned();
        suites.push(Suite {
            package: package(&id).to_owned(),
            target: target.name,
            executable,
            directory,
        });
    }
    Ok(suites)
}

/// The name in a package id: `path+file:///w/crates/cli#weft@0.1.0`, or `…/xtask#0.1.0` where the
/// directory has the name.
fn package(id: &str) -> &str {
    let (path, fragment) = id.split_once('#').unwrap_or((id, ""));
    match fragment.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_read_from_what_cargo_says() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/proxy/agent#weft-proxy-agent@0.1.0","manifest_path":"/w/crates/proxy/agent/Cargo.toml","target":{"name":"it","kind":["test"]},"profile":{"test":true},"executable":"/t/it-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/cli#weft@0.1.0","manifest_path":"/w/crates/cli/Cargo.toml","target":{"name":"weft","kind":["bin"]},"profile":{"test":false},"executable":"/t/weft"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/cli#weft@0.1.0","manifest_path":"/w/crates/cli/Cargo.toml","target":{"name":"ipam","kind":["bench"]},"profile":{"test":true},"executable":"/t/ipam"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let suites = read(messages).unwrap();
        let names: Vec<String> = suites.iter().map(Suite::name).collect();
        assert_eq!(names, ["weft-proxy-agent it"]);
        assert_eq!(suites[0].directory, Path::new("/w/crates/proxy/agent"));
        assert!(integration(&suites, "weft-proxy-agent").is_ok());
        assert!(integration(&suites, "weft").is_err());
    }

    #[test]
    fn the_name_of_a_package_is_in_its_id() {
        assert_eq!(package("path+file:///w/crates/cli#weft@0.1.0"), "weft");
        assert_eq!(package("path+file:///w/xtask#0.1.0"), "xtask");
    }

    #[test]
    fn one_that_fails_is_named_and_the_others_run() {
        let directory = std::env::temp_dir();
        let suite = |program: &str| Suite {
            package: program.to_owned(),
            target: "it".to_owned(),
            executable: PathBuf::from("/bin").join(program),
            directory: directory.clone(),
        };
        let error = run(vec![suite("false"), suite("true")], 1, 1).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("false it: exit status: 1"), "{text}");
        assert!(!text.contains("true"), "{text}");
    }
}
