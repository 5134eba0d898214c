//! A proxy process: its usage of processor and memory, and its end.

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

/// A proxy that had no children and used no processor time for this long is idle.
const QUIET: Duration = Duration::from_millis(100);

/// Time from SIGTERM until a proxy is killed.
const END: Duration = Duration::from_secs(10);

/// A running proxy; dropping it kills it and its children.
pub(crate) struct Proxy {
    child: Child,
    log: PathBuf,
}

impl Proxy {
    pub(crate) fn start(command: &mut Command, log: PathBuf) -> anyhow::Result<Self> {
        let output =
            File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, log })
    }

    /// Fails with the end of its log if it has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the proxy ended with {status}:\n{}", self.log_tail());
        }
        Ok(())
    }

    /// Last 20 lines of its log.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Processor time of the proxy and of all its children, including those that have ended.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        Ok(self.activity()?.processor_time)
    }

    /// RssAnon of the proxy without its children, in MB.
    pub(crate) fn anonymous_megabytes(&self) -> anyhow::Result<f64> {
        Ok(usage::anonymous_megabytes(self.child.id())?)
    }

    /// Waits until it is idle.
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
                bail!("the proxy is not idle after {limit:?}");
            }
        }
        self.check()
    }

    /// Ends it with SIGTERM, and with SIGKILL if that takes too long.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        if let Ok(pid) = i32::try_from(self.child.id())
            && let Some(pid) = Pid::from_raw(pid)
        {
            kill_process(pid, Signal::TERM)?;
        }
        let deadline = Instant::now() + END;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                // Dropping it kills it.
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
        // The proxy and its children may have ended already.
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

/// All descendants of a process. The private PID namespace keeps the list short.
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
