//! Runs one program to its end: input from memory, output as it comes, time measured and limited.
//!
//! Input and messages go through files in memory: they have no capacity that could fill up, so the
//! program never blocks on them. Its output, which can be tens of megabytes, is the only pipe and
//! the only thing to wait for: no threads are needed.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    path::Path,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, memfd_create};
use thiserror::Error;

use crate::raw;

mod lines;
mod output;

pub(crate) use lines::Lines;

/// Longest message of a program in an error; the first lines name the cause.
const LONGEST_MESSAGE: usize = 4096;

/// Time that a program took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Wall clock, from before the start to the end.
    pub wall: Duration,
    /// Processor time of the program, user and system together.
    pub cpu: Duration,
}

/// Failure of a program.
#[derive(Debug, Error)]
pub enum CommandError {
    /// It could not be started, or its input could not be prepared.
    #[error("cannot start `{command}`")]
    Start {
        /// Program and arguments.
        command: String,
        /// Error of the system.
        source: io::Error,
    },
    /// It ran, but its end or its output was lost.
    #[error("cannot read the output or status of `{command}`")]
    Follow {
        /// Program and arguments.
        command: String,
        /// Error of the system.
        source: io::Error,
    },
    /// It was killed at the time limit. Its effects until then are unknown.
    #[error("`{command}` was killed: still running after {limit:?}")]
    TimeLimit {
        /// Program and arguments.
        command: String,
        /// The time limit.
        limit: Duration,
    },
    /// Another process held the xtables lock for longer than the lock limit. Nothing was changed; a
    /// later retry is right.
    #[error("`{command}` did not get the xtables lock: {message}")]
    LockBusy {
        /// Program and arguments.
        command: String,
        /// Message of the program.
        message: String,
    },
    /// It ended with another status than success.
    #[error("`{command}` failed ({status}): {message}")]
    Failed {
        /// Program and arguments.
        command: String,
        /// Exit status or signal.
        status: ExitStatus,
        /// Message of the program, in one line.
        message: String,
    },
}

impl CommandError {
    /// Returns whether a retry in a moment is likely to work.
    pub fn is_lock_busy(&self) -> bool {
        matches!(self, Self::LockBusy { .. })
    }

    /// Message of the program, if it failed.
    pub fn message(&self) -> Option<&str> {
        match self {
            Self::LockBusy { message, .. } | Self::Failed { message, .. } => Some(message),
            Self::Start { .. } | Self::Follow { .. } | Self::TimeLimit { .. } => None,
        }
    }
}

/// A program with arguments, environment, input and time limit.
#[derive(Debug)]
pub(crate) struct Invocation<'a> {
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [&'a str],
    pub(crate) environment: &'a [(OsString, OsString)],
    pub(crate) input: &'a [u8],
    pub(crate) limit: Duration,
}

/// Output and cost of a program that succeeded.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) output: Vec<u8>,
    pub(crate) spent: Spent,
}

impl Invocation<'_> {
    /// Runs it and returns its output; any status but success is an error.
    pub(crate) fn run(&self) -> Result<Finished, CommandError> {
        let mut output = Vec::new();
        let spent = self.stream(&mut |block| output.extend_from_slice(block))?;
        Ok(Finished { output, spent })
    }

    /// Runs it and passes its output to `each` in blocks, while it writes. Any status but success
    /// is an error; the blocks passed before it must not be used.
    pub(crate) fn stream(&self, each: &mut dyn FnMut(&[u8])) -> Result<Spent, CommandError> {
        // Before the start: the program may run for a while before `start` returns.
        let started = Instant::now();
        let (child, output, mut errors) = self.start().map_err(|source| {
            let command = self.text();
            CommandError::Start { command, source }
        })?;
        let lost = |source| {
            let command = self.text();
            CommandError::Follow { command, source }
        };
        let mut beginning = Vec::new();
        let mut block = |block: &[u8]| {
            let room = LONGEST_MESSAGE - beginning.len();
            beginning.extend_from_slice(&block[..block.len().min(room)]);
            each(block);
        };
        let (in_time, status, cpu) = follow(child, output, self.limit, &mut block).map_err(lost)?;
        let spent = Spent {
            wall: started.elapsed(),
            cpu,
        };
        if !in_time {
            return Err(CommandError::TimeLimit {
                command: self.text(),
                limit: self.limit,
            });
        }
        if status.success() {
            return Ok(spent);
        }
        let errors = content(&mut errors).map_err(lost)?;
        let message = message_of(&errors).or_else(|| message_of(&beginning));
        Err(self.failure(status, message.unwrap_or_else(|| "no message".to_owned())))
    }

    fn start(&self) -> io::Result<(Child, ChildStdout, File)> {
        let mut input = memory_file("weft-input")?;
        input.write_all(self.input)?;
        input.rewind()?;
        let errors = memory_file("weft-errors")?;
        let mut child = Command::new(self.program)
            .args(self.arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(input))
            .stdout(Stdio::piped())
            .stderr(Stdio::from(errors.try_clone()?))
            .spawn()?;
        let output = child.stdout.take().expect("stdout is piped");
        Ok((child, output, errors))
    }

    fn failure(&self, status: ExitStatus, message: String) -> CommandError {
        let command = self.text();
        if is_lock_message(status, &message) {
            CommandError::LockBusy { command, message }
        } else {
            CommandError::Failed {
                command,
                status,
                message,
            }
        }
    }

    fn text(&self) -> String {
        let arguments = self.arguments.iter().map(OsStr::new);
        [self.program.as_os_str()]
            .into_iter()
            .chain(arguments)
            .map(OsStr::to_string_lossy)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// Status 4 alone is not enough: iptables-nft also ends with it when the kernel refuses a
/// transaction, as in `CHAIN_DEL failed (Device or resource busy)`, which no wait cures.
fn is_lock_message(status: ExitStatus, message: &str) -> bool {
    status.code() == Some(4) && message.contains("xtables lock")
}

/// Reads its output until it ends or the limit passes; then kills it and returns an error.
fn follow(
    mut child: Child,
    output: ChildStdout,
    limit: Duration,
    each: &mut dyn FnMut(&[u8]),
) -> io::Result<(bool, ExitStatus, Duration)> {
    let in_time = output::read(&child, output, limit, each);
    if !matches!(in_time, Ok(true)) {
        child.kill()?;
    }
    let (status, cpu) = raw::wait(child)?;
    Ok((in_time?, status, cpu))
}

fn memory_file(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

fn content(file: &mut File) -> io::Result<Vec<u8>> {
    // Our descriptor and the program's share one file position, which is at the end now.
    let mut bytes = Vec::with_capacity(usize::try_from(file.metadata()?.len()).unwrap_or(0));
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A program's message in one line, without lines that say nothing about the failure.
fn message_of(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let telling = |line: &&str| {
        !line.is_empty() && !line.starts_with("Try `") && !line.starts_with("# Warning:")
    };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(telling).collect();
    let mut message = lines.join("; ");
    if message.len() > LONGEST_MESSAGE {
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
        message.push('…');
    }
    (!message.is_empty()).then_some(message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn run(script: &str, input: &[u8], limit: Duration) -> Result<Finished, CommandError> {
        invocation(&["-c", script], &path(), input, limit).run()
    }

    fn invocation<'a>(
        arguments: &'a [&'a str],
        environment: &'a [(OsString, OsString)],
        input: &'a [u8],
        limit: Duration,
    ) -> Invocation<'a> {
        Invocation {
            program: Path::new("/bin/sh"),
            arguments,
            environment,
            input,
            limit,
        }
    }

    fn path() -> [(OsString, OsString); 1] {
        [("PATH".into(), "/usr/bin:/bin".into())]
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn input_and_output_larger_than_any_pipe_pass_through() {
        let input = vec![b'x'; 8 << 20];
        let finished = run("cat; cat >&2 </dev/null", &input, PATIENCE).unwrap();
        assert_eq!(finished.output.len(), input.len());
    }

    #[test]
    fn output_is_handed_on_while_the_program_runs() {
        let directory = tempfile::tempdir().unwrap();
        let seen = directory.path().join("seen");
        // It does not end before its first line was handled here.
        let script = format!(
            "echo one; until [ -e {0} ]; do sleep 0.01; done; echo two",
            seen.display()
        );
        let arguments = ["-c", &script];
        let mut output = Vec::new();
        invocation(&arguments, &path(), b"", PATIENCE)
            .stream(&mut |block| {
                output.extend_from_slice(block);
                std::fs::write(&seen, "").unwrap();
            })
            .unwrap();
        assert_eq!(output, b"one\ntwo\n");
    }

    #[test]
    fn a_program_that_closes_its_output_is_still_waited_for() {
        let error = run("exec >&-; sleep 0.1; exit 7", b"", PATIENCE).unwrap_err();
        assert!(error.to_string().contains("exit status: 7"), "{error}");
    }

    #[test]
    fn a_descendant_that_keeps_the_output_open_is_not_waited_for() {
        let finished = run("echo word; sleep 600 & echo $!", b"", PATIENCE).unwrap();
        let text = String::from_utf8(finished.output).unwrap();
        let (word, descendant) = text.trim().split_once('\n').unwrap();
        assert_eq!(word, "word");
        assert!(finished.spent.wall < PATIENCE);
        run(&format!("kill {descendant}"), b"", PATIENCE).unwrap();
    }

    #[test]
    fn a_program_that_never_stops_writing_is_killed_too() {
        let error = run("exec yes", b"", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, CommandError::TimeLimit { .. }), "{error}");
    }

    #[test]
    fn a_failure_without_a_message_shows_the_output() {
        let error = run("echo sorry; exit 1", b"", PATIENCE).unwrap_err();
        assert_eq!(error.message(), Some("sorry"));
    }

    #[test]
    fn processor_time_is_the_childs_own() {
        let busy = run(
            "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done",
            b"",
            PATIENCE,
        );
        let busy = busy.unwrap().spent;
        let idle = run("sleep 0.2", b"", PATIENCE).unwrap().spent;
        assert!(busy.cpu > Duration::from_millis(10), "{busy:?}");
        assert!(
            busy.cpu <= busy.wall * 2,
            "one thread cannot use more: {busy:?}"
        );
        assert!(idle.wall >= Duration::from_millis(200), "{idle:?}");
        assert!(idle.cpu < idle.wall / 2, "{idle:?}");
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed() {
        let error = run("exec sleep 600", b"", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, CommandError::TimeLimit { .. }), "{error}");
        assert!(
            error.to_string().contains("/bin/sh -c exec sleep 600"),
            "{error}"
        );
    }

    #[test]
    fn a_failure_names_the_command_and_what_it_said() {
        let error = run("echo one >&2; echo; echo two >&2; exit 3", b"", PATIENCE).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("`/bin/sh -c echo one"), "{text}");
        assert!(
            text.ends_with("failed (exit status: 3): one; two"),
            "{text}"
        );
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let missing = Invocation {
            program: Path::new("/nowhere/iptables"),
            arguments: &["-S"],
            environment: &[],
            input: b"",
            limit: PATIENCE,
        };
        let error = missing.run().unwrap_err();
        assert!(matches!(error, CommandError::Start { .. }));
        assert_eq!(error.to_string(), "cannot start `/nowhere/iptables -S`");
    }

    #[test]
    fn the_environment_is_only_what_was_given() {
        let finished = run("env", b"", PATIENCE).unwrap();
        let text = String::from_utf8(finished.output).unwrap();
        let mut names: Vec<&str> = text.lines().filter_map(|l| l.split('=').next()).collect();
        // Variables that the shell adds by itself.
        names.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name));
        assert_eq!(names, ["PATH"]);
    }

    #[test]
    fn a_busy_kernel_object_is_not_a_busy_lock() {
        let four = ExitStatus::from_raw(4 << 8);
        assert!(is_lock_message(
            four,
            "Another app is currently holding the xtables lock. Stopped waiting after 5s."
        ));
        assert!(!is_lock_message(
            four,
            "line 5: CHAIN_DEL failed (Device or resource busy): chain BAR"
        ));
        assert!(!is_lock_message(
            ExitStatus::from_raw(1 << 8),
            "xtables lock"
        ));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let message = message_of("ä".repeat(LONGEST_MESSAGE).as_bytes()).unwrap();
        assert_eq!(message.len(), LONGEST_MESSAGE + '…'.len_utf8());
    }
}
