//! Writes to the API server that must end within the leadership term.

use weft_runtime::Context;

use crate::controller::RoutesKey;

/// A write failed, or was cut off by the end of the leadership term.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The write may have happened all the same.
    #[error("leadership lost before the write was answered")]
    NotLeading,
}

/// Result of a write, as far as the state machines need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
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

/// Runs a write for as long as this process leads.
pub(crate) async fn fenced(
    context: &Context<RoutesKey>,
    write: impl Future<Output = kube::Result<()>>,
) -> Result<(), WriteError> {
    match context.fenced(write).await {
        Some(result) => Ok(result?),
        None => Err(WriteError::NotLeading),
    }
}
