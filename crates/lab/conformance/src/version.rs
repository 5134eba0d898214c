//! Versions of the compared programs, as they print them.

use std::{path::Path, process::Command};

use anyhow::{Context as _, ensure};

/// Output of a program that is run with one argument, such as `--version`.
pub(crate) fn output(program: &Path, argument: &str) -> anyhow::Result<String> {
    let output = Command::new(program)
        .arg(argument)
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{} {argument}: {}",
        program.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// First line of that output.
pub(crate) fn first_line(program: &Path, argument: &str) -> anyhow::Result<String> {
    let text = output(program, argument)?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Version and commit of a `weft`.
pub(crate) fn of_weft(program: &Path) -> anyhow::Result<String> {
    Ok(with_commit(&output(program, "version")?))
}

fn with_commit(text: &str) -> String {
    let mut lines = text.lines().map(str::trim);
    let version = lines.next().unwrap_or_default();
    let commit = lines.find_map(|line| line.strip_prefix("commit"));
    match commit.and_then(|commit| commit.trim().get(..12)) {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_commit_is_part_of_the_version() {
        let text =
            "weft 0.1.0\n  commit  53e6a9efafff18bc6d5923d54fb46708366f10c7\n  rustc   1.95.0";
        assert_eq!(with_commit(text), "weft 0.1.0 (53e6a9efafff)");
        assert_eq!(with_commit("weft 0.1.0\n  commit  none"), "weft 0.1.0");
        assert_eq!(with_commit("weft 0.1.0"), "weft 0.1.0");
    }
}
