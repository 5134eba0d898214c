//! On-disk queue of releases that could not be delivered to the daemon.
//!
//! The daemon may itself be a pod that cannot start before another one is deleted, so a DEL must
//! not fail because the daemon is down. The plugin queues the release, durably before it reports
//! success. The next call of the plugin replays it, or the daemon does, before it serves its first
//! ADD.
//!
//! # Format, version 1
//! A directory (0700) with a file (0600) for each release, `<20 digits>-<16 hex digits>.json`: a
//! sequence number and a hash of the key. Content: `{"version":1,"request":{...}}` with the body of
//! `/network/releaseipconfigs`. Files appear by rename, so they are complete. Hidden files are
//! being written. `*.unreadable` were put aside: not a regular file, too long, not a release, or a
//! release without a container, which every daemon refuses.
//! Files of a newer version are left alone.
//!
//! # Concurrency
//! Any process may add at any time. Only the holder of the lock (`flock` of the directory) removes,
//! and it holds the lock from before it reads a file until the daemon has released the addresses.
//! So no release is replayed twice, and an ADD that finds its key absent can be sure that no replay
//! of it is under way.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use weft_cns::IpConfigsRequest;

use crate::regular;

/// Version that is written.
const VERSION: u32 = 1;
/// Maximum number of queued releases: many times the number of pods of a node, and too few to fill
/// a disk.
const MOST: usize = 4096;
/// Maximum size of a release in bytes.
const LONGEST: u64 = 64 << 10;
/// Age after which an unfinished file was left behind by a crash.
const STALE: Duration = Duration::from_secs(3600);

/// An operation of the queue failed.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// A file operation failed.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// Verb for the message, such as `open`.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The queue is full: it was not replayed for a long time.
    #[error("cannot queue the release: {most} releases are queued already")]
    Full {
        /// Maximum number of queued releases.
        most: usize,
    },
}

/// A queue on disk.
#[derive(Clone, Debug)]
pub struct Queue {
    directory: PathBuf,
}

/// The right to remove from a queue, until it is dropped.
#[derive(Debug)]
pub struct QueueGuard {
    queue: Queue,
    /// Open with the lock held.
    directory: File,
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        // Closing is not enough: a process that another thread is just spawning has the file open
        // too, until it executes. If unlocking fails, closing releases the lock a little later.
        let _ = flock(&self.directory, FlockOperation::Unlock);
    }
}

/// A queued release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRelease {
    /// The request to send to the daemon.
    pub request: IpConfigsRequest,
    name: String,
}

/// Contents of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Queued releases, oldest first.
    pub releases: Vec<QueuedRelease>,
    /// Entries with the name of a release that cannot be read as one.
    pub unreadable: Vec<Unreadable>,
}

/// An entry of the queue that cannot be read as a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its current path: put aside, or unchanged if it could not be moved or may be readable later.
    pub path: PathBuf,
    /// The read error, and the error of moving it if that failed too.
    pub reason: String,
}

/// Outcome of replaying one release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replay {
    /// The daemon released it.
    Done,
    /// The daemon refused it; the entry stays.
    Keep,
    /// The daemon cannot be reached; the replay ends.
    Stop,
}

/// Outcome of replaying a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Number of releases replayed.
    pub released: usize,
    /// Number of releases still queued.
    pub left: usize,
    /// Number of entries that cannot be read as a release.
    pub unreadable: usize,
}

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    request: IpConfigsRequest,
}

impl Queue {
    /// A queue in a directory that need not exist yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// True if no release is queued.
    pub fn is_empty(&self) -> Result<bool, QueueError> {
        Ok(self.names()?.is_empty())
    }

    /// True if a release of this key is queued.
    pub fn holds(&self, request: &IpConfigsRequest) -> Result<bool, QueueError> {
        let wanted = key(request);
        let suffix = suffix(request);
        let names = self.names()?;
        let alike = names.iter().filter(|name| name.ends_with(&suffix));
        for name in alike {
            match self.read(name) {
                Ok(Some(found)) if key(&found) == wanted => return Ok(true),
                // It was replayed meanwhile, or will never be.
                Err(source)
                    if matches!(
                        source.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::InvalidData
                    ) => {}
                Err(source) => {
                    return Err(QueueError::Io {
                        operation: "read",
                        path: self.directory.join(name),
                        source,
                    });
                }
                Ok(_) => {}
            }
        }
        Ok(false)
    }

    /// Queues a release, durably when this returns. A key that is queued already is not queued
    /// twice.
    pub fn push(&self, request: &IpConfigsRequest) -> Result<(), QueueError> {
        self.create()?;
        if !self.holds(request)? {
            let names = self.names()?;
            if names.len() >= MOST {
                return Err(QueueError::Full { most: MOST });
            }
            self.write(&format!("{:020}{}", next(&names), suffix(request)), request)?;
        }
        sync(&self.directory)
    }

    /// Takes the right to remove; none if another process holds it or the directory does not exist.
    pub fn lock(&self) -> Result<Option<QueueGuard>, QueueError> {
        let directory = match regular::open_directory(&self.directory) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("open", error)),
        };
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(QueueGuard {
                queue: self.clone(),
                directory,
            })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(self.failed("lock", error.into())),
        }
    }

    /// File names of queued releases, oldest first.
    fn names(&self) -> Result<Vec<String>, QueueError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.failed("list", error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| self.failed("list", error))?;
            let name = entry.file_name().into_string();
            names.extend(name.ok().filter(|name| number(name).is_some()));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Content of a file; none if it is of a newer version. An error of kind
    /// [`io::ErrorKind::InvalidData`] is permanent: the file is not a release.
    fn read(&self, name: &str) -> io::Result<Option<IpConfigsRequest>> {
        let path = self.directory.join(name);
        let file = regular::open(&path, OpenOptions::new().read(true))?;
        let mut text = String::new();
        file.take(LONGEST + 1).read_to_string(&mut text)?;
        if text.len() as u64 > LONGEST {
            let reason = format!("it is longer than {LONGEST} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let request = decode(&text).map_err(|error| invalid(error.to_string()))?;
        match &request {
            Some(request) if names_no_container(request) => {
                Err(invalid("it names no container".to_owned()))
            }
            _ => Ok(request),
        }
    }

    fn create(&self) -> Result<(), QueueError> {
        if self.directory.is_dir() {
            return Ok(());
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)
            .map_err(|error| self.failed("create", error))?;
        self.directory.parent().map_or(Ok(()), sync)
    }

    fn write(&self, name: &str, request: &IpConfigsRequest) -> Result<(), QueueError> {
        let path = self.directory.join(name);
        // Two calls for one key may write at once.
        let unfinished = self
            .directory
            .join(format!(".{name}.{}", std::process::id()));
        let content = serde_json::to_vec(&Content {
            version: VERSION,
            request: request.clone(),
        });
        let written = content.map_err(io::Error::from).and_then(|content| {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&unfinished)?;
            file.write_all(&content)?;
            file.sync_all()?;
            fs::rename(&unfinished, &path)
        });
        written.map_err(|source| {
            // Removes the partial file, so that a full disk does not keep it.
            let _ = fs::remove_file(&unfinished);
            QueueError::Io {
                operation: "write",
                path,
                source,
            }
        })
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> QueueError {
        QueueError::Io {
            operation,
            path: self.directory.clone(),
            source,
        }
    }
}

impl QueueGuard {
    /// Queued releases, oldest first. An entry that cannot be read as a release is put aside so
    /// that it does not block the others; one that cannot be moved is skipped.
    pub fn waiting(&self) -> Result<Waiting, QueueError> {
        self.sweep();
        let mut waiting = Waiting::default();
        for name in self.queue.names()? {
            match self.queue.read(&name) {
                Ok(Some(request)) => waiting.releases.push(QueuedRelease { request, name }),
                Ok(None) => {}
                Err(error) => waiting.unreadable.push(self.put_aside(&name, &error)),
            }
        }
        Ok(waiting)
    }

    /// Removes a release that the daemon has carried out.
    ///
    /// The removal is not synced: an entry that reappears after a power loss is replayed into a
    /// daemon that knows by the boot id that no sandbox survived.
    pub fn remove(&self, entry: &QueuedRelease) -> Result<(), QueueError> {
        let path = self.queue.directory.join(&entry.name);
        fs::remove_file(&path).map_err(|source| QueueError::Io {
            operation: "remove",
            path,
            source,
        })
    }

    /// Replays queued releases, oldest first.
    pub(crate) fn drain(
        &self,
        mut release: impl FnMut(&IpConfigsRequest) -> Replay,
    ) -> Result<Drained, QueueError> {
        let Waiting {
            releases: entries,
            unreadable,
        } = self.waiting()?;
        let mut drained = Drained {
            unreadable: unreadable.len(),
            ..Drained::default()
        };
        for entry in &entries {
            match release(&entry.request) {
                Replay::Done => {
                    self.remove(entry)?;
                    drained.released += 1;
                }
                Replay::Keep => {}
                Replay::Stop => break,
            }
        }
        drained.left = entries.len() - drained.released;
        Ok(drained)
    }

    fn put_aside(&self, name: &str, error: &io::Error) -> Unreadable {
        let path = self.queue.directory.join(name);
        if error.kind() != io::ErrorKind::InvalidData {
            // It may be readable the next time.
            let reason = error.to_string();
            return Unreadable { path, reason };
        }
        let aside = self.queue.directory.join(format!("{name}.unreadable"));
        match fs::rename(&path, &aside) {
            Ok(()) => Unreadable {
                path: aside,
                reason: error.to_string(),
            },
            Err(also) => Unreadable {
                path,
                reason: format!("{error}; cannot move it aside: {also}"),
            },
        }
    }

    /// Removes unfinished files of crashed processes. Best effort: they are never read.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.queue.directory) else {
            return;
        };
        for entry in entries.flatten() {
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            let age = entry.metadata().and_then(|data| data.modified());
            let age = age.ok().and_then(|time| time.elapsed().ok());
            if is_hidden && age.is_some_and(|age| age > STALE) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn decode(text: &str) -> Result<Option<IpConfigsRequest>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Versioned { version } = serde_json::from_str(text)?;
    if version > VERSION {
        return Ok(None);
    }
    let content: Content = serde_json::from_str(text)?;
    Ok(Some(content.request))
}

/// True if no daemon can release it: addresses are looked up by container.
fn names_no_container(request: &IpConfigsRequest) -> bool {
    request.pod_interface_id.is_empty() && request.infra_container_id.is_empty()
}

/// The fields that identify an attachment.
fn key(request: &IpConfigsRequest) -> (Option<&str>, &str, &str) {
    (
        request.network_name.as_deref(),
        &request.infra_container_id,
        &request.ifname,
    )
}

/// The end of the file names of all releases of a key. FNV-1a, because every version of this
/// program must compute the same hash, which the standard library does not promise.
fn suffix(request: &IpConfigsRequest) -> String {
    let (network, container, ifname) = key(request);
    let parts = [network.unwrap_or_default(), container, ifname];
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("-{hash:016x}.json")
}

/// The sequence number in the name of a release; none for any other name.
fn number(name: &str) -> Option<u64> {
    let (number, rest) = name.split_at_checked(20)?;
    let hash = rest.strip_prefix('-')?.strip_suffix(".json")?;
    let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    (is_hash && is_number).then(|| number.parse().ok())?
}

/// A number above every queued one, even if the clock went back.
fn next(names: &[String]) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(0));
    let last = names.last().and_then(|name| number(name));
    last.map_or(now, |last| now.max(last.saturating_add(1)))
}

fn sync(directory: &Path) -> Result<(), QueueError> {
    let synced = regular::open_directory(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|source| QueueError::Io {
        operation: "sync",
        path: directory.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn request(container: &str) -> IpConfigsRequest {
        IpConfigsRequest {
            infra_container_id: container.to_owned(),
            ifname: "eth0".to_owned(),
            network_name: Some("podnet".to_owned()),
            ..IpConfigsRequest::default()
        }
    }

    fn queue() -> (tempfile::TempDir, Queue) {
        let directory = tempfile::tempdir().unwrap();
        let queue = Queue::new(directory.path().join("a/queue"));
        (directory, queue)
    }

    fn containers(queue: &Queue) -> Vec<String> {
        let waiting = queue.lock().unwrap().unwrap().waiting().unwrap();
        let ids = waiting.releases.into_iter();
        ids.map(|entry| entry.request.infra_container_id).collect()
    }

    #[test]
    fn releases_are_replayed_in_the_order_they_came() {
        let (_directory, queue) = queue();
        assert!(queue.is_empty().unwrap());
        for container in ["c3", "c1", "c2"] {
            queue.push(&request(container)).unwrap();
        }
        assert_eq!(containers(&queue), ["c3", "c1", "c2"]);
        assert!(queue.holds(&request("c1")).unwrap());
        assert!(!queue.holds(&request("c4")).unwrap());
    }

    #[test]
    fn a_clock_that_goes_back_does_not_change_the_order() {
        let names = ["18446744073709551000-0123456789abcdef.json".to_owned()];
        assert_eq!(next(&names), 18_446_744_073_709_551_001);
    }

    #[test]
    fn a_key_is_queued_once() {
        let (_directory, queue) = queue();
        queue.push(&request("c1")).unwrap();
        queue.push(&request("c1")).unwrap();
        let mut other = request("c1");
        other.ifname = "eth1".to_owned();
        queue.push(&other).unwrap();
        assert_eq!(containers(&queue), ["c1", "c1"]);
    }

    #[test]
    fn other_users_cannot_read_it() {
        let (_directory, queue) = queue();
        queue.push(&request("c1")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&queue.directory), 0o700);
        let name = queue.names().unwrap().remove(0);
        assert_eq!(mode(&queue.directory.join(name)), 0o600);
    }

    #[test]
    fn only_the_lock_holder_may_remove() {
        let (_directory, queue) = queue();
        assert!(queue.lock().unwrap().is_none(), "there is nothing to lock");
        queue.push(&request("c1")).unwrap();
        let guard = queue.lock().unwrap();
        assert!(guard.is_some() && queue.lock().unwrap().is_none());
        queue.push(&request("c2")).unwrap();
        // As a program that is just being started has it.
        let inherited = guard.as_ref().unwrap().directory.try_clone().unwrap();
        drop(guard);
        assert_eq!(containers(&queue), ["c1", "c2"]);
        drop(inherited);
    }

    #[test]
    fn a_refusal_skips_one_release_and_a_lost_daemon_ends_the_replay() {
        let (_directory, queue) = queue();
        for container in ["c1", "c2", "c3", "c4"] {
            queue.push(&request(container)).unwrap();
        }
        let guard = queue.lock().unwrap().unwrap();
        let drained = guard.drain(|request| match &*request.infra_container_id {
            "c1" => Replay::Keep,
            "c2" => Replay::Done,
            _ => Replay::Stop,
        });
        let expected = Drained {
            released: 1,
            left: 3,
            unreadable: 0,
        };
        assert_eq!(drained.unwrap(), expected);
        drop(guard);
        assert_eq!(containers(&queue), ["c1", "c3", "c4"]);
    }

    #[test]
    fn unreadable_entries_are_put_aside_and_newer_ones_left_alone() {
        let (_directory, queue) = queue();
        queue.push(&request("c1")).unwrap();
        let write = |name: &str, text: &str| fs::write(queue.directory.join(name), text).unwrap();
        write(
            "00000000000000000001-00000000000000aa.json",
            "{\"version\":1,",
        );
        write(
            "00000000000000000002-00000000000000aa.json",
            "{\"version\":2,\"new\":true}",
        );
        write("notes.txt", "a person was here");
        assert_eq!(containers(&queue), ["c1"]);
        let aside = "00000000000000000001-00000000000000aa.json.unreadable";
        assert!(queue.directory.join(aside).exists());
        let newer = "00000000000000000002-00000000000000aa.json";
        assert!(queue.directory.join(newer).exists());
    }

    #[test]
    fn a_release_without_a_container_is_put_aside() {
        let (_directory, queue) = queue();
        queue.push(&request("c1")).unwrap();
        let texts = [
            "{\"version\":1,\"request\":{}}",
            "{\"version\":1,\"request\":{\"ifname\":\"eth0\",\"networkName\":\"podnet\"}}",
        ];
        let name = |number: usize| format!("{number:020}-00000000000000aa.json");
        for (number, text) in texts.iter().enumerate() {
            fs::write(queue.directory.join(name(number)), text).unwrap();
        }
        // By either of its names a container is enough.
        let text = "{\"version\":1,\"request\":{\"podInterfaceID\":\"c2\"}}";
        fs::write(queue.directory.join(name(2)), text).unwrap();
        let waiting = queue.lock().unwrap().unwrap().waiting().unwrap();
        assert_eq!(waiting.releases.len(), 2, "{waiting:?}");
        let reasons: Vec<&str> = waiting.unreadable.iter().map(|it| &*it.reason).collect();
        assert_eq!(reasons, ["it names no container"; 2]);
        for number in 0..texts.len() {
            let aside = queue.directory.join(format!("{}.unreadable", name(number)));
            assert!(aside.exists(), "{}", aside.display());
        }
    }

    #[test]
    fn it_takes_no_more_than_its_bound() {
        let (_directory, queue) = queue();
        queue.push(&request("c1")).unwrap();
        for number in 0..MOST {
            let name = format!("{number:020}-00000000000000aa.json");
            fs::write(queue.directory.join(name), "").unwrap();
        }
        let refused = queue.push(&request("c2"));
        assert!(
            matches!(refused, Err(QueueError::Full { .. })),
            "{refused:?}"
        );
        queue.push(&request("c1")).unwrap();
    }

    #[test]
    fn the_format_is_the_one_that_is_documented() {
        let (_directory, queue) = queue();
        queue.push(&request("c1")).unwrap();
        let name = queue.names().unwrap().remove(0);
        assert!(name.ends_with("-a495793d32b0ef56.json"), "{name}");
        let text = fs::read_to_string(queue.directory.join(name)).unwrap();
        assert!(text.starts_with("{\"version\":1,\"request\":{"), "{text}");
    }
}
