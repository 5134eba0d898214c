//! A cache as a process, ours or the peer's.

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

/// What is compared: a program and how it is called.
#[derive(Debug, Clone)]
pub(super) struct Arm {
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) arguments: &'static [&'static str],
}

/// One of them, running.
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
            .with_context(|| format!("start {}", arm.program.display()))?;
        let (Some(requests), Some(answers), Some(pid)) =
            (child.stdin.take(), child.stdout.take(), child.id())
        else {
            bail!("{} ended as it began", arm.name);
        };
        Ok(Self {
            name: arm.name,
            pid,
            child,
            requests,
            answers: BufReader::new(answers).lines(),
        })
    }

    /// Gives an order and waits for its answer.
    pub(super) async fn request(&mut self, request: Request) -> anyhow::Result<Answer> {
        let name = self.name;
        self.requests
            .write_all(format!("{request}\n").as_bytes())
            .await
            .with_context(|| format!("{name} takes no orders"))?;
        let line = self.answers.next_line().await?;
        let line = line.with_context(|| format!("{name} gave up at {request}"))?;
        serde_json::from_str(&line)
            .with_context(|| format!("{name} answered {request} by {line:?}"))
    }

    /// How long obeying an order took, as it says itself.
    pub(super) async fn seconds(&mut self, request: Request) -> anyhow::Result<f64> {
        match self.request(request).await? {
            Answer::Seconds(seconds) => Ok(seconds),
            other => bail!("{} answered {request} by {other:?}", self.name),
        }
    }

    /// Objects in its cache.
    pub(super) async fn count(&mut self) -> anyhow::Result<usize> {
        match self.request(Request::Count).await? {
            Answer::Count(count) => Ok(count),
            other => bail!("{} counted {other:?}", self.name),
        }
    }

    /// Its live heap in bytes.
    #[expect(clippy::cast_precision_loss, reason = "figures are approximate")]
    pub(super) async fn heap(&mut self) -> anyhow::Result<f64> {
        match self.request(Request::Heap).await? {
            Answer::Bytes(bytes) => Ok(bytes as f64),
            other => bail!("{} weighed {other:?}", self.name),
        }
    }

    /// Its goroutines or tasks.
    #[expect(clippy::cast_precision_loss, reason = "figures are approximate")]
    pub(super) async fn tasks(&mut self) -> anyhow::Result<f64> {
        match self.request(Request::Tasks).await? {
            Answer::Tasks(tasks) => Ok(tasks as f64),
            other => bail!("{} counted {other:?}", self.name),
        }
    }

    /// Unix time at which it saw the last of so many updates.
    pub(super) async fn last_of(&mut self, updates: u64) -> anyhow::Result<f64> {
        match self.request(Request::Events(updates)).await? {
            Answer::Seen { last, .. } => Ok(last),
            other => bail!("{} saw {other:?}", self.name),
        }
    }

    pub(super) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        Ok(Usage::of(self.pid)?.own.as_secs_f64())
    }

    pub(super) fn anonymous_megabytes(&self) -> anyhow::Result<f64> {
        Ok(usage::anonymous_megabytes(self.pid)?)
    }

    /// Ends it, and says when it did not end well.
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
