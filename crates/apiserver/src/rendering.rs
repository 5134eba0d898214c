//! Rendering of large answers: outside the threads that serve connections, and only some at a time.
//!
//! Tables, pretty JSON, YAML and compressed answers are built whole. That takes time and several times the
//! memory of the objects, so a client that asks for many of them waits for its own answers, and other clients
//! do not. Lists as plain JSON are sent as they are read and need none of this.

use std::time::Duration;

use tokio::{sync::Semaphore, time::timeout};

use crate::{
    status::{ApiError, Outcome},
    write_lock::off_worker,
};

/// Bytes of stored objects, or of JSON, from which an answer is large.
pub(crate) const LARGE: usize = 256 * 1024;

/// Large answers that are rendered at a time.
const MAX_CONCURRENT: usize = 2;

/// How long an answer waits for its turn: upstream's `--request-timeout`.
const DEADLINE: Duration = Duration::from_secs(60);

/// Turns to render a large answer.
#[derive(Debug)]
pub(crate) struct Rendering(Semaphore);

impl Default for Rendering {
    fn default() -> Self {
        Self(Semaphore::new(MAX_CONCURRENT))
    }
}

impl Rendering {
    /// Renders a large answer in its turn.
    pub(crate) async fn large<T>(&self, render: impl FnOnce() -> T) -> Outcome<T> {
        // No timer unless there is something to wait for.
        let permit = match self.0.try_acquire() {
            Ok(permit) => Ok(permit),
            Err(_) => timeout(DEADLINE, self.0.acquire())
                .await
                .map_err(|_| ApiError::took_too_long())?,
        };
        let rendered = off_worker(render);
        drop(permit);
        Ok(rendered)
    }
}
