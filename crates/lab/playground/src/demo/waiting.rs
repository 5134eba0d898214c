//! Polling of conditions with a time limit.

use std::time::{Duration, Instant};

use super::DemoError;

/// Time limit of every condition, long enough for a machine that runs other tests.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

/// Polling interval.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// An observed state, and whether it meets the condition.
pub(super) struct Look {
    done: bool,
    last: String,
}

pub(super) fn look(done: bool, last: String) -> Look {
    Look { done, last }
}

/// Polls until the condition is met. An error of the API counts as not met, because a step may have
/// broken the API on purpose.
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
