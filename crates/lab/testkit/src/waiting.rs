//! Waits for conditions that have no notification.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Polls a condition of other processes or threads.
///
/// # Panics
/// If it is not met in this time.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < limit, "never: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
