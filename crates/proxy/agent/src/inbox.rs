//! What the watches hand over to one family's loop.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use weft_model::ObjectKey;
use weft_proxy::{Model, Settings};

/// Shared between the watches, which fill it, and one family's loop, which empties it.
#[derive(Debug)]
pub(crate) struct Inbox {
    content: Mutex<Content>,
    arrived: Notify,
    /// Whether everything that existed at the start is in, and the node is known.
    complete: watch::Sender<bool>,
}

/// What came in.
#[derive(Debug)]
pub(crate) struct Content {
    /// The Services.
    pub(crate) model: Model,
    /// Everything besides them.
    pub(crate) settings: Settings,
    /// For each Service, when the changes happened that are not in the kernel yet.
    pub(crate) triggers: BTreeMap<ObjectKey, Vec<Timestamp>>,
}

impl Inbox {
    pub(crate) fn new(model: Model, settings: Settings) -> Self {
        Self {
            content: Mutex::new(Content {
                model,
                settings,
                triggers: BTreeMap::new(),
            }),
            arrived: Notify::new(),
            complete: watch::Sender::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the loop.
    pub(crate) fn wake(&self) {
        self.arrived.notify_one();
    }

    /// Resolves when something came in since the last time.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Lets the loop begin.
    pub(crate) fn complete(&self) {
        self.complete
            .send_if_modified(|complete| !std::mem::replace(complete, true));
    }

    /// Resolves when the loop may begin.
    pub(crate) async fn completed(&self) {
        // The sender lives as long as this.
        let _ = self.complete.subscribe().wait_for(|done| *done).await;
    }
}
