//! A running proxy: what it costs, and its end.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use weft_testkit::usage::{self, Usage};

/// A proxy without children that used no processor for this long has nothing to do.
const QUIET: Duration = Duration::from_millis(100);

/// A proxy that is told to end does so within this time.
const END: Duration = Duration::from_secs(10);

/// A proxy that ends with its measurement.
pub(crate) struct Proxy {
    child: Child,
    log: PathBuf,
}

impl Proxy {
    pub(crate) fn start(command: &mut Command, log: PathBuf) -> anyhow::Result<Self> {
        let output = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        Ok(Self { child, log })
    }

    /// Fails when it has ended, with what it said last.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the proxy ended by itself, {status}:\n{}", self.log_tail());
        }
        Ok(())
    }

    /// The end of its log.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Processor time of it and of all its children, those that have ended and those that have not.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        Ok(self.activity()?.processor_time)
    }

    /// Memory that is not backed by files, without its children.
    pub(crate) fn anonymous_megabytes(&self) -> anyhow::Result<f64> {
        Ok(usage::anonymous_megabytes(self.child.id())?)
    }

    /// Waits until it has nothing to do.
    pub(crate) fn wait_until_quiet(&mut self, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        let mut last = self.activity()?;
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            thread::sleep(QUIET / 10);
            let now = self.activity()?;
            if now != last || now.has_children {
                (last, since) = (now, Instant::now());
            }
            if Instant::now() > deadline {
                self.check()?;
                bail!("the proxy is still at work after {limit:?}");
            }
        }
        self.check()
    }

    /// Ends it, politely first.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        if let Ok(pid) = i32::try_from(self.child.id())
            && let Some(pid) = Pid::from_raw(pid)
        {
            kill_process(pid, Signal::TERM)?;
        }
        let deadline = Instant::now() + END;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                // Whatever it is at, dropping it ends it.
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn activity(&self) -> anyhow::Result<Activity> {
        let own = Usage::of(self.child.id())?;
        let children = descendants(self.child.id())?;
        let all = children.iter().chain([&own]);
        Ok(Activity {
            processor_time: all.map(|usage| usage.own + usage.ended_children).sum(),
            has_children: !children.is_empty(),
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let children = descendants(self.child.id()).unwrap_or_default();
        // It may have ended by itself, and so may they.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for child in children {
            if let Some(pid) = i32::try_from(child.process).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Activity {
    processor_time: Duration,
    has_children: bool,
}

/// Processes that a process started, and those that these started. A process namespace of our own
/// keeps the list short.
fn descendants(process: u32) -> anyhow::Result<Vec<Usage>> {
    let mut all = Usage::of_all()?;
    let mut family = vec![process];
    let mut found = Vec::new();
    while let Some(parent) = family.pop() {
        let (children, rest): (Vec<Usage>, Vec<Usage>) =
            all.into_iter().partition(|usage| usage.parent == parent);
        family.extend(children.iter().map(|child| child.process));
        found.extend(children);
        all = rest;
    }
    Ok(found)
}
