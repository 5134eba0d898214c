//! The interface for actions on processes.

use std::error::Error;

use futures::future::BoxFuture;

use crate::state::Action;

/// Failure of an action; the page shows its text.
#[derive(Debug, thiserror::Error)]
pub enum ActionError {
    /// No process has this name.
    #[error("unknown process {0}")]
    UnknownProcess(String),
    /// The process could not be started or stopped.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

/// Starts and stops the processes that the page shows.
pub trait Control: Send + Sync + 'static {
    /// Starts the action, and resolves when it is under way. The page shows the error.
    fn act<'a>(
        &'a self,
        process: &'a str,
        action: Action,
    ) -> BoxFuture<'a, Result<(), ActionError>>;
}
