//! Persistence in a data directory: every change is committed to a database before it is acknowledged.
//!
//! Each record has a checksum, and so has the set of all records; the database checks its pages as
//! well. With damaged data the server does not start, unless `OnDamage::Salvage` is set. A commit that
//! a crash interrupted is not damage: the database rolls back to the one before, and nothing of it was
//! acknowledged.

mod seal;

use std::{
    fmt::Write as _,
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread::JoinHandle,
};

use bytes::Bytes;
use redb::{
    Database, ReadableDatabase as _, ReadableTable as _, TableDefinition, TableError,
    TableHandle as _,
};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;

use self::seal::{Seal, SealFile, StoredSeal};
use crate::kind::StorageId;

/// Objects with checksums, by collection and key with a NUL in between.
const RECORDS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("records");
/// Objects without checksums, as earlier versions wrote them.
const UNSEALED: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("versions");
const NEWEST: &str = "newest";
const COUNT: &str = "count";
const SUM: &str = "sum";

/// Resource versions skipped at each start. Watchers receive a write before it is on disk, so a run that
/// crashed may have sent versions above the persisted one; none of them may be used again.
const RESTART_JUMP: u64 = 1_000_000;

/// Limit of problems that one error lists.
const NAMED: usize = 10;

/// A data directory that cannot be read or written.
#[derive(Debug, Error)]
pub enum PersistenceError {
    /// The directory or a file of it cannot be used.
    #[error("cannot use data directory {path}")]
    Directory {
        /// As given to `Builder::open`.
        path: String,
        /// Of the directory, `objects.redb` or `objects.seal`.
        source: io::Error,
    },
    /// The database failed.
    #[error("cannot read or write the database of the data directory")]
    Database(#[from] Box<redb::Error>),
    /// The data on disk differ from what was written.
    #[error(
        "cannot open {path}: it is damaged: {}; --salvage-data-dir keeps the objects whose checksums \
         match",
        named(problems)
    )]
    Damaged {
        /// `objects.redb` of the data directory.
        path: String,
        /// One for each damaged place, with the key of the object where it can be read.
        problems: Vec<String>,
    },
    /// The key of ServiceAccount tokens cannot be read or written.
    #[error("cannot use the signing key of the data directory")]
    SigningKey(#[from] crate::auth::SigningKeyError),
    /// The writer thread cannot be started.
    #[error("cannot start the writer of the data directory")]
    Thread(#[source] io::Error),
}

fn named(problems: &[String]) -> String {
    let mut text = problems[..problems.len().min(NAMED)].join("; ");
    if let Some(more) = problems.len().checked_sub(NAMED).filter(|more| *more > 0) {
        let _ = write!(text, "; and {more} more");
    }
    text
}

fn failed(error: impl Into<redb::Error>) -> PersistenceError {
    PersistenceError::Database(Box::new(error.into()))
}

/// The handling of a damaged data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDamage {
    /// Fail with [`PersistenceError::Damaged`], and change nothing.
    #[default]
    Refuse,
    /// Move the damaged file aside and keep the objects whose checksums match.
    Salvage,
}

/// One change to write; without bytes it is a removal.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) storage: StorageId,
    pub(crate) key: Arc<str>,
    pub(crate) version: u64,
    pub(crate) bytes: Option<Bytes>,
}

/// The persisted state that a server starts with.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) version: u64,
    /// Collection and bytes of each object.
    pub(crate) objects: Vec<(String, Vec<u8>)>,
}

/// Handle of the writer thread; dropping it writes what is queued and joins the thread.
#[derive(Debug)]
pub(crate) struct Journal {
    sender: Option<mpsc::Sender<Record>>,
    written: watch::Receiver<u64>,
    thread: Option<JoinHandle<()>>,
}

/// The contents of a database, and the damage found in it.
#[derive(Debug, Default)]
struct Contents {
    version: u64,
    /// Records by their keys in the database.
    objects: Vec<(String, Vec<u8>)>,
    /// The seal of the records; `None` if they have no checksums.
    seal: Option<Seal>,
    problems: Vec<String>,
}

/// Opens or creates the database of a directory and reads its contents.
pub(crate) fn open(
    directory: &Path,
    on_damage: OnDamage,
) -> Result<(Journal, Snapshot), PersistenceError> {
    let path = directory.join("objects.redb");
    let unusable = |source| PersistenceError::Directory {
        path: directory.display().to_string(),
        source,
    };
    make_private(directory, &path).map_err(unusable)?;
    let (seal_file, stored) = SealFile::open(&directory.join("objects.seal")).map_err(unusable)?;
    let (database, mut contents) = read(&path, &stored)?;
    let database = match (database, on_damage) {
        (Some(database), _) if contents.problems.is_empty() => database,
        (_, OnDamage::Refuse) => {
            return Err(PersistenceError::Damaged {
                path: path.display().to_string(),
                problems: contents.problems,
            });
        }
        (damaged, OnDamage::Salvage) => {
            drop(damaged);
            salvage(directory, &path, &contents).map_err(unusable)?;
            Database::create(&path).map_err(failed)?
        }
    };
    contents.version += if contents.version > 0 {
        RESTART_JUMP
    } else {
        0
    };
    let seal = rewrite(&database, &contents)?;
    seal_file.write(seal).map_err(unusable)?;
    let writer = Writer {
        database,
        seal_file,
        seal,
    };
    let journal = start_writer(writer, contents.version)?;
    let snapshot = Snapshot {
        version: contents.version,
        objects: contents
            .objects
            .into_iter()
            .map(|(key, bytes)| (collection(&key).to_owned(), bytes))
            .collect(),
    };
    Ok((journal, snapshot))
}

/// Moves a damaged database aside, logs what is lost, and prepares a new file.
fn salvage(directory: &Path, path: &Path, contents: &Contents) -> io::Result<()> {
    let aside = move_aside(directory, path)?;
    for problem in &contents.problems {
        tracing::error!(problem, "data lost");
    }
    tracing::error!(
        objects = contents.objects.len(),
        moved_to = %aside.display(),
        "database is damaged, moved aside; continuing with the objects whose checksums match"
    );
    make_private(directory, path)
}

fn start_writer(writer: Writer, version: u64) -> Result<Journal, PersistenceError> {
    let (sender, receiver) = mpsc::channel();
    let (committed, written) = watch::channel(version);
    let thread = std::thread::Builder::new()
        .name("weft-apiserver-journal".to_owned())
        .spawn(move || writer.run(&receiver, &committed))
        .map_err(PersistenceError::Thread)?;
    Ok(Journal {
        sender: Some(sender),
        written,
        thread: Some(thread),
    })
}

/// The collection of a database key.
fn collection(key: &str) -> &str {
    key.split('\0').next().unwrap_or_default()
}

/// A database key in readable form.
fn shown(key: &str) -> String {
    key.replace('\0', " ")
}

/// Creates the file readable by its owner only, since it holds Secrets; likewise a new directory.
fn make_private(directory: &Path, file: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    check_owner(&fs::metadata(directory)?)?;
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(file)?
        .set_permissions(fs::Permissions::from_mode(0o600))?;
    // Without a sync of the directory a power failure can lose the new file's name.
    fs::File::open(directory)?.sync_all()
}

/// Refuses a directory that another user may write to: the objects and the signing key that are read
/// from it decide who gets in. Root does not count as another user, since it can write everywhere.
fn check_owner(metadata: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let (owner, own) = (metadata.uid(), rustix::process::geteuid().as_raw());
    let reason = if owner != own && owner != 0 {
        format!("it belongs to user {owner}: expected {own}")
    } else if metadata.mode() & WRITABLE_BY_OTHERS != 0 {
        let mode = metadata.mode() & 0o7777;
        format!("other users may write to it: its mode is {mode:04o}")
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

fn move_aside(directory: &Path, path: &Path) -> io::Result<PathBuf> {
    let names = (1..).map(|number| directory.join(format!("objects.redb.damaged-{number}")));
    for aside in names {
        if !aside.try_exists()? {
            fs::rename(path, &aside)?;
            fs::File::open(directory)?.sync_all()?;
            return Ok(aside);
        }
    }
    unreachable!("there are more numbers than files")
}

/// The database, unless it is too damaged to open, and what could be read of it.
fn read(
    path: &Path,
    stored: &StoredSeal,
) -> Result<(Option<Database>, Contents), PersistenceError> {
    let mut contents = Contents::default();
    // The library asserts properties of pages, which a damaged page may violate.
    let reading = AssertUnwindSafe(|| open_whole(path, &mut contents));
    let database = match catch_unwind(reading) {
        Ok(Ok(database)) => Some(database),
        Ok(Err(error)) if !is_damage(&error) => return Err(failed(error)),
        Ok(Err(error)) => {
            contents.problems.push(error.to_string());
            None
        }
        Err(_) => {
            contents
                .problems
                .push("the database cannot be read".to_owned());
            None
        }
    };
    match stored {
        StoredSeal::Damaged => {
            let problem = "objects.seal is damaged: the last acknowledged version is not known";
            contents.problems.push(problem.to_owned());
        }
        StoredSeal::Valid(seal) => {
            if contents.version < seal.version {
                contents.problems.push(format!(
                    "the newest version is {}, but version {} was acknowledged",
                    contents.version, seal.version
                ));
            }
            // Each version is committed once, so equal versions must have equal seals.
            let found = contents.seal.filter(|found| found.version == seal.version);
            if let Some(found) = found.filter(|found| found != seal) {
                contents.problems.push(format!(
                    "version {} has {} records: expected {}, or their checksums differ from objects.seal",
                    seal.version, found.count, seal.count
                ));
            }
            contents.version = contents.version.max(seal.version);
        }
        StoredSeal::Absent if contents.version > 0 => {
            tracing::warn!("objects.seal is missing, a lost last commit cannot be detected");
        }
        StoredSeal::Absent => {}
    }
    Ok((database, contents))
}

/// True when an error is about the contents of the file, not about access to it.
fn is_damage(error: &redb::Error) -> bool {
    match error {
        redb::Error::Io(error) => matches!(
            error.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
        ),
        redb::Error::PreviousIo | redb::Error::DatabaseAlreadyOpen => false,
        // Also `UpgradeRequired`: no version of this server wrote such an old format, and a flipped
        // bit in the header is enough for it.
        _ => true,
    }
}

/// Opens the database, reads its tables, then checks all its pages. Reading comes first, since the
/// check may repair damage, which then could no longer be reported.
fn open_whole(path: &Path, contents: &mut Contents) -> Result<Database, redb::Error> {
    let repaired = Arc::<AtomicBool>::default();
    let noted = repaired.clone();
    let mut database = Database::builder()
        .set_repair_callback(move |_| noted.store(true, Relaxed))
        .create(path)?;
    if repaired.load(Relaxed) {
        tracing::info!("database was not closed, rolled back to the last complete commit");
    }
    read_tables(&database, contents)?;
    if !repaired.load(Relaxed) && contents.problems.is_empty() && !database.check_integrity()? {
        tracing::warn!("damaged pages of the database were repaired");
        *contents = Contents::default();
        read_tables(&database, contents)?;
    }
    Ok(database)
}

fn read_tables(database: &Database, contents: &mut Contents) -> Result<(), redb::Error> {
    let transaction = database.begin_read()?;
    let numbers = match transaction.open_table(NUMBERS) {
        Ok(numbers) => numbers,
        // A new database.
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let number = |name: &str| -> Result<Option<u64>, redb::Error> {
        Ok(numbers.get(name)?.map(|number| number.value()))
    };
    contents.version = number(NEWEST)?.unwrap_or(0);
    let mut seal = Seal {
        version: contents.version,
        ..Seal::default()
    };
    match transaction.open_table(RECORDS) {
        Ok(records) => {
            for entry in records.iter()? {
                let (key, record) = entry?;
                seal.add(record.value());
                match seal::verified_bytes(key.value(), record.value()) {
                    Some(bytes) => {
                        let object = (key.value().to_owned(), bytes.to_vec());
                        contents.objects.push(object);
                    }
                    None => contents.problems.push(format!(
                        "the record of {} has a wrong checksum",
                        shown(key.value())
                    )),
                }
            }
            contents.seal = Some(seal);
            let committed = Seal {
                version: seal.version,
                count: number(COUNT)?.unwrap_or(0),
                sum: number(SUM)?.unwrap_or(0),
            };
            if committed != seal {
                contents.problems.push(format!(
                    "expected {} records, found {}, or their checksums differ",
                    committed.count, seal.count
                ));
            }
        }
        Err(TableError::TableDoesNotExist(_)) => read_unsealed(&transaction, contents)?,
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Reads records without checksums: only a record that is not JSON is known to be damaged.
fn read_unsealed(
    transaction: &redb::ReadTransaction,
    contents: &mut Contents,
) -> Result<(), redb::Error> {
    let objects = match transaction.open_table(UNSEALED) {
        Ok(objects) => objects,
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for entry in objects.iter()? {
        let (key, bytes) = entry?;
        if serde_json::from_slice::<Value>(bytes.value()).is_ok() {
            let object = (key.value().to_owned(), bytes.value().to_vec());
            contents.objects.push(object);
        } else {
            let key = shown(key.value());
            contents
                .problems
                .push(format!("the record of {key} is not JSON"));
        }
    }
    Ok(())
}

/// Writes all records with checksums, at the version with which this run begins.
fn rewrite(database: &Database, contents: &Contents) -> Result<Seal, PersistenceError> {
    let transaction = database.begin_write().map_err(failed)?;
    let known: Vec<String> = transaction
        .list_tables()
        .map_err(failed)?
        .map(|table| table.name().to_owned())
        .collect();
    let is_sealed = known.iter().any(|name| name == RECORDS.name());
    let mut seal = Seal {
        version: contents.version,
        ..Seal::default()
    };
    {
        let mut records = transaction.open_table(RECORDS).map_err(failed)?;
        for (key, bytes) in &contents.objects {
            let record = seal::with_checksum(key, bytes);
            seal.add(&record);
            // Records with checksums are in the table already.
            if !is_sealed {
                records.insert(key.as_str(), &*record).map_err(failed)?;
            }
        }
        write_seal(&transaction, seal)?;
    }
    transaction.delete_table(UNSEALED).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    Ok(seal)
}

fn write_seal(transaction: &redb::WriteTransaction, seal: Seal) -> Result<(), PersistenceError> {
    let mut numbers = transaction.open_table(NUMBERS).map_err(failed)?;
    for (name, number) in [(NEWEST, seal.version), (COUNT, seal.count), (SUM, seal.sum)] {
        numbers.insert(name, number).map_err(failed)?;
    }
    Ok(())
}

/// State of the writer thread.
#[derive(Debug)]
struct Writer {
    database: Database,
    seal_file: SealFile,
    /// The seal of the database's records.
    seal: Seal,
}

impl Writer {
    /// Commits changes, all that are queued in one transaction, until the journal is dropped.
    fn run(mut self, records: &mpsc::Receiver<Record>, written: &watch::Sender<u64>) {
        while let Ok(first) = records.recv() {
            let batch: Vec<Record> = std::iter::once(first).chain(records.try_iter()).collect();
            match self.write(&batch) {
                Ok(()) => written.send_modify(|version| *version = self.seal.version),
                Err(error) => {
                    // Dropping `written` fails all answers that wait for their write.
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "cannot write to the data directory"
                    );
                    return;
                }
            }
        }
        if let Err(error) = self.seal_file.sync() {
            tracing::warn!(%error, "cannot sync objects.seal");
        }
    }

    fn write(&mut self, batch: &[Record]) -> Result<(), PersistenceError> {
        let mut seal = self.seal;
        let transaction = self.database.begin_write().map_err(failed)?;
        {
            let mut objects = transaction.open_table(RECORDS).map_err(failed)?;
            for record in batch {
                seal.version = seal.version.max(record.version);
                let key = format!("{}\0{}", record.storage, record.key);
                let old = match &record.bytes {
                    Some(bytes) => {
                        let record = seal::with_checksum(&key, bytes);
                        seal.add(&record);
                        objects.insert(key.as_str(), &*record).map_err(failed)?
                    }
                    None => objects.remove(key.as_str()).map_err(failed)?,
                };
                if let Some(old) = old {
                    seal.remove(old.value());
                }
            }
        }
        write_seal(&transaction, seal)?;
        transaction.commit().map_err(failed)?;
        self.seal = seal;
        self.seal_file
            .write(seal)
            .map_err(|error| failed(redb::Error::Io(error)))
    }
}

impl Journal {
    pub(crate) fn record(&self, record: Record) {
        if let Some(sender) = &self.sender {
            // A failed writer has logged its error; `wait` reports it to the client.
            let _ = sender.send(record);
        }
    }

    /// True when the writer thread has failed and nothing can be persisted.
    pub(crate) fn is_broken(&self) -> bool {
        self.written.has_changed().is_err()
    }

    /// A journal whose writer thread has failed.
    #[cfg(test)]
    pub(crate) fn broken() -> Self {
        Self {
            sender: None,
            written: watch::channel(0).1,
            thread: None,
        }
    }

    /// Waits until a version is on disk; false when the writer thread has failed.
    pub(crate) async fn wait(&self, version: u64) -> bool {
        let mut written = self.written.clone();
        written.wait_for(|newest| *newest >= version).await.is_ok()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Closing the channel makes the thread write what is queued and end.
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
