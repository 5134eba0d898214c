//! `cargo xtask up`: builds and starts the playground.

use std::{os::unix::process::CommandExt as _, process::Command};

use anyhow::Context as _;

use crate::{
    process::{self, cargo},
    setup, workspace,
};

const PROFILE: &str = "playground";

/// Installs what is missing, builds the programs and becomes the playground.
pub(crate) fn run() -> anyhow::Result<()> {
    setup::run()?;
    eprintln!("building weft; the first time takes some minutes");
    process::run(cargo().args([
        "build",
        "--profile",
        PROFILE,
        "--locked",
        "--package",
        "weft",
        "--package",
        "weft-lab",
        "--package",
        "weft-cni",
    ]))?;
    let directory = workspace::target().join("up");
    workspace::create_private(&directory)?;
    let mut lab = Command::new(workspace::target().join(PROFILE).join("weft-lab"));
    lab.arg("up").arg("--directory").arg(&directory);
    // Flags of `weft-lab up`: `make up ARGS=--once`.
    let more = std::env::var("ARGS").unwrap_or_default();
    lab.args(more.split_whitespace());
    // In our place, so that Ctrl-C reaches it and its exit code is ours.
    Err(lab.exec()).context("cannot start weft-lab")
}
