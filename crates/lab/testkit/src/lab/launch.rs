//! The outer half of a lab: runs the test binary again inside namespaces.

use std::{
    env, fmt, io,
    io::Read as _,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use thiserror::Error;

use crate::lab::{FINISHED, PRIVILEGE_VARIABLE, Privilege, TEST_VARIABLE, program};

/// Longer than any test should take, shorter than the time limit of a CI job.
const TIME_LIMIT: Duration = Duration::from_mins(5);

pub(crate) struct Launch {
    test: &'static str,
    privilege: Privilege,
}

/// A failed test, with the output of its inner process.
#[derive(Debug)]
pub(crate) struct Failure {
    test: &'static str,
    reason: String,
    output: String,
}

/// The inner process could not be run to its end.
#[derive(Debug, Error)]
enum LaunchError {
    #[error("cannot start the lab: {0}")]
    Start(io::Error),
    #[error("cannot wait for the lab: {0}")]
    Wait(io::Error),
}

impl Launch {
    pub(crate) fn new(test: &'static str, privilege: Privilege) -> Self {
        Self { test, privilege }
    }

    /// Runs the test to its end in the inner process.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if hold_requested() {
            return self.run_interactive();
        }
        let (output, status) = self
            .run_captured()
            .map_err(|error| self.failure(error.to_string(), String::new()))?;
        let finished = output.contains(FINISHED);
        match status {
            None => Err(self.failure(format!("still running after {TIME_LIMIT:?}"), output)),
            Some(status) if !status.success() => Err(self.failure(status.to_string(), output)),
            Some(_) if !finished => {
                Err(self.failure("the inner process did not run the test".to_owned(), output))
            }
            Some(_) => Ok(()),
        }
    }

    /// Runs without a time limit and with output straight to the terminal, for debugging.
    fn run_interactive(&self) -> Result<(), Failure> {
        let status = self.command().and_then(|mut command| command.status());
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.failure(status.to_string(), String::new())),
            Err(error) => Err(self.failure(error.to_string(), String::new())),
        }
    }

    fn run_captured(&self) -> Result<(String, Option<ExitStatus>), LaunchError> {
        let (child, output) = self.spawn().map_err(LaunchError::Start)?;
        wait(child, output).map_err(LaunchError::Wait)
    }

    fn spawn(&self) -> io::Result<(Child, io::PipeReader)> {
        let (reader, writer) = io::pipe()?;
        let mut command = self.command()?;
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        // Returning drops the command and with it our ends of the pipe: the reader sees the end
        // when the last process of the lab is gone.
        Ok((command.spawn()?, reader))
    }

    fn command(&self) -> io::Result<Command> {
        // Should this process be killed, the kernel kills `unshare`, and that its child.
        let mut command = program::command("setpriv");
        command
            .args(["--pdeathsig", "KILL", "unshare"])
            .args(self.privilege.unshare_flags())
            .arg("--")
            .arg(env::current_exe()?)
            .args([
                "--exact",
                self.test,
                "--nocapture",
                "--include-ignored",
                "--test-threads=1",
            ])
            .env(TEST_VARIABLE, self.test)
            .env(PRIVILEGE_VARIABLE, self.privilege.as_str());
        Ok(command)
    }

    fn failure(&self, reason: String, output: String) -> Failure {
        Failure {
            test: self.test,
            reason,
            output,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            test,
            reason,
            output,
        } = self;
        write!(
            f,
            "{test} failed in its lab: {reason}\n--- output of the lab\n{output}---"
        )
    }
}

/// True if a failed lab is to be kept for inspection (`WEFT_LAB_HOLD`).
pub(crate) fn hold_requested() -> bool {
    env::var_os("WEFT_LAB_HOLD").is_some()
}

/// Collects the output until the lab ends. The status is None if the time limit ended it.
fn wait(mut child: Child, mut output: io::PipeReader) -> io::Result<(String, Option<ExitStatus>)> {
    let (sender, receiver) = mpsc::channel();
    let collector = thread::spawn(move || {
        let mut bytes = Vec::new();
        let result = output.read_to_end(&mut bytes);
        // The receiver may have given up; the bytes are returned either way.
        let _ = sender.send(());
        result.map(|_| bytes)
    });
    let in_time = receiver.recv_timeout(TIME_LIMIT).is_ok();
    if !in_time {
        child.kill()?;
    }
    let status = child.wait()?;
    let bytes = collector
        .join()
        .expect("reading into a vector does not panic")?;
    Ok((
        String::from_utf8_lossy(&bytes).into_owned(),
        in_time.then_some(status),
    ))
}
