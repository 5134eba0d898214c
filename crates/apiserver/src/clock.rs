//! Wall clock of the server, derived from the clock of the tokio runtime.
//!
//! Timestamps are the wall clock at start plus what the runtime's clock has advanced since, so a
//! test that pauses and advances time sees timestamps advance with it.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Wall time derived from the runtime's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    wall: Timestamp,
    started: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            wall: Timestamp::now(),
            started: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.started.elapsed()).unwrap_or_default();
        self.wall.checked_add(elapsed).unwrap_or(self.wall)
    }

    /// Now as objects carry it: whole seconds, UTC.
    pub(crate) fn now_text(&self) -> String {
        seconds_text(self.now())
    }
}

/// RFC 3339 in whole seconds, as `metav1.Time` prints.
pub(crate) fn seconds_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// RFC 3339 with six decimals, as `metav1.MicroTime` prints.
pub(crate) fn micros_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
