//! Directories of the checkout.

use std::{
    env, fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde::Serialize;

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}

/// Cargo's target directory, in which tasks leave their files too.
pub(crate) fn target() -> PathBuf {
    let chosen = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(chosen)
}

/// Makes a directory that only its owner can enter: keys and tokens of an administrator go there.
pub(crate) fn create_private(directory: &Path) -> anyhow::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
        .create(directory)
        .with_context(|| format!("create {}", directory.display()))
}

/// Writes what a run found as JSON, and makes the directory for it.
pub(crate) fn write_result(file: &Path, found: &impl Serialize) -> anyhow::Result<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    fs::write(file, serde_json::to_string_pretty(found)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Removes what an earlier run found: an old result must not pass for a new one.
pub(crate) fn remove_result(file: &Path) -> anyhow::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", file.display()))
        }
        _ => Ok(()),
    }
}
