//! The store, used by one task at a time and never on the thread that answers.

use std::path::PathBuf;

use tokio::task::JoinHandle;
use weft_ipam::pool::Record;
use weft_model::{Moment, SharedStr};

use crate::store::{Opened, Store, StoreError};

/// What the store is at.
pub(crate) enum Disk {
    /// Waits for records.
    Idle(Store),
    /// At work.
    Busy(JoinHandle<Done>),
    /// Takes no records. It is tried again then.
    Broken { again: Moment },
}

/// What came of it.
pub(crate) enum Done {
    Committed(Result<Store, StoreError>),
    /// Everything was replaced by a snapshot.
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

    /// Opens it again; its contents are not looked at.
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

    /// The end of what it is at; never if it is at nothing. Safe to cancel.
    pub(crate) async fn done(&mut self) -> Done {
        let Self::Busy(work) = self else {
            return std::future::pending().await;
        };
        match work.await {
            Ok(done) => done,
            // A defect of the database is a failed write: what was being written is not durable.
            Err(error) => {
                let source = std::io::Error::other(error);
                let path = "of the store".to_owned();
                Done::Replaced(Err(StoreError::Directory { path, source }))
            }
        }
    }
}
