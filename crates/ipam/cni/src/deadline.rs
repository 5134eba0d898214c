//! One end for everything a call does.

use std::time::{Duration, Instant};

/// When a call has to be over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(span: Duration) -> Self {
        Self(Instant::now() + span)
    }

    /// This, or sooner.
    pub(crate) fn at_most(self, span: Duration) -> Self {
        Self(self.0.min(Instant::now() + span))
    }

    /// What is left; none when it is over.
    pub(crate) fn remaining(self) -> Option<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}
