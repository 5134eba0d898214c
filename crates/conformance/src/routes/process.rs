//! Programs that run beside us until they are dropped.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail};

/// A running program, with its output in a log file.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    pub(super) fn start(
        name: &str,
        directory: &Path,
        command: &mut Command,
    ) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Fails with the end of its log when it does not run any more.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(());
        };
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(10)..].join("\n");
        bail!("{} ended with {status}:\n{end}", self.name);
    }

    /// The processor time that it used so far, in seconds.
    pub(super) fn processor_seconds(&self) -> anyhow::Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))
            .with_context(|| format!("look at {}", self.name))?;
        let ticks = ticks(&stat).context("a line of /proc/…/stat")?;
        // Linux reports times in hundredths of a second whatever its own clock does.
        Ok(ticks / 100.0)
    }

    /// Its memory that is not backed by files, in megabytes.
    pub(super) fn anonymous_megabytes(&self) -> anyhow::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .with_context(|| format!("look at {}", self.name))?;
        let kilobytes = anonymous(&status).context("a line RssAnon")?;
        Ok(kilobytes / 1000.0 * 1.024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fields 14 and 15 of `/proc/<pid>/stat`, together.
fn ticks(stat: &str) -> Option<f64> {
    // The second field is the program's name, in which anything may stand.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11);
    let user: f64 = times.next()?.parse().ok()?;
    let system: f64 = times.next()?.parse().ok()?;
    Some(user + system)
}

fn anonymous(status: &str) -> Option<f64> {
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 120 30 0 0 20 0 1 0 4242 9 9";
        assert_eq!(ticks(stat), Some(150.0));
    }

    #[test]
    fn memory_is_read_with_its_unit() {
        let status = "Name:\tweft\nVmRSS:\t 9000 kB\nRssAnon:\t    5120 kB\nThreads:\t3\n";
        assert_eq!(anonymous(status), Some(5120.0));
    }

    #[test]
    fn a_program_that_ends_is_reported_with_its_last_words() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        let command = command.args(["-c", "echo no such network >&2; exit 3"]);
        let mut process = Process::start("ccm", directory.path(), command).unwrap();
        process.child.wait().unwrap();
        let error = process.check().unwrap_err().to_string();
        assert!(error.contains("no such network"), "{error}");
        assert!(error.starts_with("ccm ended"), "{error}");
    }
}
