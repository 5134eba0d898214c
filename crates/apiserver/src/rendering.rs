//! Rendering of large answers: off the threads that serve connections, and only a few at a time.
//!
//! Tables, indented JSON, YAML and compressed answers are built whole. That takes time and several times
//! the memory of the objects, so at most [`MAX_CONCURRENT`] are built at once and the others wait. Lists as
//! plain JSON are streamed and need no permit.

use std::time::Duration;

use tokio::{sync::Semaphore, time::timeout};

use crate::{
    status::{ApiError, Outcome},
    write_lock::off_worker,
};

/// Size of a large answer, in bytes of stored objects or of JSON.
pub(crate) const LARGE: usize = 256 * 1024;

/// Large answers rendered at once.
const MAX_CONCURRENT: usize = 2;

/// Limit of waiting for a permit: upstream's `--request-timeout`.
const DEADLINE: Duration = Duration::from_secs(60);

/// Permits to render large answers.
#[derive(Debug)]
pub(crate) struct Rendering(Semaphore);

impl Default for Rendering {
    fn default() -> Self {
        Self(Semaphore::new(MAX_CONCURRENT))
    }
}

impl Rendering {
    /// Renders a large answer once a permit is free; 504 after [`DEADLINE`].
    pub(crate) async fn large<T>(&self, render: impl FnOnce() -> T) -> Outcome<T> {
        // Without contention no timer is created.
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
