//! Child processes that are killed when they are dropped.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail};
use weft_testkit::usage::{self, Usage};

/// A running program with its output in a log file.
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
        let file =
            File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Fails with the end of its log if it has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(());
        };
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(10)..].join("\n");
        bail!("{} ended with {status}:\n{end}", self.name);
    }

    /// Processor time since its start, in seconds.
    pub(super) fn processor_seconds(&self) -> anyhow::Result<f64> {
        let usage = Usage::of(self.child.id())
            .with_context(|| format!("cannot read the usage of {}", self.name))?;
        Ok(usage.own.as_secs_f64())
    }

    /// RssAnon in megabytes.
    pub(super) fn anonymous_megabytes(&self) -> anyhow::Result<f64> {
        usage::anonymous_megabytes(self.child.id())
            .with_context(|| format!("cannot read the usage of {}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ends_is_reported_with_the_end_of_its_log() {
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
