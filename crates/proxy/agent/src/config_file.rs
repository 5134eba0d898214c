//! Notices that the configuration file was written or replaced. The process then exits, to be
//! started again with the new one, as kube-proxy does.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use thiserror::Error;

/// Time between two checks of the file.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// A configuration file in the version that was read.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    version: Version,
}

/// A change of the configuration file, which ends the process.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ConfigFileChanged {
    /// It has other content, or was replaced.
    #[error("configuration file {} changed, restart required", .0.display())]
    Written(PathBuf),
    /// It does not exist any more.
    #[error("configuration file {} was removed or renamed", .0.display())]
    Gone(PathBuf),
}

/// The attributes that differ after a file was written or replaced. A link with another target, as
/// in a mounted ConfigMap, counts as a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Version {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

impl ConfigFile {
    /// Reads a file and records its version. The version is taken first, so that a change in
    /// between is noticed later and not missed.
    pub fn read(path: &Path) -> io::Result<(Self, String)> {
        let version = Version::of(path)?;
        let text = fs::read_to_string(path)?;
        let path = path.to_owned();
        Ok((Self { path, version }, text))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Resolves when the file changed or was removed.
    pub async fn changed(self, interval: Duration) -> ConfigFileChanged {
        loop {
            tokio::time::sleep(interval).await;
            match Version::of(&self.path) {
                Ok(version) if version == self.version => {}
                Ok(_) => return ConfigFileChanged::Written(self.path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return ConfigFileChanged::Gone(self.path);
                }
                // The version is unknown, which is not a reason to exit.
                Err(error) => {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "cannot stat the configuration file");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(5);

    #[tokio::test]
    async fn a_file_that_is_written_replaced_or_removed_is_noticed() {
        type Act = fn(&Path);
        type Expected = fn(PathBuf) -> ConfigFileChanged;
        let cases: [(Act, Expected); 3] = [
            (
                |path| fs::write(path, "longer text").unwrap(),
                ConfigFileChanged::Written,
            ),
            (
                |path| {
                    let other = path.with_extension("new");
                    fs::write(&other, "text").unwrap();
                    fs::rename(other, path).unwrap();
                },
                ConfigFileChanged::Written,
            ),
            (
                |path| fs::remove_file(path).unwrap(),
                ConfigFileChanged::Gone,
            ),
        ];
        for (act, expected) in cases {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("config.yaml");
            fs::write(&path, "text").unwrap();
            let (file, text) = ConfigFile::read(&path).unwrap();
            assert_eq!(text, "text");
            act(&path);
            assert_eq!(file.changed(SOON).await, expected(path));
        }
    }

    #[tokio::test]
    async fn a_link_that_moves_on_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["old", "new"] {
            fs::write(at(name), name).unwrap();
        }
        std::os::unix::fs::symlink("old", at("link")).unwrap();
        let (file, _) = ConfigFile::read(&at("link")).unwrap();
        std::os::unix::fs::symlink("new", at("next")).unwrap();
        fs::rename(at("next"), at("link")).unwrap();
        let expected = ConfigFileChanged::Written(at("link"));
        assert_eq!(file.changed(SOON).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_stays_is_left_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (watched, _) = ConfigFile::read(file.path()).unwrap();
        // Reading does not change it.
        fs::read(file.path()).unwrap();
        let changed = watched.changed(INTERVAL);
        let waited = tokio::time::timeout(INTERVAL * 1000, changed).await;
        assert!(waited.is_err(), "{waited:?}");
    }
}
