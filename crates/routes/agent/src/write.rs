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
