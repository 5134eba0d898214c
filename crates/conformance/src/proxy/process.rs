//! A running proxy: what it costs, and its end.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

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
            bail!(
                "the proxy ended by itself, {status}:\n{}",
                self.last_words()
            );
        }
        Ok(())
    }

    /// The end of its log.
    pub(crate) fn last_words(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Processor time of it and of all its children, those that have ended and those that have not.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        Ok(self.usage()?.processor_time)
    }

    /// Anonymous resident memory in MB, without its children.
    pub(crate) fn anonymous_memory(&self) -> anyhow::Result<f64> {
        let file = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        anonymous_memory(&status).with_context(|| format!("no RssAnon in {file}"))
    }

    /// Waits until it has nothing to do.
    pub(crate) fn wait_until_quiet(&mut self, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        let mut last = self.usage()?;
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            thread::sleep(QUIET / 10);
            let now = self.usage()?;
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

    fn usage(&self) -> anyhow::Result<Usage> {
        let pid = self.child.id();
        let file = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        let own = Stat::parse(&text).with_context(|| format!("what {file} says"))?;
        let children: Vec<u64> = descendants(pid).map(|stat| stat.ticks).collect();
        let ticks = own.ticks + children.iter().sum::<u64>();
        Ok(Usage {
            processor_time: time(ticks),
            has_children: !children.is_empty(),
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let children: Vec<Stat> = descendants(self.child.id()).collect();
        // It may have ended by itself, and so may they.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for child in children {
            if let Some(pid) = i32::try_from(child.pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Usage {
    processor_time: Duration,
    has_children: bool,
}

/// Processor time of all children of this process that have ended, and of theirs.
pub(crate) fn time_of_ended_children() -> anyhow::Result<Duration> {
    let text = fs::read_to_string("/proc/self/stat").context("read /proc/self/stat")?;
    let own = Stat::parse(&text).context("what /proc/self/stat says")?;
    Ok(time(own.ticks_of_children))
}

fn time(ticks: u64) -> Duration {
    Duration::from_secs(ticks) / clock_ticks_per_second()
}

/// The part of `/proc/PID/stat` that is of interest.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    pid: u32,
    parent: u32,
    /// Processor time of the process and of its children that have ended.
    ticks: u64,
    /// The part of these children.
    ticks_of_children: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        let pid = text.split_whitespace().next()?.parse().ok()?;
        // The name may hold blanks and parentheses.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = fields.get(11..15)?;
        let sum = |ticks: &[&str]| ticks.iter().filter_map(|t| t.parse::<u64>().ok()).sum();
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            ticks: sum(ticks),
            ticks_of_children: sum(&ticks[2..]),
        })
    }
}

/// Processes that a process started, and those that these started. A process namespace of our own
/// keeps the list short.
fn descendants(pid: u32) -> impl Iterator<Item = Stat> {
    let mut all: Vec<Stat> = processes(Path::new("/proc"));
    let mut family = vec![pid];
    let mut found = Vec::new();
    while let Some(parent) = family.pop() {
        let (children, rest): (Vec<Stat>, Vec<Stat>) =
            all.into_iter().partition(|stat| stat.parent == parent);
        family.extend(children.iter().map(|stat| stat.pid));
        found.extend(children);
        all = rest;
    }
    found.into_iter()
}

fn processes(proc: &Path) -> Vec<Stat> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            let name = entry.file_name();
            name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
        })
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
        .filter_map(|text| Stat::parse(&text))
        .collect()
}

fn anonymous_memory(status: &str) -> Option<f64> {
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    let kibibytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1.024 / 1000.0)
}

fn clock_ticks_per_second() -> u32 {
    u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_any_name() {
        let text = "17 (a b) c) S 4 17 17 0 -1 4194560 1 2 0 0 100 20 3 4 20 0 9 0 53 1 2 3\n";
        let expected = Stat {
            pid: 17,
            parent: 4,
            ticks: 127,
            ticks_of_children: 7,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("17 (a) S 4"), None);
    }

    #[test]
    fn memory_is_the_anonymous_part() {
        let status = "Name:\tweft\nVmRSS:\t  90000 kB\nRssAnon:\t   51200 kB\nRssFile:\t 1 kB\n";
        assert_eq!(anonymous_memory(status), Some(50.0));
        assert_eq!(anonymous_memory("Name:\tkthreadd\n"), None);
    }
}
