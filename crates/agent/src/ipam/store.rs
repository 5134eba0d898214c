//! The file that remembers who has which address.
//!
//! One row for each thing that is remembered, replaced or removed by [`Record`]s. Rows are checked
//! when the file is opened; a file that cannot be believed is moved aside and never deleted.
//!
//! All checksums of a file are verified once at each start, by whoever does it anyway: the database
//! itself does it for a file that was not closed, since that is how it finds the last commit that
//! is whole; for one that was closed it trusts the disk, and we do not.

mod counted;

use std::{
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use thiserror::Error;
use weft_ipam::pool::{Journal, Record};

use counted::CountedFile;

/// What is remembered: a row's name, and the record that made it, as JSON.
const ROWS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("rows");
const ABOUT: TableDefinition<'_, &str, u64> = TableDefinition::new("about");
const FORMAT: &str = "format";
/// Grows when an older program could misread the rows.
const VERSION: u64 = 1;
/// There are a few hundred rows, so the default of a gibibyte would only hide leaks. A start reads
/// the file as often with a larger one: the database forgets what it read after each pass.
const CACHE: usize = 1 << 20;

/// Why nothing can be kept.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The directory cannot be used.
    #[error("use state directory {path}")]
    Directory {
        /// Which.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The database refuses.
    #[error("read or write the address database")]
    Database(#[from] Box<redb::Error>),
    /// A newer program wrote it, and may come back to it.
    #[error("the address database is of format {0}, and this program knows {VERSION}")]
    Newer(u64),
    /// A record has no text.
    #[error("encode a record")]
    Encode(#[from] serde_json::Error),
}

/// Why a file cannot be believed.
#[derive(Debug, Error)]
enum Flaw {
    #[error("its checksums do not match")]
    Checksum,
    #[error("it is of format {0}, and this program knows {VERSION}")]
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
    /// Whether another process has it, which then serves this node.
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::Database(error) if matches!(**error, redb::Error::DatabaseAlreadyOpen))
    }
}

fn failed(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Database(Box::new(error.into()))
}

/// An open file.
#[derive(Debug)]
pub struct Store {
    database: Database,
    directory: PathBuf,
    syncs: Arc<AtomicU64>,
}

/// An open file and what was in it.
#[derive(Debug)]
pub struct Opened {
    /// The file.
    pub store: Store,
    /// What was in it.
    pub journal: Journal,
    /// Where an unbelievable file went, and what was wrong with it.
    pub moved: Option<(PathBuf, String)>,
}

impl Store {
    /// Opens the file of a directory, or makes it. Only what is wrong with the directory, the disk
    /// or our rights is an error, or that the file is a newer program's: then it must not be replaced.
    pub fn open(directory: &Path) -> Result<Opened, StoreError> {
        let path = file(directory);
        let unusable = |source| StoreError::Directory {
            path: directory.display().to_string(),
            source,
        };
        prepare(directory).map_err(unusable)?;
        let syncs = Arc::<AtomicU64>::default();
        let store = |database| Self {
            database,
            directory: directory.to_owned(),
            syncs: syncs.clone(),
        };
        let read = catch_unwind(AssertUnwindSafe(|| read(&path, &syncs)));
        let (moved, flaw) = match read.unwrap_or(Err(Flaw::Panicked)) {
            Ok((database, records)) => {
                return Ok(Opened {
                    store: store(database),
                    journal: Journal::Kept(records),
                    moved: None,
                });
            }
            Err(Flaw::Unusable(error)) => return Err(StoreError::Database(error)),
            Err(Flaw::Format(format)) if format > VERSION => {
                return Err(StoreError::Newer(format));
            }
            Err(flaw) => (move_aside(directory, &path), flaw),
        };
        let moved = moved.map_err(unusable)?;
        prepare(directory).map_err(unusable)?;
        Ok(Opened {
            store: store(open(&path, &syncs).map_err(failed)?.0),
            journal: Journal::Lost,
            moved: Some((moved, flaw.to_string())),
        })
    }

    /// How often the disk was waited for since this was asked last.
    pub fn take_syncs(&self) -> u64 {
        self.syncs.swap(0, Relaxed)
    }

    /// Makes records durable: all or none.
    pub fn commit(&self, records: &[Record]) -> Result<(), StoreError> {
        self.write(records, false)
    }

    /// Makes these records all there is.
    pub fn replace(&self, records: &[Record]) -> Result<(), StoreError> {
        self.write(records, true)
    }

    /// Opens the file again after a failed write, and makes these records all there is.
    pub fn recover(self, records: &[Record]) -> Result<Self, (PathBuf, StoreError)> {
        let Self {
            database,
            directory,
            ..
        } = self;
        // The database stops for good at the first failed write.
        drop(database);
        Self::reopen(&directory, records).map_err(|error| (directory, error))
    }

    /// Opens the file of a directory whose contents are known from elsewhere, and replaces them.
    pub fn reopen(directory: &Path, records: &[Record]) -> Result<Self, StoreError> {
        let opened = Self::open(directory)?;
        opened.store.replace(records)?;
        Ok(opened.store)
    }

    fn write(&self, records: &[Record], replace: bool) -> Result<(), StoreError> {
        let transaction = self.database.begin_write().map_err(failed)?;
        {
            let mut about = transaction.open_table(ABOUT).map_err(failed)?;
            about.insert(FORMAT, VERSION).map_err(failed)?;
            if replace {
                transaction.delete_table(ROWS).map_err(failed)?;
            }
            let mut rows = transaction.open_table(ROWS).map_err(failed)?;
            for record in records {
                let row = row(record)?;
                if removes(record) {
                    rows.remove(row.as_str()).map_err(failed)?;
                } else {
                    let value = serde_json::to_vec(record)?;
                    rows.insert(row.as_str(), value.as_slice())
                        .map_err(failed)?;
                }
            }
        }
        transaction.commit().map_err(failed)
    }
}

/// The file of a state directory.
pub fn file(directory: &Path) -> PathBuf {
    directory.join("addresses.redb")
}

/// Which pod has which address is nobody else's business.
fn prepare(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(file(directory))?;
    // A file whose name is not on disk is gone after a power cut, whatever was written to it.
    fs::File::open(directory)?.sync_all()
}

fn read(path: &Path, syncs: &Arc<AtomicU64>) -> Result<(Database, Vec<Record>), Flaw> {
    let (mut database, verified) = open(path, syncs).map_err(|error| flaw(error.into()))?;
    let sound = verified
        || database
            .check_integrity()
            .map_err(|error| flaw(error.into()))?;
    if !sound {
        return Err(Flaw::Checksum);
    }
    let records = rows(&database)?;
    Ok((database, records))
}

/// Opens the database, and says whether all that is in it was verified on the way.
fn open(path: &Path, syncs: &Arc<AtomicU64>) -> Result<(Database, bool), redb::DatabaseError> {
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    let repaired = Arc::<AtomicBool>::default();
    let noted = repaired.clone();
    let database = Database::builder()
        .set_cache_size(CACHE)
        .set_repair_callback(move |_| noted.store(true, Relaxed))
        .create_with_backend(CountedFile::new(file, syncs.clone())?)?;
    Ok((database, repaired.load(Relaxed)))
}

fn rows(database: &Database) -> Result<Vec<Record>, Flaw> {
    let transaction = database.begin_read().map_err(|error| flaw(error.into()))?;
    let about = match transaction.open_table(ABOUT) {
        Ok(about) => about,
        // Nothing was ever written.
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(flaw(error.into())),
    };
    let format = about.get(FORMAT).map_err(|error| flaw(error.into()))?;
    let format = format.map_or(0, |format| format.value());
    if format != VERSION {
        return Err(Flaw::Format(format));
    }
    let table = transaction
        .open_table(ROWS)
        .map_err(|error| flaw(error.into()))?;
    let mut records = Vec::new();
    for entry in table.iter().map_err(|error| flaw(error.into()))? {
        let (name, value) = entry.map_err(|error| flaw(error.into()))?;
        let record: Option<Record> = serde_json::from_slice(value.value()).ok();
        let named = record.filter(|record| row(record).is_ok_and(|row| row == name.value()));
        records.push(named.ok_or_else(|| Flaw::Row(name.value().to_owned()))?);
    }
    Ok(records)
}

/// What is the disk's or another process's fault says nothing about the contents.
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

fn move_aside(directory: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut number = 1;
    loop {
        let aside = directory.join(format!("addresses.redb.damaged-{number}"));
        if !aside.try_exists()? {
            fs::rename(path, &aside)?;
            fs::File::open(directory)?.sync_all()?;
            return Ok(aside);
        }
        number += 1;
    }
}

fn row(record: &Record) -> Result<String, serde_json::Error> {
    Ok(match record {
        Record::Identity(_) => "identity".to_owned(),
        Record::Attachment(key, _) => format!("attachment {}", serde_json::to_string(key)?),
        Record::Cooldown(address, _) => format!("cooldown {address}"),
        Record::Tombstone(key, _) => format!("tombstone {}", serde_json::to_string(key)?),
        Record::Releasing(name, _) => format!("releasing {name}"),
        Record::Lost(_) => "lost".to_owned(),
    })
}

fn removes(record: &Record) -> bool {
    matches!(
        record,
        Record::Attachment(_, None)
            | Record::Cooldown(_, None)
            | Record::Tombstone(_, None)
            | Record::Releasing(_, false)
            | Record::Lost(false)
    )
}
