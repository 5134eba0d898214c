//! Result of a write to the API server, as an event of a state machine.

/// Result of a write, as far as the state machines need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The write was acknowledged.
    Written,
    /// Failed, or not answered: the write may have happened all the same.
    Failed,
}

impl<T> From<&Result<(), T>> for WriteOutcome {
    fn from(result: &Result<(), T>) -> Self {
        match result {
            Ok(()) => Self::Written,
            Err(_) => Self::Failed,
        }
    }
}
