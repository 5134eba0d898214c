//! State over restarts: every change goes to a database file, in groups, before it is answered.

use std::{
    path::Path,
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use thiserror::Error;
use tokio::sync::watch;

use crate::kind::StorageId;

/// Objects by collection and key, with a NUL between.
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const VERSIONS: TableDefinition<'_, &str, u64> = TableDefinition::new("versions");
const NEWEST: &str = "newest";

/// Versions left out at each start. Watchers are told of a write before it is on disk, so a run
/// that crashed may have given out versions above the one kept; none of them may be used again.
const RESTART_JUMP: u64 = 1_000_000;

/// Why state cannot be kept or read.
#[derive(Debug, Error)]
pub enum PersistenceError {
    /// The directory cannot be made.
    #[error("create data directory {path}")]
    Directory {
        /// The directory.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The database refuses.
    #[error("read or write the database of the data directory")]
    Database(#[from] Box<redb::Error>),
    /// The thread that writes cannot be started.
    #[error("start the writer of the data directory")]
    Thread(#[source] std::io::Error),
}

fn failed(error: impl Into<redb::Error>) -> PersistenceError {
    PersistenceError::Database(Box::new(error.into()))
}

/// One change on its way to the file; no bytes for a removal.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) storage: StorageId,
    pub(crate) key: Arc<str>,
    pub(crate) version: u64,
    pub(crate) bytes: Option<Bytes>,
}

/// Everything a file held.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) version: u64,
    /// Collection and bytes of each object.
    pub(crate) objects: Vec<(String, Vec<u8>)>,
}

/// The way to the file.
#[derive(Debug)]
pub(crate) struct Journal {
    sender: Option<mpsc::Sender<Record>>,
    written: watch::Receiver<u64>,
    thread: Option<JoinHandle<()>>,
}

/// Opens or makes the database of a directory and reads what is there.
pub(crate) fn open(directory: &Path) -> Result<(Journal, Snapshot), PersistenceError> {
    let path = directory.join("objects.redb");
    make_private(directory, &path).map_err(|source| PersistenceError::Directory {
        path: directory.display().to_string(),
        source,
    })?;
    let database = Database::create(path).map_err(failed)?;
    let snapshot = read(&database)?;
    let (sender, receiver) = mpsc::channel();
    let (tell, written) = watch::channel(snapshot.version);
    let thread = std::thread::Builder::new()
        .name("weft-apiserver-journal".to_owned())
        .spawn(move || write_all(&database, &receiver, &tell))
        .map_err(PersistenceError::Thread)?;
    Ok((
        Journal {
            sender: Some(sender),
            written,
            thread: Some(thread),
        },
        snapshot,
    ))
}

/// Secrets are in it: only the owner may read the file, and the directory if it is made here.
fn make_private(directory: &Path, file: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(file)?
        .set_permissions(std::fs::Permissions::from_mode(0o600))
}

fn read(database: &Database) -> Result<Snapshot, PersistenceError> {
    let transaction = database.begin_write().map_err(failed)?;
    // Opening a table of a write transaction makes it.
    transaction.open_table(OBJECTS).map_err(failed)?;
    {
        let mut versions = transaction.open_table(VERSIONS).map_err(failed)?;
        let newest = versions.get(NEWEST).map_err(failed)?;
        let start = newest.map_or(0, |newest| newest.value() + RESTART_JUMP);
        versions.insert(NEWEST, start).map_err(failed)?;
    }
    transaction.commit().map_err(failed)?;
    let transaction = database.begin_read().map_err(failed)?;
    let versions = transaction.open_table(VERSIONS).map_err(failed)?;
    let mut snapshot = Snapshot {
        version: versions
            .get(NEWEST)
            .map_err(failed)?
            .map_or(0, |version| version.value()),
        objects: Vec::new(),
    };
    let objects = transaction.open_table(OBJECTS).map_err(failed)?;
    for entry in objects.iter().map_err(failed)? {
        let (key, bytes) = entry.map_err(failed)?;
        let storage = key
            .value()
            .split('\0')
            .next()
            .unwrap_or_default()
            .to_owned();
        snapshot.objects.push((storage, bytes.value().to_vec()));
    }
    Ok(snapshot)
}

/// Writes what has come in, all that waits in one transaction, until the journal is dropped.
fn write_all(database: &Database, records: &mpsc::Receiver<Record>, written: &watch::Sender<u64>) {
    while let Ok(first) = records.recv() {
        let batch: Vec<Record> = std::iter::once(first).chain(records.try_iter()).collect();
        let newest = batch
            .iter()
            .map(|record| record.version)
            .max()
            .unwrap_or_default();
        match write_batch(database, &batch, newest) {
            Ok(()) => written.send_modify(|version| *version = newest.max(*version)),
            Err(error) => {
                // Answers wait for their write; without it they must not be given.
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "state cannot be kept"
                );
                return;
            }
        }
    }
}

fn write_batch(database: &Database, batch: &[Record], newest: u64) -> Result<(), PersistenceError> {
    let transaction = database.begin_write().map_err(failed)?;
    {
        let mut objects = transaction.open_table(OBJECTS).map_err(failed)?;
        for record in batch {
            let key = format!("{}\0{}", record.storage, record.key);
            match &record.bytes {
                Some(bytes) => drop(objects.insert(key.as_str(), &**bytes).map_err(failed)?),
                None => drop(objects.remove(key.as_str()).map_err(failed)?),
            }
        }
        let mut versions = transaction.open_table(VERSIONS).map_err(failed)?;
        versions.insert(NEWEST, newest).map_err(failed)?;
    }
    transaction.commit().map_err(failed)?;
    Ok(())
}

impl Journal {
    pub(crate) fn record(&self, record: Record) {
        if let Some(sender) = &self.sender {
            // A writer that gave up has said so; waiting for it tells the client.
            let _ = sender.send(record);
        }
    }

    /// Whether nothing can be written any more: the thread gave up.
    pub(crate) fn is_broken(&self) -> bool {
        self.written.has_changed().is_err()
    }

    /// One whose thread gave up.
    #[cfg(test)]
    pub(crate) fn broken() -> Self {
        Self {
            sender: None,
            written: watch::channel(0).1,
            thread: None,
        }
    }

    /// Waits until a version is on disk; false when it never will be.
    pub(crate) async fn wait(&self, version: u64) -> bool {
        let mut written = self.written.clone();
        written.wait_for(|newest| *newest >= version).await.is_ok()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // The channel closes first, so that the thread writes what is left and ends.
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
