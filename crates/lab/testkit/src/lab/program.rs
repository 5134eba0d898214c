//! Programs that a lab runs to their end, with the directories of administrators in `PATH`.

use std::{env, ffi::OsString, path::PathBuf, process::Command};

/// A command whose `PATH` also has the `sbin` directories, which Debian leaves out for ordinary
/// users.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", search_path());
    command
}

/// Runs `ip` with arguments separated by spaces.
pub(crate) fn ip(arguments: &str) -> String {
    output(command("ip").args(arguments.split_whitespace()))
}

/// Runs a command to its end and returns its stdout.
pub(crate) fn output(command: &mut Command) -> String {
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => panic!("cannot start {command:?}: {error}"),
    };
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Looks for a program in the search path.
pub(crate) fn exists(program: &str) -> bool {
    env::split_paths(&search_path()).any(|directory| directory.join(program).is_file())
}

fn search_path() -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let administrators = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::join_paths(env::split_paths(&path).chain(administrators)).unwrap_or(path)
}
