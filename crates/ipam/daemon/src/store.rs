//! The address store: a database file with the addresses of each pod.
//!
//! One row per key, replaced or removed by [`Record`]s. Every start verifies all checksums and
//! compares the newest commit with the number of the newest acknowledged one (`store/counter.rs`).
//! A store that fails either check is moved aside, never deleted.
//!
//! Checksums are verified once at each start: by the database for a file that was not closed, since
//! that is how it finds the last complete commit; by this module for one that was closed, where the
//! database trusts the disk.

mod counted;
mod counter;
mod rows;

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use redb::Database;
use thiserror::Error;
use weft_ipam::pool::{Journal, Record};

use counted::CountedFile;
pub use counter::counter_file;
use counter::{Count, Counter};
use rows::{Contents, Existing, VERSION};

/// There are a few hundred rows, so the default of a gibibyte would only hide leaks. A larger cache
/// does not make a start faster: the database drops what it read after each pass.
const CACHE: usize = 1 << 20;

/// An operation of the store failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The directory or a file in it cannot be used.
    #[error("cannot use state directory {path}")]
    Directory {
        /// The state directory.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another process has the directory, and serves this node.
    #[error("state directory {0} is locked by another process")]
    Locked(String),
    /// An error of the database.
    #[error("cannot read or write the address store")]
    Database(#[from] Box<redb::Error>),
    /// The number of a commit cannot be written, so the commit must not be acknowledged.
    #[error("cannot write addresses.commits")]
    Counter(#[source] io::Error),
    /// The task that used it panicked, so its records are not durable.
    #[error("cannot finish the operation of the address store")]
    Task(#[source] tokio::task::JoinError),
    /// A newer program wrote it, and may return to it.
    #[error("the address store is of format {0}: expected {VERSION}")]
    Newer(u64),
    /// A record that cannot be encoded as JSON.
    #[error("cannot encode a record")]
    Encode(#[from] serde_json::Error),
}

/// The reason why a store is not trusted.
#[derive(Debug, Error)]
enum Flaw {
    #[error("its file is gone")]
    Gone,
    #[error("its file is empty")]
    Empty,
    #[error("its checksums do not match")]
    Checksum,
    #[error("newest commit is {found}: expected at least {acknowledged}")]
    Behind { found: u64, acknowledged: u64 },
    #[error("addresses.commits is missing")]
    CounterGone,
    #[error("addresses.commits cannot be parsed")]
    CounterUnreadable,
    #[error("it is of format {0}: expected {VERSION}")]
    Format(u64),
    #[error("row {0} cannot be read")]
    Row(String),
    #[error("{0}")]
    Damaged(String),
    #[error("reading it failed unexpectedly")]
    Panicked,
    #[error("it cannot be used now")]
    Unusable(#[source] Box<redb::Error>),
}

impl StoreError {
    /// True if another process has locked it, which then serves this node.
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Locked(_) => true,
            Self::Database(error) => matches!(**error, redb::Error::DatabaseAlreadyOpen),
            _ => false,
        }
    }
}

fn failed(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Database(Box::new(error.into()))
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    database: Database,
    counter: Counter,
    /// Number of the newest commit.
    commits: AtomicU64,
    syncs: Arc<AtomicU64>,
    /// Open with the lock of the state directory held.
    _directory: File,
}

/// An open store and its contents.
#[derive(Debug)]
pub struct Opened {
    /// Holds the lock of the state directory until it is dropped.
    pub store: Store,
    /// Its records, or the fact that they are lost.
    pub journal: Journal,
    /// Set if an earlier store was not trusted and has been replaced.
    pub loss: Option<Loss>,
}

/// A store that was not trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Path that its file was moved to; `None` if there was no file.
    pub moved: Option<PathBuf>,
    /// The reason why it was not trusted.
    pub flaw: String,
}

impl Store {
    /// Opens the store of a directory, or creates it. The only errors are those of the directory,
    /// the disk or permissions, and a store of a newer program, which must not be replaced.
    ///
    /// The commit number on disk counts only if it is of this boot.
    pub fn open(directory: &Path, boot: &str) -> Result<Opened, StoreError> {
        let state = StateDirectory::prepare(directory, boot)?;
        let count = counter::read(directory).map_err(|error| state.unusable(error))?;
        match state.read(&count) {
            Ok(Some((database, contents))) => state.keep(database, contents, &count),
            Ok(None) => state.create(),
            Err(Flaw::Unusable(error)) => Err(StoreError::Database(error)),
            Err(Flaw::Format(format)) if format > VERSION => Err(StoreError::Newer(format)),
            Err(flaw) => state.replace(&flaw, &count),
        }
    }

    /// Opens the store of a directory whose contents are known from elsewhere, and replaces them.
    pub fn reopen(directory: &Path, boot: &str, records: &[Record]) -> Result<Opened, StoreError> {
        let opened = Self::open(directory, boot)?;
        opened.store.replace(records)?;
        Ok(opened)
    }

    /// Number of disk syncs since the last call.
    pub fn take_syncs(&self) -> u64 {
        self.syncs.swap(0, Relaxed)
    }

    /// Makes records durable: all or none.
    pub fn commit(&self, records: &[Record]) -> Result<(), StoreError> {
        self.write(records, Existing::Keep)
    }

    /// Replaces all contents by these records.
    pub fn replace(&self, records: &[Record]) -> Result<(), StoreError> {
        self.write(records, Existing::Remove)
    }

    fn write(&self, records: &[Record], existing: Existing) -> Result<(), StoreError> {
        let commits = self.commits.load(Relaxed) + 1;
        rows::write(&self.database, records, existing, commits)?;
        self.counter.advance(commits).map_err(StoreError::Counter)?;
        self.commits.store(commits, Relaxed);
        Ok(())
    }
}

/// Path of the database in a state directory.
pub fn file(directory: &Path) -> PathBuf {
    directory.join("addresses.redb")
}

/// A state directory, locked against other processes.
struct StateDirectory<'a> {
    directory: &'a Path,
    boot: &'a str,
    locked: File,
    syncs: Arc<AtomicU64>,
}

impl<'a> StateDirectory<'a> {
    /// Creates the directory readable by root alone.
    fn prepare(directory: &'a Path, boot: &'a str) -> Result<Self, StoreError> {
        use std::os::unix::fs::DirBuilderExt as _;
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
        let opened = made.and_then(|()| File::open(directory));
        let locked = opened.map_err(|source| unusable(directory, source))?;
        match locked.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::Locked(directory.display().to_string()));
            }
            // Where directories cannot be locked, the database still locks its file.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        Ok(Self {
            directory,
            boot,
            locked,
            syncs: Arc::default(),
        })
    }

    fn unusable(&self, source: io::Error) -> StoreError {
        unusable(self.directory, source)
    }

    /// Contents of the store; `None` if there never was one.
    fn read(&self, count: &Count) -> Result<Option<(Database, Contents)>, Flaw> {
        let path = file(self.directory);
        match fs::metadata(&path) {
            Ok(found) if found.len() == 0 => return Err(Flaw::Empty),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return match count {
                    // Nothing was acknowledged before the first store was complete.
                    Count::Absent | Count::Of { commits: 0, .. } => Ok(None),
                    Count::Unreadable | Count::Of { .. } => Err(Flaw::Gone),
                };
            }
            Err(error) => return Err(flaw(error.into())),
        }
        let read = catch_unwind(AssertUnwindSafe(|| {
            let database = self.verified(&path)?;
            let contents = rows::read(&database)?;
            check_commit_number(&contents, count, self.boot)?;
            Ok((database, contents))
        }));
        read.unwrap_or(Err(Flaw::Panicked)).map(Some)
    }

    fn verified(&self, path: &Path) -> Result<Database, Flaw> {
        let (mut database, verified) = self.open(path).map_err(|error| flaw(error.into()))?;
        let sound = verified
            || database
                .check_integrity()
                .map_err(|error| flaw(error.into()))?;
        if sound {
            Ok(database)
        } else {
            Err(Flaw::Checksum)
        }
    }

    /// Opens the database; returns true if all its contents were verified on the way.
    fn open(&self, path: &Path) -> Result<(Database, bool), redb::DatabaseError> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let repaired = Arc::<AtomicBool>::default();
        let noted = repaired.clone();
        let database = Database::builder()
            .set_cache_size(CACHE)
            .set_repair_callback(move |_| noted.store(true, Relaxed))
            .create_with_backend(CountedFile::new(file, self.syncs.clone())?)?;
        Ok((database, repaired.load(Relaxed)))
    }

    fn keep(
        self,
        database: Database,
        contents: Contents,
        count: &Count,
    ) -> Result<Opened, StoreError> {
        let Contents { records, commits } = contents;
        let counter = match count {
            Count::Of { boot, .. } if boot == self.boot => Counter::open(self.directory, self.boot),
            _ => self.count_from(commits),
        };
        let counter = counter.map_err(|error| self.unusable(error))?;
        let opened = self.opened(database, counter, commits, Journal::Kept(records), None);
        if commits == 0 {
            // From here on its absence is noticed.
            opened.store.commit(&[])?;
        }
        Ok(opened)
    }

    /// Creates the first store of this directory.
    fn create(self) -> Result<Opened, StoreError> {
        // In this order: without a number there was never a store, and a store is complete or
        // absent.
        let counter = self.count_from(0).map_err(|error| self.unusable(error))?;
        let database = self.make(&[], 1)?;
        self.publish().map_err(|error| self.unusable(error))?;
        Ok(self.opened(database, counter, 1, Journal::Kept(Vec::new()), None))
    }

    /// Creates a store in place of one that is not trusted. A crash after any step is a loss again.
    fn replace(self, flaw: &Flaw, count: &Count) -> Result<Opened, StoreError> {
        let acknowledged = match count {
            Count::Of { commits, .. } => (*commits).max(1),
            Count::Absent | Count::Unreadable => 1,
        };
        let next = acknowledged.saturating_add(1);
        let counter = self.count_from(acknowledged);
        let counter = counter.map_err(|error| self.unusable(error))?;
        let database = self.make(&[Record::Lost(true)], next)?;
        let moved = move_aside(self.directory).and_then(|moved| {
            self.publish()?;
            counter.advance(next)?;
            Ok(moved)
        });
        let loss = Loss {
            moved: moved.map_err(|error| self.unusable(error))?,
            flaw: flaw.to_string(),
        };
        Ok(self.opened(database, counter, next, Journal::Lost, Some(loss)))
    }

    fn count_from(&self, commits: u64) -> io::Result<Counter> {
        let counter = Counter::create(self.directory, self.boot, commits)?;
        self.locked.sync_all()?;
        Ok(counter)
    }

    /// Creates a database under a temporary name, with a first commit.
    fn make(&self, records: &[Record], commits: u64) -> Result<Database, StoreError> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let path = unfinished(self.directory);
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| self.unusable(error))?;
        let (database, _) = self.open(&path).map_err(failed)?;
        rows::write(&database, records, Existing::Keep, commits)?;
        Ok(database)
    }

    /// Renames the new database while it is open: locks belong to files, not to names.
    fn publish(&self) -> io::Result<()> {
        fs::rename(unfinished(self.directory), file(self.directory))?;
        // A file whose directory entry is not on disk is lost in a power cut, whatever was written
        // to it.
        self.locked.sync_all()
    }

    fn opened(
        self,
        database: Database,
        counter: Counter,
        commits: u64,
        journal: Journal,
        loss: Option<Loss>,
    ) -> Opened {
        let store = Store {
            database,
            counter,
            commits: commits.into(),
            syncs: self.syncs,
            _directory: self.locked,
        };
        Opened {
            store,
            journal,
            loss,
        }
    }
}

fn unusable(directory: &Path, source: io::Error) -> StoreError {
    StoreError::Directory {
        path: directory.display().to_string(),
        source,
    }
}

fn unfinished(directory: &Path) -> PathBuf {
    directory.join("addresses.redb.new")
}

/// Checks that the store contains everything acknowledged in this boot. Attachments acknowledged in
/// an earlier boot ended with their sandboxes.
fn check_commit_number(contents: &Contents, count: &Count, boot: &str) -> Result<(), Flaw> {
    let found = contents.commits;
    let former = || {
        let mut records = contents.records.iter();
        records.any(|record| matches!(record, Record::Identity(known) if &*known.boot != boot))
    };
    match count {
        Count::Of {
            boot: counted,
            commits: acknowledged,
        } if counted == boot && found < *acknowledged => Err(Flaw::Behind {
            found,
            acknowledged: *acknowledged,
        }),
        Count::Of { .. } => Ok(()),
        // An older program did not count commits.
        Count::Absent if found == 0 => Ok(()),
        Count::Absent | Count::Unreadable if former() => Ok(()),
        Count::Absent => Err(Flaw::CounterGone),
        Count::Unreadable => Err(Flaw::CounterUnreadable),
    }
}

/// Errors of the disk or of another process say nothing about the contents.
///
/// `UpgradeRequired` is damage: the database reports it for a format older than any that this
/// program wrote, before it checks a checksum, so one flipped bit is enough. For a newer format it
/// reports corruption.
fn flaw(error: redb::Error) -> Flaw {
    match error {
        redb::Error::Io(io)
            if matches!(
                io.kind(),
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
            ) =>
        {
            Flaw::Damaged(io.to_string())
        }
        redb::Error::Io(_) | redb::Error::PreviousIo | redb::Error::DatabaseAlreadyOpen => {
            Flaw::Unusable(Box::new(error))
        }
        other => Flaw::Damaged(other.to_string()),
    }
}

/// Renames the database of a directory, if there is one.
fn move_aside(directory: &Path) -> io::Result<Option<PathBuf>> {
    let path = file(directory);
    if !path.try_exists()? {
        return Ok(None);
    }
    let mut number = 1;
    loop {
        let aside = directory.join(format!("addresses.redb.damaged-{number}"));
        if !aside.try_exists()? {
            fs::rename(&path, &aside)?;
            return Ok(Some(aside));
        }
        number += 1;
    }
}
