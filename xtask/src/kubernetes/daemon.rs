use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// How long a program may take to end after being asked.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A background process that is found again through its pid file.
pub(super) struct Daemon<'a> {
    name: &'static str,
    directory: &'a Path,
}

impl<'a> Daemon<'a> {
    pub(super) fn new(name: &'static str, directory: &'a Path) -> Self {
        Self { name, directory }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Starts it with its output in a log file.
    pub(super) fn start(&self, command: &mut Command) -> anyhow::Result<()> {
        let log = File::create(self.log()).context("create the log file")?;
        // A group of its own keeps Ctrl-C in the terminal from reaching it.
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        let child = command
            .spawn()
            .with_context(|| format!("start {}", self.name))?;
        fs::write(self.pid_file(), child.id().to_string()).context("write the pid file")?;
        Ok(())
    }

    /// The process's number while it lives.
    pub(super) fn pid(&self) -> Option<u32> {
        let pid: u32 = fs::read_to_string(self.pid_file())
            .ok()?
            .trim()
            .parse()
            .ok()?;
        self.is_ours(pid).then_some(pid)
    }

    /// Ends it, by force if asking does not help; whether it ran.
    pub(super) fn stop(&self) -> anyhow::Result<bool> {
        let Some(pid) = self.pid() else {
            return Ok(false);
        };
        let Some(process) = self.open(pid)? else {
            return Ok(false);
        };
        for signal in [Signal::TERM, Signal::KILL] {
            match pidfd_send_signal(&process, signal) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => (),
                Err(error) => return Err(error).with_context(|| format!("stop {}", self.name)),
            }
            if has_ended(&process)? {
                break;
            }
        }
        fs::remove_file(self.pid_file()).context("remove the pid file")?;
        Ok(true)
    }

    /// The last lines it logged.
    pub(super) fn end_of_log(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    fn log(&self) -> PathBuf {
        self.directory.join(format!("{}.log", self.name))
    }

    fn pid_file(&self) -> PathBuf {
        self.directory.join(format!("{}.pid", self.name))
    }

    /// A handle that cannot come to mean another process when the number is used again.
    fn open(&self, pid: u32) -> anyhow::Result<Option<OwnedFd>> {
        let raw = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .context("a pid out of range")?;
        match pidfd_open(raw, PidfdFlags::empty()) {
            // Checked again now that the handle pins it.
            Ok(process) => Ok(self.is_ours(pid).then_some(process)),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(io::Error::from(error)).context("look at a process"),
        }
    }

    /// Whether a process of that number works in our directory: pid files go stale.
    fn is_ours(&self, pid: u32) -> bool {
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let directory = self.directory.to_string_lossy();
        // A zombie has an empty command line and is not ours any more.
        String::from_utf8_lossy(&command_line).contains(directory.as_ref())
    }
}

fn has_ended(process: &OwnedFd) -> anyhow::Result<bool> {
    let limit = Timespec::try_from(STOP_LIMIT).context("a time limit")?;
    let mut waiting = [PollFd::new(process, PollFlags::IN)];
    Ok(poll(&mut waiting, Some(&limit))? > 0)
}
