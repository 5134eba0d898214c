use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use weft_ipam::allocator::Wall;

/// What the clock on the wall shows. Cooldowns are written by it, for other processes to read.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> Wall + Send + Sync>);

impl WallClock {
    /// The machine's.
    pub fn system() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            Wall(since.map_or(0, |since| {
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            }))
        })
    }

    /// One that shows what a function says.
    pub fn new(read: impl Fn() -> Wall + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    pub(super) fn now(&self) -> Wall {
        (self.0)()
    }
}

/// A time as objects have it.
pub(super) fn rfc3339(wall: Wall) -> String {
    let millis = i64::try_from(wall.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(millis / 1000).map_or_else(|_| String::new(), |at| at.to_string())
}

/// How long until the clock shows this.
pub(super) fn until(now: Wall, at: Wall) -> Duration {
    Duration::from_millis(at.0.saturating_sub(now.0))
}
