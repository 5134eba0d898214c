//! Times of each change: sent to the proxy, and committed to the kernel.

use std::{
    collections::HashMap,
    sync::{Condvar, Mutex},
    time::{Duration, Instant},
};

use crate::objects::Mark;

/// Shared by the relay, which sees events, and the listener, which sees commits.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    marks: Mutex<HashMap<Mark, Times>>,
    committed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    sent: Option<Instant>,
    committed: Option<Instant>,
}

impl Timeline {
    /// Marks that were not announced are ignored.
    pub(crate) fn expect(&self, mark: Mark) {
        self.marks.lock().unwrap().insert(mark, Times::default());
    }

    pub(crate) fn sent(&self, marks: &[Mark], now: Instant) {
        let mut known = self.marks.lock().unwrap();
        for mark in marks {
            if let Some(times) = known.get_mut(mark) {
                times.sent.get_or_insert(now);
            }
        }
    }

    pub(crate) fn committed(&self, marks: &[Mark], now: Instant) {
        let mut known = self.marks.lock().unwrap();
        for mark in marks {
            // The element is also reported when a later change deletes it.
            if let Some(times) = known.get_mut(mark).filter(|times| times.sent.is_some()) {
                times.committed.get_or_insert(now);
            }
        }
        self.committed.notify_all();
    }

    /// Waits for a change, and returns the time from event to commit.
    ///
    /// # Panics
    /// If it is not committed in time.
    pub(crate) fn wait(&self, mark: Mark, patience: Duration) -> Duration {
        let deadline = Instant::now() + patience;
        let mut known = self.marks.lock().unwrap();
        loop {
            if let Some(took) = known.get(&mark).and_then(Times::took) {
                known.remove(&mark);
                return took;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "{mark:?} is not in the kernel: {:?}",
                known.get(&mark)
            );
            known = self.committed.wait_timeout(known, left).unwrap().0;
        }
    }
}

impl Times {
    fn took(&self) -> Option<Duration> {
        Some(self.committed?.saturating_duration_since(self.sent?))
    }
}
