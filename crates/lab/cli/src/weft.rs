//! Finds the program `weft`, checks that it is of the same build as this one, and that the CNI plugin
//! `weft-cni` is beside it.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use weft_program::build::Release;

use crate::commands::build;

/// The path that was given, or the program beside this one.
pub(crate) fn find(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match given {
        Some(path) => std::path::absolute(path).context("cannot resolve --weft")?,
        None => env::current_exe()
            .context("cannot find this program's own path")?
            .with_file_name("weft"),
    };
    let release = release(&path)?;
    let own = build().release();
    ensure!(
        release == own,
        "cannot use {}: it is {release}, and this weft-lab is {own}; build both from one commit, \
         or name another with --weft",
        path.display()
    );
    let plugin = path.with_file_name("weft-cni");
    ensure!(
        plugin.is_file(),
        "cannot find the CNI plugin {}: build the package weft-cni too",
        plugin.display()
    );
    Ok(path)
}

fn release(path: &Path) -> anyhow::Result<Release> {
    let output = Command::new(path)
        .args(["version", "--output=json"])
        .output()
        .with_context(|| {
            format!(
                "cannot run {}: build it, or name it with --weft",
                path.display()
            )
        })?;
    let read = serde_json::from_slice(&output.stdout);
    read.with_context(|| {
        format!(
            "{} is not the program weft: no version in its output",
            path.display()
        )
    })
}
