//! Exit codes, and the one place that prints errors.

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use crate::config::ConfigError;

/// The codes that `weft --help` documents; clap itself exits with 2 on a wrong command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    Success = 0,
    Failure = 1,
    Usage = 2,
}

/// The code after a second request to stop.
pub(crate) const FORCED: i32 = 3;

/// Prints a failure once, as a chain of causes, and chooses the exit code.
pub(crate) fn report(outcome: anyhow::Result<()>) -> ExitCode {
    let exit = Exit::of(&outcome);
    if let (Err(error), true) = (outcome, exit != Exit::Success) {
        // With stderr closed there is nowhere to report it.
        let _ = write!(io::stderr(), "{}", Chain(&error));
    }
    ExitCode::from(exit as u8)
}

impl Exit {
    fn of(outcome: &anyhow::Result<()>) -> Self {
        match outcome {
            Ok(()) => Self::Success,
            // The reader of our output has seen enough (`weft config | head -1`).
            Err(error) if is_broken_pipe(error) => Self::Success,
            Err(error) if error.is::<ConfigError>() => Self::Usage,
            Err(_) => Self::Failure,
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// An error and its causes, a line each.
struct Chain<'a>(&'a anyhow::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error: {}", self.0)?;
        for cause in self.0.chain().skip(1) {
            writeln!(f, "  cause: {cause}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::*;

    #[test]
    fn every_cause_is_printed_once_in_order() {
        let error = anyhow!("range is full")
            .context("allocate")
            .context("start pod");
        let text = Chain(&error).to_string();
        assert_eq!(
            text,
            "error: start pod\n  cause: allocate\n  cause: range is full\n"
        );
    }

    #[test]
    fn a_broken_pipe_below_context_is_recognised() {
        let written = |kind| Err(io::Error::from(kind)).context("cannot write to stdout");
        assert_eq!(Exit::of(&written(io::ErrorKind::BrokenPipe)), Exit::Success);
        assert_eq!(
            Exit::of(&written(io::ErrorKind::StorageFull)),
            Exit::Failure
        );
    }
}
