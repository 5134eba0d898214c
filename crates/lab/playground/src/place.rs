//! Where a process runs: a network namespace, and a few paths of its own.

use std::{path::PathBuf, process::Command};

use crate::program;

/// Mounts pairs of paths up to `--`, then becomes the program. `ip netns exec` has made a mount
/// namespace for it already.
const ENTER: &str =
    r#"set -e; while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done; shift; exec "$@""#;

/// A place.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The network namespace.
    pub(crate) namespace: String,
    /// What is seen where.
    pub(crate) mounts: Vec<(PathBuf, PathBuf)>,
}

impl Place {
    /// A command that will run there.
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
