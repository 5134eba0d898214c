//! Wall clock of the allocator, and times as Kubernetes objects write them.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use weft_ipam::allocator::WallTime;

/// Source of wall-clock time. Cooldowns are written in it, for other processes to read.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> WallTime + Send + Sync>);

impl WallClock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            WallTime(since.map_or(0, |since| {
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            }))
        })
    }

    /// A clock that shows the result of a function.
    pub fn new(read: impl Fn() -> WallTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    pub(super) fn now(&self) -> WallTime {
        (self.0)()
    }
}

/// A time in the format of Kubernetes objects.
pub(super) fn rfc3339(wall: WallTime) -> String {
    let millis = i64::try_from(wall.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(millis / 1000).map_or_else(|_| String::new(), |at| at.to_string())
}

/// Duration until the clock shows this time.
pub(super) fn until(now: WallTime, at: WallTime) -> Duration {
    Duration::from_millis(at.0.saturating_sub(now.0))
}
