//! Waiting for what must come about.

use std::time::{Duration, Instant};

use super::DemoError;

/// The longest that anything may take; machines that are busy with tests need some of it.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

/// How often a condition is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// How something looks, and whether that is what is waited for.
pub(super) struct Look {
    done: bool,
    last: String,
}

pub(super) fn look(done: bool, last: String) -> Look {
    Look { done, last }
}

/// Looks until it is there. A refusal of the API is an answer like any other: it may be broken on
/// purpose.
pub(super) async fn until(
    what: &'static str,
    mut test: impl AsyncFnMut() -> Result<Look, DemoError>,
) -> Result<(), DemoError> {
    let begun = Instant::now();
    loop {
        let seen = match test().await {
            Ok(seen) => seen,
            Err(DemoError::Api(error)) => look(false, error.to_string()),
            Err(error) => return Err(error),
        };
        if seen.done {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            let last = seen.last;
            return Err(DemoError::Late { what, last });
        }
        tokio::time::sleep(LOOK).await;
    }
}
