//! Writes to the API server that must end within the leadership term.

/// A write failed, or was cut off by the end of the leadership term.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The write may have happened all the same.
    #[error("leadership lost before the write was answered")]
    NotLeading,
}

impl WriteError {
    /// The result of a write that ran for as long as this process leads.
    pub(crate) fn of(fenced: Option<kube::Result<()>>) -> Result<(), Self> {
        match fenced {
            Some(result) => Ok(result?),
            None => Err(Self::NotLeading),
        }
    }
}
