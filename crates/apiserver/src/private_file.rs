//! Atomic writes of files that only their owner may read.

use std::{fs, io, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path};

/// Writes a file that only its owner may read, also in place of a file with another mode.
///
/// The text is synced before the rename: a crash leaves the old file or the new one.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    // Left behind by an earlier process with the same ID.
    let _ = fs::remove_file(&temporary);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}
