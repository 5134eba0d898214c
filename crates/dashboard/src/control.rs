//! The interface for actions on processes.

use futures::future::BoxFuture;

use crate::state::Action;

/// Starts and stops the processes that the page shows.
pub trait Control: Send + Sync + 'static {
    /// Starts the action, and resolves when it is under way. The page shows the error.
    fn act<'a>(&'a self, process: &'a str, action: Action) -> BoxFuture<'a, Result<(), String>>;
}
