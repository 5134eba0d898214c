//! Version 0.1.0 of Weft, from which a rolling update begins: its programs, images and manifests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::{
    images::{self, Programs, Sources},
    process, workspace,
};

/// The commit of version 0.1.0.
const COMMIT: &str = "9ecddb9af21a50324818e25d989ac5f609d9e690";
/// Tag of its images. Their version is that of this checkout's images.
pub(super) const TAG: &str = "9ecddb9";

/// Manifests and images that are installed before the update.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Former {
    /// Its `deploy/`.
    pub(super) deploy: PathBuf,
    pub(super) images: Vec<PathBuf>,
}

impl Former {
    /// Builds it from the history of this checkout.
    pub(super) fn build(profile: &str) -> anyhow::Result<Self> {
        let target = workspace::target().join("former");
        let root = target.join("source");
        if !root.join("deploy").is_dir() {
            unpack(&root)?;
        }
        let sources = Sources {
            root: root.clone(),
            target: target.clone(),
        };
        let programs = Programs::build_from(&sources, profile)?;
        Ok(Self {
            deploy: root.join("deploy"),
            images: images::weft(&programs, TAG, &target.join("images"))?.into(),
        })
    }
}

/// Writes the files of the commit into a directory that then has all of them.
fn unpack(root: &Path) -> anyhow::Result<()> {
    let known = Command::new("git")
        .current_dir(workspace::root())
        .args(["cat-file", "-e", &format!("{COMMIT}^{{commit}}")])
        .stderr(Stdio::null())
        .status()
        .context("cannot start git")?;
    ensure!(
        known.success(),
        "cannot build version 0.1.0: this clone lacks commit {TAG}; `git fetch --unshallow` gets it"
    );
    let partial = root.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)
            .with_context(|| format!("cannot remove {}", partial.display()))?;
    }
    fs::create_dir_all(&partial).with_context(|| format!("cannot create {}", partial.display()))?;
    let archive = root.with_extension("tar");
    process::run(
        Command::new("git")
            .current_dir(workspace::root())
            .args(["archive", "--output"])
            .arg(&archive)
            .arg(COMMIT),
    )?;
    process::run(
        Command::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(&archive)
            .arg("--directory")
            .arg(&partial),
    )?;
    fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))?;
    fs::rename(&partial, root).with_context(|| format!("cannot create {}", root.display()))
}
