//! Deadline of a call, shared by all of its steps.

use std::time::{Duration, Instant};

/// The time at which a call ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(span: Duration) -> Self {
        Self(Instant::now() + span)
    }

    /// This deadline or `span` from now, the earlier one.
    pub(crate) fn at_most(self, span: Duration) -> Self {
        Self(self.0.min(Instant::now() + span))
    }

    /// Time left; none once the deadline has passed.
    pub(crate) fn remaining(self) -> Option<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}
