//! Replay of releases that plugins queued on disk while the daemon did not run.
//!
//! They are carried out before the first ADD of this run is answered: an address must not look
//! assigned because its release was not delivered. A queue that cannot be used does not prevent the
//! start: the plugin itself refuses an ADD whose release is still queued.

use std::{path::Path, time::Duration};

use futures::{StreamExt as _, stream};
use tokio::{
    task::{JoinError, spawn_blocking},
    time::Instant,
};
use weft_cni::{Queue, QueueError, QueueGuard, QueuedRelease, Unreadable, Waiting};

use crate::rest::RestApi;

/// Time to wait for a plugin that is replaying the queue. It finds no daemon, and gives up after a
/// fraction of this.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
/// Releases in flight at once: they share commits.
const CONCURRENCY: usize = 64;

/// Outcome of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Releases that were carried out.
    pub released: usize,
    /// Releases that stay queued.
    pub kept: usize,
    /// Entries that are not releases: put aside, or skipped.
    pub damaged: usize,
}

/// The queue was not replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error("cannot open the release queue")]
    Queue(#[from] QueueError),
    /// A plugin has been replaying it for too long.
    #[error("release queue is locked by another process")]
    Busy,
    /// The thread that reads it has panicked.
    #[error("cannot read the release queue: reader task failed")]
    Thread(#[from] JoinError),
}

/// Carries out the releases that are queued in a directory, which need not exist.
pub async fn replay(rest: &RestApi, directory: &Path) -> Result<Replayed, ReplayError> {
    let Some((guard, waiting)) = take(directory).await? else {
        return Ok(Replayed::default());
    };
    for Unreadable { path, reason } in &waiting.unreadable {
        tracing::error!(path = %path.display(), reason, "release file is unreadable, skipped; garbage collection frees its address");
    }
    let mut replayed = Replayed {
        damaged: waiting.unreadable.len(),
        ..Replayed::default()
    };
    let releases = stream::iter(waiting.releases).map(|entry| async {
        let done = release(rest, &entry).await;
        (entry, done)
    });
    let mut done = Vec::new();
    let mut outcomes = releases.buffer_unordered(CONCURRENCY);
    while let Some((entry, released)) = outcomes.next().await {
        if released {
            done.push(entry);
        } else {
            replayed.kept += 1;
        }
    }
    // A release that is not durable would be undone by the next start.
    if !rest
        .handle
        .read(|snapshot| snapshot.store_open)
        .await
        .unwrap_or(false)
    {
        replayed.kept += done.len();
        return Ok(replayed);
    }
    replayed.released = done.len();
    spawn_blocking(move || remove(&guard, &done)).await??;
    Ok(replayed)
}

/// The right to remove, with everything that is queued; none if the queue is empty.
async fn take(directory: &Path) -> Result<Option<(QueueGuard, Waiting)>, ReplayError> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        let queue = Queue::new(directory);
        let taken = spawn_blocking(move || {
            if queue.is_empty()? {
                return Ok(Taken::Nothing);
            }
            let Some(guard) = queue.lock()? else {
                return Ok(Taken::Busy);
            };
            let waiting = guard.waiting()?;
            Ok::<_, QueueError>(Taken::All(guard, waiting))
        });
        match taken.await?? {
            Taken::Nothing => return Ok(None),
            Taken::All(guard, waiting) => return Ok(Some((guard, waiting))),
            Taken::Busy if Instant::now() >= deadline => return Err(ReplayError::Busy),
            Taken::Busy => tokio::time::sleep(PAUSE).await,
        }
    }
}

enum Taken {
    Nothing,
    Busy,
    All(QueueGuard, Waiting),
}

async fn release(rest: &RestApi, entry: &QueuedRelease) -> bool {
    let outcome = rest.release(&entry.request).await;
    let done = outcome.return_code.is_success();
    if !done {
        let container = &entry.request.infra_container_id;
        tracing::error!(container, outcome = %outcome.message, "queued release refused");
    }
    done
}

fn remove(guard: &QueueGuard, done: &[QueuedRelease]) -> Result<(), QueueError> {
    done.iter().try_for_each(|entry| guard.remove(entry))
}
