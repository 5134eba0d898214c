//! The environment of a process: a network namespace and bind mounts.

use std::{path::PathBuf, process::Command};

use crate::program;

/// Bind-mounts pairs of paths up to `--`, then executes the program. `ip netns exec` has made a mount
/// namespace for it.
const ENTER: &str =
    r#"set -e; while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done; shift; exec "$@""#;

/// The environment of a process.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Name of the network namespace.
    pub(crate) namespace: String,
    /// Bind mounts: source and target.
    pub(crate) mounts: Vec<(PathBuf, PathBuf)>,
}

impl Place {
    /// A command that runs a command line there.
    pub(crate) fn command(&self, line: &[String]) -> Command {
        let mut command = program::command("ip");
        command.args(["netns", "exec", &self.namespace, "sh", "-c", ENTER, "sh"]);
        for (from, to) in &self.mounts {
            command.arg(from).arg(to);
        }
        command.arg("--").args(line);
        command
    }
}
