//! Reads a program's output until the program ends or its time is up.

use std::{
    io::{self, Read as _},
    process::{Child, ChildStdout},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_setfl},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

/// Capacity of a pipe.
const BLOCK: usize = 64 << 10;

/// Passes on a program's output until the program ends. Returns whether it ended within the limit.
///
/// The end of the program counts, not that of its output: it may close its output early, or leave
/// it open in a process that outlives it.
pub(super) fn read(
    child: &Child,
    output: ChildStdout,
    limit: Duration,
    each: &mut dyn FnMut(&[u8]),
) -> io::Result<bool> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    fcntl_setfl(&output, OFlags::NONBLOCK)?;
    let deadline = Instant::now() + limit;
    let mut output = Some(output);
    let mut block = vec![0; BLOCK];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let ended = match &output {
            Some(output) => wait(
                &mut [
                    PollFd::new(&process, PollFlags::IN),
                    PollFd::new(output, PollFlags::IN),
                ],
                left,
            )?,
            None => wait(&mut [PollFd::new(&process, PollFlags::IN)], left)?,
        };
        // The end is checked before reading: everything written before it is in the pipe by now.
        let got = match &mut output {
            Some(output) => take(output, &mut block)?,
            None => Got::End,
        };
        match got {
            Got::Bytes(length) => each(&block[..length]),
            Got::Nothing | Got::End if ended => return Ok(true),
            Got::Nothing => {}
            Got::End => output = None,
        }
        if left.is_zero() {
            return Ok(false);
        }
    }
}

/// Waits for any of these; returns whether the first one was ready.
fn wait(waiting: &mut [PollFd<'_>], longest: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(longest).map_err(io::Error::other)?;
    match poll(waiting, Some(&timeout)) {
        Ok(_) => Ok(!waiting[0].revents().is_empty()),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

enum Got {
    Bytes(usize),
    /// Nothing to read at the moment.
    Nothing,
    /// End of the output.
    End,
}

fn take(output: &mut ChildStdout, block: &mut [u8]) -> io::Result<Got> {
    match output.read(block) {
        Ok(0) => Ok(Got::End),
        Ok(length) => Ok(Got::Bytes(length)),
        Err(error) if is_for_now(&error) => Ok(Got::Nothing),
        Err(error) => Err(error),
    }
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
