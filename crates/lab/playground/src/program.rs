//! Programs that are run to their end, with the directories of administrators in `PATH`.

use std::{
    env,
    ffi::OsString,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use thiserror::Error;

/// A program could not be run, or failed.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// It could not be started or waited for.
    #[error("cannot run `{command}`")]
    Start {
        /// The command line.
        command: String,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// Its exit status was not 0.
    #[error("`{command}` failed: {said}")]
    Failed {
        /// The command line.
        command: String,
        /// Its standard error and standard output.
        said: String,
    },
}

/// A command whose `PATH` also has the `sbin` directories, which Debian leaves out for ordinary
/// users.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", search_path());
    command
}

/// Path of a program, if it is installed.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    env::split_paths(&search_path())
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

fn search_path() -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let administrators = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::join_paths(env::split_paths(&path).chain(administrators)).unwrap_or(path)
}

/// Runs a command to its end with this input and returns its standard output.
pub(crate) fn output(command: &mut Command, input: &[u8]) -> Result<Vec<u8>, ProgramError> {
    let name = format!("{command:?}").replace('"', "");
    let started = |source| ProgramError::Start {
        command: name.clone(),
        source,
    };
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(started)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the program does not read its input, its exit status says why.
        let _ = stdin.write_all(input);
    }
    let output = child.wait_with_output().map_err(started)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let mut said = String::from_utf8_lossy(&output.stderr).into_owned();
    said += &String::from_utf8_lossy(&output.stdout);
    Err(ProgramError::Failed {
        command: name,
        said: said.trim().to_owned(),
    })
}

/// Runs `ip` with arguments separated by spaces.
pub(crate) fn ip(arguments: &str) -> Result<(), ProgramError> {
    output(command("ip").args(arguments.split_whitespace()), b"").map(drop)
}

/// Runs a blocking function on the thread pool for blocking work.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
