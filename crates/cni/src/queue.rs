//! Releases that the daemon was not there to hear.
//!
//! The daemon may itself be a pod that cannot start before another one is deleted: so a DEL must
//! not fail because it is away. What is to be released is put down here, durable before the
//! runtime hears of success, and replayed by the next call of the plugin or by the daemon, which
//! does so before it serves its first ADD.
//!
//! # Format, version 1
//! A directory (0700) with a file (0600) for each release, `<20 digits>-<16 hex digits>.json`: a
//! number that orders them and a hash of the key. Content: `{"version":1,"request":{...}}` with
//! the body of `/network/releaseipconfigs`. Files appear by rename, so they are whole. Hidden files
//! are being written; `*.unreadable` were put aside: not a regular file, too long, not a release, or
//! a release without a container, which every daemon refuses.
//! Files of a newer version are left alone.
//!
//! # Who may do what
//! Anybody adds at any time. Only who holds the lock (`flock` of the directory) removes, from
//! before reading a file until after the daemon has released what it says; so no release is
//! replayed that somebody else has replayed already, and an ADD that finds its key absent can be
//! sure that no replay of it is under way.

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

/// The format that is written.
const VERSION: u32 = 1;
/// Many times what a node has pods, and not enough to fill a disk.
const MOST: usize = 4096;
/// No release is longer.
const LONGEST: u64 = 64 << 10;
/// A file that is being written for so long was left behind by a crash.
const STALE: Duration = Duration::from_secs(3600);

/// Why the queue could not be used.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The file system said no.
    #[error("{doing} {}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Nobody has emptied it for long.
    #[error("{most} releases wait already")]
    Full {
        /// How many it takes.
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
    /// Holds the lock.
    directory: File,
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        // Closing is not enough: a program that another thread is just starting has the file open
        // too, until it runs. Where this fails, closing does it a little later.
        let _ = flock(&self.directory, FlockOperation::Unlock);
    }
}

/// A release that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRelease {
    /// What to send to the daemon.
    pub request: IpConfigsRequest,
    name: String,
}

/// Everything that a queue holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// What waits, in order.
    pub releases: Vec<QueuedRelease>,
    /// What has the name of a release and cannot be read as one.
    pub unreadable: Vec<Unreadable>,
}

/// Something in a queue that cannot be read as a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Where it is now: aside, or in its place if it could not be moved or may be read later.
    pub path: PathBuf,
    /// What is wrong with it, and with moving it.
    pub reason: String,
}

/// What became of one release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replay {
    /// The daemon has done it.
    Done,
    /// The daemon refused this one.
    Keep,
    /// The daemon is gone again.
    Stop,
}

/// What became of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// How many were replayed.
    pub released: usize,
    /// How many wait on.
    pub left: usize,
    /// How many entries cannot be read as a release.
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

    /// Whether nothing waits.
    pub fn is_empty(&self) -> Result<bool, QueueError> {
        Ok(self.names()?.is_empty())
    }

    /// Whether a release of this key waits.
    pub fn holds(&self, request: &IpConfigsRequest) -> Result<bool, QueueError> {
        let wanted = key(request);
        let suffix = suffix(request);
        let names = self.names()?;
        let alike = names.iter().filter(|name| name.ends_with(&suffix));
        for name in alike {
            match self.read(name) {
                Ok(Some(found)) if key(&found) == wanted => return Ok(true),
                // It was replayed a moment ago, or will never be.
                Err(source)
                    if matches!(
                        source.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::InvalidData
                    ) => {}
                Err(source) => {
                    return Err(QueueError::Io {
                        doing: "read",
                        path: self.directory.join(name),
                        source,
                    });
                }
                Ok(_) => {}
            }
        }
        Ok(false)
    }

    /// Puts a release down; it is durable when this returns. One that waits already is not put
    /// down twice.
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

    /// The right to remove; none when somebody else has it or nothing was ever put down.
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

    /// The files of releases, in order.
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

    /// What a file says; none when it is of a newer version. An error of kind
    /// [`io::ErrorKind::InvalidData`] is one for good: it is not a release.
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
        // Two calls of one key may write at once.
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
            // A full disk must not keep the pieces.
            let _ = fs::remove_file(&unfinished);
            QueueError::Io {
                doing: "write",
                path,
                source,
            }
        })
    }

    fn failed(&self, doing: &'static str, source: io::Error) -> QueueError {
        QueueError::Io {
            doing,
            path: self.directory.clone(),
            source,
        }
    }
}

impl QueueGuard {
    /// What waits, in order. What cannot be read as a release is put aside, so that it stops none
    /// of the others; what cannot even be moved is skipped.
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

    /// Forgets a release that the daemon has done.
    ///
    /// The removal is not synced: what comes back after a power loss is replayed into a daemon
    /// that knows by the boot id that no sandbox survived.
    pub fn remove(&self, entry: &QueuedRelease) -> Result<(), QueueError> {
        let path = self.queue.directory.join(&entry.name);
        fs::remove_file(&path).map_err(|source| QueueError::Io {
            doing: "remove",
            path,
            source,
        })
    }

    /// Replays what waits, in order.
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
            // It may be a release that can be read the next time.
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

    /// Removes what crashes left half written; whoever fails at that has lost nothing.
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

/// Whether the daemon can never do it: it finds addresses by the container.
fn names_no_container(request: &IpConfigsRequest) -> bool {
    request.pod_interface_id.is_empty() && request.infra_container_id.is_empty()
}

/// What makes two requests the same.
fn key(request: &IpConfigsRequest) -> (Option<&str>, &str, &str) {
    (
        request.network_name.as_deref(),
        &request.infra_container_id,
        &request.ifname,
    )
}

/// The end of the names of all releases of a key. FNV-1a: another version of this program has to
/// find the same, which the standard library does not promise.
fn suffix(request: &IpConfigsRequest) -> String {
    let (network, container, ifname) = key(request);
    let parts = [network.unwrap_or_default(), container, ifname];
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("-{hash:016x}.json")
}

/// The number in the name of a release; none when the name is of something else.
fn number(name: &str) -> Option<u64> {
    let (number, rest) = name.split_at_checked(20)?;
    let hash = rest.strip_prefix('-')?.strip_suffix(".json")?;
    let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    (is_hash && is_number).then(|| number.parse().ok())?
}

/// After everything that waits, even if the clock went back.
fn next(names: &[String]) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(0));
    let last = names.last().and_then(|name| number(name));
    last.map_or(now, |last| now.max(last.saturating_add(1)))
}

fn sync(directory: &Path) -> Result<(), QueueError> {
    let synced = regular::open_directory(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|source| QueueError::Io {
        doing: "sync",
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
    fn releases_wait_in_the_order_they_came() {
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
    fn one_key_waits_once() {
        let (_directory, queue) = queue();
        queue.push(&request("c1")).unwrap();
        queue.push(&request("c1")).unwrap();
        let mut other = request("c1");
        other.ifname = "eth1".to_owned();
        queue.push(&other).unwrap();
        assert_eq!(containers(&queue), ["c1", "c1"]);
    }

    #[test]
    fn nobody_else_can_read_it() {
        let (_directory, queue) = queue();
        queue.push(&request("c1")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&queue.directory), 0o700);
        let name = queue.names().unwrap().remove(0);
        assert_eq!(mode(&queue.directory.join(name)), 0o600);
    }

    #[test]
    fn only_one_may_remove_at_a_time() {
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
    fn a_refusal_stops_nobody_and_a_lost_daemon_stops_all() {
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
    fn what_cannot_be_read_is_put_aside_and_what_is_newer_left_alone() {
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
