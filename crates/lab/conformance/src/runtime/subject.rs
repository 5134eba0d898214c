//! A compared cache as a process, controlled through its standard input and output.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, bail};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};
use weft_testkit::usage::{self, Usage};

use super::protocol::{Answer, Request};

/// One side of the comparison: a program with its arguments.
#[derive(Debug, Clone)]
pub(super) struct Arm {
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) arguments: &'static [&'static str],
}

/// A running process of an arm.
pub(super) struct Subject {
    pub(super) name: &'static str,
    pid: u32,
    child: Child,
    requests: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Subject {
    pub(super) fn start(arm: &Arm, kubeconfig: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(&arm.program)
            .args(arm.arguments)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", arm.program.display()))?;
        let (Some(requests), Some(answers), Some(pid)) =
            (child.stdin.take(), child.stdout.take(), child.id())
        else {
            bail!("{} ended right after its start", arm.name);
        };
        Ok(Self {
            name: arm.name,
            pid,
            child,
            requests,
            answers: BufReader::new(answers).lines(),
        })
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn request(&mut self, request: Request) -> anyhow::Result<Answer> {
        let name = self.name;
        self.requests
            .write_all(format!("{request}\n").as_bytes())
            .await
            .with_context(|| format!("cannot send {request} to {name}"))?;
        let line = self.answers.next_line().await?;
        let line = line.with_context(|| format!("{name} ended without answering {request}"))?;
        serde_json::from_str(&line)
            .with_context(|| format!("cannot parse the answer of {name} to {request}: {line:?}"))
    }

    /// Seconds that a request took, as the process measured it.
    pub(super) async fn seconds(&mut self, request: Request) -> anyhow::Result<f64> {
        match self.request(request).await? {
            Answer::Seconds(seconds) => Ok(seconds),
            other => bail!("{} answered {request} with {other:?}", self.name),
        }
    }

    /// Number of objects in its cache.
    pub(super) async fn count(&mut self) -> anyhow::Result<usize> {
        match self.request(Request::Count).await? {
            Answer::Count(count) => Ok(count),
            other => bail!("{} answered with {other:?}: expected a count", self.name),
        }
    }

    /// Its live heap in bytes.
    #[expect(clippy::cast_precision_loss, reason = "figures are approximate")]
    pub(super) async fn heap(&mut self) -> anyhow::Result<f64> {
        match self.request(Request::Heap).await? {
            Answer::Bytes(bytes) => Ok(bytes as f64),
            other => bail!("{} answered with {other:?}: expected bytes", self.name),
        }
    }

    /// Number of its goroutines or tasks.
    #[expect(clippy::cast_precision_loss, reason = "figures are approximate")]
    pub(super) async fn tasks(&mut self) -> anyhow::Result<f64> {
        match self.request(Request::Tasks).await? {
            Answer::Tasks(tasks) => Ok(tasks as f64),
            other => bail!("{} answered with {other:?}: expected a count", self.name),
        }
    }

    /// Waits until it has received `updates` updates. Returns the Unix time of the last, in seconds.
    pub(super) async fn last_of(&mut self, updates: u64) -> anyhow::Result<f64> {
        match self.request(Request::Events(updates)).await? {
            Answer::Seen { last, .. } => Ok(last),
            other => bail!("{} answered with {other:?}: expected updates", self.name),
        }
    }

    pub(super) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        Ok(Usage::of(self.pid)?.own.as_secs_f64())
    }

    pub(super) fn anonymous_megabytes(&self) -> anyhow::Result<f64> {
        Ok(usage::anonymous_megabytes(self.pid)?)
    }

    /// Ends it; fails if it does not exit with 0.
    pub(super) async fn quit(mut self) -> anyhow::Result<()> {
        self.requests
            .write_all(format!("{}\n", Request::Quit).as_bytes())
            .await?;
        let status = self.child.wait().await?;
        if !status.success() {
            bail!("{} ended with {status}", self.name);
        }
        Ok(())
    }
}
