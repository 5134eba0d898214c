//! The directory of a playground on the host: marker, lock, and removal of an earlier run's files.
//!
//! The user names it, so it may be any directory. Only one that is new, empty or marked by an earlier
//! run is used, and only files that a playground writes are removed from it, by name. Symbolic links
//! in it are removed, never followed.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, OFlags, flock},
    process::geteuid,
};
use thiserror::Error;

/// Locked by the running playground; its content marks the directory.
const LOCK: &str = "lock";
/// The first line of the marker.
const MAGIC: &str = "weft up: directory of a playground\n";
const KUBECONFIG: &str = "kubeconfig";
const LOGS: &str = "logs";
/// A mount point. Only the playground sees the mount; on the host the directory is empty.
const WORLD: &str = "world";

/// The directory cannot be used. Nothing was changed in it, except with [`Self::System`].
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// The files in it are not ours to remove.
    #[error(
        "cannot use {0}: it is not empty and was not created by weft-lab up: expected a new or empty \
         directory"
    )]
    NotOurs(PathBuf),
    /// A file, or a symbolic link to somewhere else.
    #[error("cannot use {0}: it is not a directory")]
    NotADirectory(PathBuf),
    /// Another user could replace what is written there.
    #[error("cannot use {0}: it belongs to another user")]
    Foreign(PathBuf),
    /// Another user could put a marker or a link there.
    #[error("cannot use {0}: other users may write to it")]
    Shared(PathBuf),
    /// One directory is for one playground.
    #[error("cannot use {0}: another playground is running in it")]
    Running(PathBuf),
    /// A system call failed.
    #[error("cannot use {path}")]
    System {
        /// As given to `weft-lab up`.
        path: PathBuf,
        /// Error on the directory or on a file in it.
        source: io::Error,
    },
}

/// Makes a directory ready for a playground: created, marked, locked, without an earlier run's files.
/// The lock lasts as long as the returned file is open.
pub(crate) fn prepare(directory: &Path) -> Result<File, DirectoryError> {
    let failed = |source| DirectoryError::System {
        path: directory.to_owned(),
        source,
    };
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    // An existing file at this path is an error of its own, found below.
    match builder.create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let metadata = fs::symlink_metadata(directory).map_err(failed)?;
    if !metadata.is_dir() {
        return Err(DirectoryError::NotADirectory(directory.to_owned()));
    }
    check_owner(directory, &metadata)?;
    let logs = directory.join(LOGS);
    if let Ok(metadata) = fs::symlink_metadata(&logs)
        && metadata.is_dir()
    {
        check_owner(&logs, &metadata)?;
    }
    let lock = match marked(directory).map_err(failed)? {
        Some(lock) => lock,
        None if is_empty(directory).map_err(failed)? => mark(directory).map_err(failed)?,
        None => return Err(DirectoryError::NotOurs(directory.to_owned())),
    };
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(DirectoryError::Running(directory.to_owned()));
    }
    remove_leftovers(directory).map_err(failed)?;
    Ok(lock)
}

/// Only this user may write to a directory in which files are written and removed by name.
fn check_owner(directory: &Path, metadata: &fs::Metadata) -> Result<(), DirectoryError> {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    if metadata.uid() != geteuid().as_raw() {
        return Err(DirectoryError::Foreign(directory.to_owned()));
    }
    if metadata.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(DirectoryError::Shared(directory.to_owned()));
    }
    Ok(())
}

/// The marker, if there is one.
fn marked(directory: &Path) -> io::Result<Option<File>> {
    // Opening a FIFO must not wait for its other end.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = File::options()
        .read(true)
        .write(true)
        .custom_flags(flags.bits().cast_signed())
        .open(directory.join(LOCK));
    let Ok(mut file) = opened else {
        // A file that cannot be opened is not a marker.
        return Ok(None);
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut text = [0; MAGIC.len()];
    match file.read_exact(&mut text) {
        Ok(()) => Ok((text == MAGIC.as_bytes()).then_some(file)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_empty(directory: &Path) -> io::Result<bool> {
    Ok(fs::read_dir(directory)?.next().is_none())
}

fn mark(directory: &Path) -> io::Result<File> {
    let mut options = File::options();
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    let mut file = options.open(directory.join(LOCK))?;
    file.write_all(MAGIC.as_bytes())?;
    Ok(file)
}

/// Removes only the files that an earlier run wrote. Its mounts ended with its namespaces.
fn remove_leftovers(directory: &Path) -> io::Result<()> {
    remove_file(&directory.join(KUBECONFIG))?;
    remove_logs(&directory.join(LOGS))?;
    remove_directory(&directory.join(LOGS))?;
    remove_directory(&directory.join(WORLD))
}

fn remove_logs(logs: &Path) -> io::Result<()> {
    if !is_directory(logs)? {
        return Ok(());
    }
    for entry in fs::read_dir(logs)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") && !is_directory(&path)? {
            remove_file(&path)?;
        }
    }
    Ok(())
}

/// True for a directory, false for a link to one.
fn is_directory(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes an empty directory, or a file or link in its place; a directory with files of the user
/// stays.
fn remove_directory(path: &Path) -> io::Result<()> {
    if !is_directory(path)? {
        return remove_file(path);
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != ErrorKind::DirectoryNotEmpty => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, os::unix::fs::symlink};

    use super::*;

    /// Every path below a directory, with the content of files and the targets of links.
    fn content(directory: &Path) -> BTreeMap<PathBuf, String> {
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                all.extend(content(&path));
                all.insert(path, "directory".to_owned());
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                all.insert(path, format!("link to {}", target.display()));
            } else {
                let text = fs::read_to_string(&path).unwrap();
                all.insert(path, text);
            }
        }
        all
    }

    /// A directory as an earlier run leaves it.
    fn used() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        drop(prepare(directory.path()).unwrap());
        fs::write(directory.path().join("kubeconfig"), "old").unwrap();
        fs::create_dir(directory.path().join("logs")).unwrap();
        fs::write(directory.path().join("logs/node-1-proxy.log"), "old").unwrap();
        fs::create_dir(directory.path().join("world")).unwrap();
        directory
    }

    #[test]
    fn a_directory_with_files_of_the_user_is_refused_and_untouched() {
        let precious: [&[(&str, &str)]; 4] = [
            &[("thesis.tex", "years"), ("src/main.rs", "fn main() {}")],
            &[("logs/of-the-user.log", "kept")],
            &[("lock", ""), ("kubeconfig", "of a real cluster")],
            &[("lock", "weft up: directory of another thing\n")],
        ];
        for files in precious {
            let directory = tempfile::tempdir().unwrap();
            for (name, text) in files {
                let path = directory.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            let before = content(directory.path());
            let refused = prepare(directory.path()).unwrap_err();
            assert!(matches!(refused, DirectoryError::NotOurs(_)), "{refused}");
            assert_eq!(content(directory.path()), before);
        }
    }

    #[test]
    fn what_an_earlier_run_left_is_removed_and_files_of_the_user_are_kept() {
        let directory = used();
        let kept = [
            "notes.txt",
            "logs/notes.txt",
            "world/notes.txt",
            "mine/a.log",
        ];
        fs::create_dir(directory.path().join("mine")).unwrap();
        for name in kept {
            fs::write(directory.path().join(name), "mine").unwrap();
        }
        drop(prepare(directory.path()).unwrap());
        for name in kept {
            let text = fs::read_to_string(directory.path().join(name));
            assert_eq!(text.unwrap(), "mine", "{name}");
        }
        for name in ["kubeconfig", "logs/node-1-proxy.log"] {
            assert!(!directory.path().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn only_the_marker_stays_of_an_earlier_run() {
        let directory = used();
        drop(prepare(directory.path()).unwrap());
        let left: Vec<_> = content(directory.path()).into_values().collect();
        assert_eq!(left, [MAGIC]);
    }

    #[test]
    fn symbolic_links_are_removed_and_not_followed() {
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("a.log"), "precious").unwrap();
        let before = content(elsewhere.path());
        let directory = used();
        let inside = |name: &str| directory.path().join(name);
        fs::remove_file(inside("kubeconfig")).unwrap();
        symlink(elsewhere.path().join("a.log"), inside("kubeconfig")).unwrap();
        symlink(elsewhere.path(), inside("logs/linked.log")).unwrap();
        fs::remove_dir(inside("world")).unwrap();
        symlink(elsewhere.path(), inside("world")).unwrap();
        drop(prepare(directory.path()).unwrap());
        assert_eq!(content(directory.path()).len(), 1, "only the marker");
        symlink(elsewhere.path(), inside("logs")).unwrap();
        drop(prepare(directory.path()).unwrap());
        assert_eq!(content(directory.path()).len(), 1, "only the marker");
        assert_eq!(content(elsewhere.path()), before);
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused_and_untouched() {
        use std::os::unix::fs::PermissionsExt as _;
        for (shared, mode) in [("", 0o1777), ("", 0o775), ("logs", 0o777)] {
            let directory = used();
            let path = directory.path().join(shared);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let before = content(directory.path());
            let refused = prepare(directory.path()).unwrap_err();
            assert!(matches!(refused, DirectoryError::Shared(_)), "{refused}");
            assert_eq!(content(directory.path()), before, "{shared} {mode:o}");
        }
    }

    #[test]
    fn a_marker_that_is_a_link_is_not_a_marker() {
        let directory = tempfile::tempdir().unwrap();
        let target = used();
        symlink(target.path().join("lock"), directory.path().join("lock")).unwrap();
        let refused = prepare(directory.path()).unwrap_err();
        assert!(matches!(refused, DirectoryError::NotOurs(_)), "{refused}");
    }

    #[test]
    fn a_new_directory_is_made_for_its_user_alone() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("a/b");
        drop(prepare(&directory).unwrap());
        let mode = fs::metadata(&directory).unwrap().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{mode:o}");
    }

    #[test]
    fn a_file_or_a_link_is_not_a_directory() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("file");
        fs::write(&file, "precious").unwrap();
        let link = parent.path().join("link");
        symlink(parent.path(), &link).unwrap();
        for path in [&file, &link] {
            let refused = prepare(path).unwrap_err();
            assert!(
                matches!(refused, DirectoryError::NotADirectory(_)),
                "{refused}"
            );
        }
        assert_eq!(fs::read_to_string(file).unwrap(), "precious");
    }

    #[test]
    fn two_cannot_share_a_directory() {
        let directory = used();
        fs::write(directory.path().join("kubeconfig"), "of the first").unwrap();
        let first = prepare(directory.path()).unwrap();
        fs::write(directory.path().join("kubeconfig"), "of the first").unwrap();
        let second = prepare(directory.path()).unwrap_err();
        assert!(matches!(second, DirectoryError::Running(_)), "{second}");
        assert!(directory.path().join("kubeconfig").exists());
        drop(first);
        prepare(directory.path()).unwrap();
    }
}
