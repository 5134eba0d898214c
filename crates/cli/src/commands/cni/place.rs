//! Files that appear whole, and disappear only if they are ours.

use std::{
    fmt, fs,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;

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

/// Writes a file that is either the old or the new one at every moment. A program that
/// runs this moment goes on with what it was.
pub(super) fn write(path: &Path, content: &[u8], mode: u32) -> anyhow::Result<Placed> {
    if is_same(path, content, mode) {
        return Ok(Placed::Unchanged);
    }
    replace(path, |unfinished| write_synced(unfinished, content, mode))?;
    Ok(Placed::Written)
}

/// Replaces a file by one that `make` makes under another name.
pub(super) fn replace(
    path: &Path,
    make: impl FnOnce(&Path) -> io::Result<()>,
) -> anyhow::Result<()> {
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
    let written = make(&unfinished).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // What stays behind is hidden from runtimes.
        let _ = fs::remove_file(&unfinished);
    }
    written
        .and_then(|()| sync(directory))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Identity and times of a file, by which most changes are noticed without reading it.
pub(super) type Fingerprint = Option<(u64, u64, i64, i64, u32)>;

/// The fingerprint of a file; none if it is not there.
pub(super) fn fingerprint(path: &Path) -> Fingerprint {
    let data = fs::symlink_metadata(path).ok()?;
    Some((
        data.ino(),
        data.size(),
        data.mtime(),
        data.mtime_nsec(),
        data.mode(),
    ))
}

fn is_same(path: &Path, content: &[u8], mode: u32) -> bool {
    let has_mode = |data: fs::Metadata| data.permissions().mode() & 0o7777 == mode;
    fs::symlink_metadata(path).is_ok_and(|data| data.is_file() && has_mode(data))
        && fs::read(path).is_ok_and(|found| found == content)
}

fn write_synced(unfinished: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(unfinished)?;
    file.write_all(content)?;
    // Whatever the process's mask is.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.sync_all()
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
