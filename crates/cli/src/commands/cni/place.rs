//! Files that appear whole, and disappear only if they are ours.

use std::{
    fmt, fs,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use serde_json::Value;
use weft_cni::PLUGIN;

/// The outcome of writing a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placed {
    Written,
    Unchanged,
    Removed,
    Absent,
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Written => "written",
            Self::Unchanged => "unchanged",
            Self::Removed => "removed",
            Self::Absent => "not there",
        })
    }
}

/// Copies a program to its place.
pub(super) fn copy_program(from: &Path, to: &Path) -> anyhow::Result<Placed> {
    let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    write(to, &content, 0o755)
}

/// Writes a file that is either the old or the new one at every moment. A program that
/// runs this moment goes on with what it was.
pub(super) fn write(path: &Path, content: &[u8], mode: u32) -> anyhow::Result<Placed> {
    if is_same(path, content, mode) {
        return Ok(Placed::Unchanged);
    }
    let directory = path.parent().context("a file in no directory")?;
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let name = path.file_name().context("a file without a name")?;
    // Hidden and without the ending that runtimes look for.
    let unfinished = directory.join(format!(
        ".{}.{}",
        name.to_string_lossy(),
        std::process::id()
    ));
    let written = write_and_rename(&unfinished, path, content, mode);
    if written.is_err() {
        // What stays behind is hidden from runtimes.
        let _ = fs::remove_file(&unfinished);
    }
    written
        .and_then(|()| sync(directory))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Placed::Written)
}

fn is_same(path: &Path, content: &[u8], mode: u32) -> bool {
    let has_mode = |data: fs::Metadata| data.permissions().mode() & 0o7777 == mode;
    fs::symlink_metadata(path).is_ok_and(|data| data.is_file() && has_mode(data))
        && fs::read(path).is_ok_and(|found| found == content)
}

fn write_and_rename(unfinished: &Path, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(unfinished)?;
    file.write_all(content)?;
    // Whatever the process's mask is.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.sync_all()?;
    fs::rename(unfinished, path)
}

/// Removes a file; one that is not there is fine.
pub(super) fn remove(path: &Path) -> anyhow::Result<Placed> {
    match fs::remove_file(path) {
        Ok(()) => {
            let directory = path.parent().context("a file in no directory")?;
            sync(directory).with_context(|| format!("cannot remove {}", path.display()))?;
            Ok(Placed::Removed)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Placed::Absent),
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", path.display())),
    }
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Refuses a configuration that names other plugins only: it belongs to another installation.
pub(super) fn check_ours(path: &Path) -> anyhow::Result<()> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let config: Value = serde_json::from_slice(&text).unwrap_or_default();
    let plugins = config["plugins"].as_array().map(Vec::as_slice);
    let is_ours = |plugin: &Value| plugin["ipam"]["type"] == PLUGIN;
    if !plugins.unwrap_or_default().iter().any(is_ours) {
        bail!("{} is not ours: it does not name {PLUGIN}", path.display());
    }
    Ok(())
}

/// The configuration that runtimes prefer to this one.
pub(super) fn sorts_before(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    let directory = path.parent().context("a file in no directory")?;
    let entries = fs::read_dir(directory)
        .and_then(Iterator::collect::<io::Result<Vec<_>>>)
        .with_context(|| format!("cannot list {}", directory.display()))?;
    let is_config = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        matches!(ending, Some("conf" | "conflist" | "json"))
    };
    let paths = entries.into_iter().map(|entry| entry.path());
    Ok(paths
        .filter(is_config)
        .min()
        .filter(|first| first < &path.to_owned()))
}
