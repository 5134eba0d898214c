//! The store on a blocking thread, used by one task at a time.

use std::path::PathBuf;

use tokio::task::JoinHandle;
use weft_ipam::pool::Record;
use weft_model::{Moment, SharedStr};

use crate::store::{Opened, Store, StoreError};

/// State of the store.
pub(crate) enum Disk {
    /// Ready for records.
    Idle(Store),
    /// A task is running.
    Busy(JoinHandle<Done>),
    /// Accepts no records; opened again at this time.
    Broken { again: Moment },
}

/// Result of a task.
pub(crate) enum Done {
    Committed(Result<Store, StoreError>),
    /// The contents were replaced by a snapshot.
    Replaced(Result<Store, StoreError>),
    /// A store that could not be written before, with its contents replaced by a snapshot.
    Reopened(Result<Box<Opened>, StoreError>),
    /// A store that could not be opened before.
    Opened(Result<Box<Opened>, StoreError>),
}

impl Disk {
    pub(crate) fn commit(store: Store, records: Vec<Record>) -> Self {
        Self::Busy(tokio::task::spawn_blocking(move || {
            let result = store.commit(&records);
            Done::Committed(result.map(|()| store))
        }))
    }

    pub(crate) fn replace(store: Store, records: Vec<Record>) -> Self {
        Self::Busy(tokio::task::spawn_blocking(move || {
            let result = store.replace(&records);
            Done::Replaced(result.map(|()| store))
        }))
    }

    /// Opens it again and replaces its contents without reading them.
    pub(crate) fn recover(directory: PathBuf, boot: SharedStr, records: Vec<Record>) -> Self {
        Self::Busy(tokio::task::spawn_blocking(move || {
            Done::Reopened(Store::reopen(&directory, &boot, &records).map(Box::new))
        }))
    }

    pub(crate) fn open(directory: PathBuf, boot: SharedStr) -> Self {
        Self::Busy(tokio::task::spawn_blocking(move || {
            Done::Opened(Store::open(&directory, &boot).map(Box::new))
        }))
    }

    /// Result of the running task; pending for ever if there is none. Cancel safe.
    pub(crate) async fn done(&mut self) -> Done {
        let Self::Busy(work) = self else {
            return std::future::pending().await;
        };
        match work.await {
            Ok(done) => done,
            // A panic in the database is a failed write: its records are not durable.
            Err(error) => Done::Replaced(Err(StoreError::Task(error))),
        }
    }
}
