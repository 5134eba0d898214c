//! kubectl as the administrator of the cluster, in node 1's network.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::node::Node;
use crate::process;

/// Longest wait for anything in the cluster.
const LIMIT: Duration = Duration::from_mins(4);

pub(crate) struct Kubectl<'a> {
    pub(super) program: PathBuf,
    pub(super) kubeconfig: PathBuf,
    pub(super) node: &'a Node,
}

impl Kubectl<'_> {
    pub(crate) fn command(&self, words: &[&str]) -> anyhow::Result<Command> {
        let mut command = self.node.in_network(&self.program)?;
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(words);
        Ok(command)
    }

    /// Runs it to its end; what it prints appears in errors only.
    pub(crate) fn run(&self, words: &[&str]) -> anyhow::Result<()> {
        self.output(words).map(drop)
    }

    pub(crate) fn output(&self, words: &[&str]) -> anyhow::Result<String> {
        process::output(&mut self.command(words)?)
    }

    /// Creates or changes an object.
    pub(crate) fn apply(&self, object: &Value) -> anyhow::Result<()> {
        let mut command = self.command(&["apply", "-f", "-"])?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start kubectl")?;
        let mut input = child.stdin.take().context("kubectl has no input")?;
        input
            .write_all(object.to_string().as_bytes())
            .context("cannot write to kubectl")?;
        drop(input);
        let output = child
            .wait_with_output()
            .context("cannot wait for kubectl")?;
        ensure!(
            output.status.success(),
            "cannot apply {} {}: {}",
            object["kind"],
            object["metadata"]["name"],
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
        Ok(())
    }

    pub(crate) fn json(&self, words: &[&str]) -> anyhow::Result<Value> {
        let text = self.output(words)?;
        serde_json::from_str(&text).context("cannot read what kubectl printed")
    }

    /// Waits until something is true; a failed question is asked again.
    pub(crate) fn wait_for(
        what: &str,
        is_true: impl Fn() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        Self::wait_up_to(LIMIT, what, is_true)
    }

    /// As [`Self::wait_for`], with another limit.
    pub(crate) fn wait_up_to(
        limit: Duration,
        what: &str,
        is_true: impl Fn() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let answer = is_true();
            if matches!(answer, Ok(true)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return match answer {
                    Err(error) => Err(error.context(format!("no {what} after {limit:?}"))),
                    Ok(_) => bail!("no {what} after {limit:?}"),
                };
            }
            thread::sleep(Duration::from_millis(200));
        }
    }
}
