//! What programs say about themselves.

use std::{path::Path, process::Command};

use anyhow::{Context as _, ensure};

/// All that a program prints when it is asked by this argument.
pub(crate) fn said(program: &Path, argument: &str) -> anyhow::Result<String> {
    let output = Command::new(program)
        .arg(argument)
        .output()
        .with_context(|| format!("run {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{} {argument}: {}",
        program.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The first line of it.
pub(crate) fn of(program: &Path, argument: &str) -> anyhow::Result<String> {
    let text = said(program, argument)?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}
