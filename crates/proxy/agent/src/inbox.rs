//! The inbox of a family's loop, filled by the watcher.

use std::collections::BTreeMap;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use weft_model::ObjectKey;
use weft_proxy::{Model, Settings};

/// Shared by the watcher, which fills it, and one family's loop, which empties it.
#[derive(Debug)]
pub(crate) struct Inbox {
    content: Mutex<Content>,
    arrived: Notify,
    /// True once all initial lists have arrived and the node is known.
    complete: watch::Sender<bool>,
}

/// The state to sync.
#[derive(Debug)]
pub(crate) struct Content {
    /// The Services.
    pub(crate) model: Model,
    /// Everything but Services.
    pub(crate) settings: Settings,
    /// For each Service, the times of changes that are not in the kernel yet.
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
        self.content.lock()
    }

    /// Wakes the loop.
    pub(crate) fn wake(&self) {
        self.arrived.notify_one();
    }

    /// Resolves when something arrived since the last call.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Lets the loop start.
    pub(crate) fn complete(&self) {
        self.complete
            .send_if_modified(|complete| !std::mem::replace(complete, true));
    }

    /// Resolves when the loop may start.
    pub(crate) async fn completed(&self) {
        // The sender lives as long as `self`.
        let _ = self.complete.subscribe().wait_for(|done| *done).await;
    }
}
