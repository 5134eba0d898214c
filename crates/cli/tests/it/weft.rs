//! Runs the program under test.

use std::process::{Command, Output};

/// The program with a clean environment: no setting of the developer's shell leaks in.
pub(crate) fn weft(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(arguments).env_clear();
    command
}

/// What one run left behind.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs to the end.
pub(crate) fn run(command: &mut Command) -> Run {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run {
        code: status.code(),
        stdout: text(stdout),
        stderr: text(stderr),
    }
}
