//! Background processes with pid files: etcd and kube-apiserver.

use std::{
    fmt,
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

/// Time for a program to end after SIGTERM.
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
        let identity = Identity::of(child.id())
            .with_context(|| format!("{} ended before it began", self.name))?;
        fs::write(self.pid_file(), identity.to_string()).context("write the pid file")?;
        Ok(())
    }

    /// The process's number while it lives.
    pub(super) fn pid(&self) -> Option<u32> {
        let known = Identity::parse(&fs::read_to_string(self.pid_file()).ok()?)?;
        (Identity::of(known.pid).as_ref() == Some(&known)).then_some(known.pid)
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
            // Asked again now that the handle pins whatever has the number.
            Ok(process) => Ok((self.pid() == Some(pid)).then_some(process)),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(io::Error::from(error)).context("look at a process"),
        }
    }
}

/// A process, told apart from a later one of the same number by the time of its start.
///
/// The command line would be easier to read but is empty for a moment after the start.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    pid: u32,
    /// In clock ticks since the machine was started.
    started: u64,
}

impl Identity {
    /// Of a living process; a zombie counts as gone.
    fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self {
            pid,
            started: start_time(&stat)?,
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let (pid, started) = text.trim().split_once(' ')?;
        Some(Self {
            pid: pid.parse().ok()?,
            started: started.parse().ok()?,
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}

/// Field 22 of `/proc/<pid>/stat` (proc(5)); nothing for a zombie.
fn start_time(stat: &str) -> Option<u64> {
    // The second field is the program's name, in which anything may stand.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    (state != "Z")
        .then(|| fields.nth(18)?.parse().ok())
        .flatten()
}

fn has_ended(process: &OwnedFd) -> anyhow::Result<bool> {
    let limit = Timespec::try_from(STOP_LIMIT).context("a time limit")?;
    let mut waiting = [PollFd::new(process, PollFlags::IN)];
    Ok(poll(&mut waiting, Some(&limit))? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_start_is_found_behind_any_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 9 9";
        assert_eq!(start_time(stat), Some(4242));
        assert_eq!(start_time(&stat.replace(" S 1", " Z 1")), None);
    }

    #[test]
    fn a_pid_file_means_one_process_and_no_later_one() {
        let ours = Identity::of(std::process::id()).unwrap();
        assert_eq!(Identity::parse(&ours.to_string()).as_ref(), Some(&ours));
        let later = Identity {
            started: ours.started + 1,
            ..ours
        };
        assert_ne!(Identity::of(later.pid), Some(later));
    }

    #[test]
    fn a_daemon_is_found_from_the_moment_it_starts_until_it_is_stopped() {
        let directory = std::env::temp_dir().join(format!("weft-daemon-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        // Often, since a process is hardest to recognise just after its start.
        for _ in 0..200 {
            let daemon = Daemon::new("sleep", &directory);
            daemon.start(Command::new("sleep").arg("60")).unwrap();
            assert!(daemon.pid().is_some(), "started and not found");
            assert!(daemon.stop().unwrap());
            assert_eq!(daemon.pid(), None);
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
