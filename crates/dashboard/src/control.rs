use futures::future::BoxFuture;

use crate::state::Action;

/// Starts and stops the processes that the page shows.
pub trait Control: Send + Sync + 'static {
    /// Does it, and resolves when it is under way. The error is for people.
    fn act<'a>(&'a self, process: &'a str, action: Action) -> BoxFuture<'a, Result<(), String>>;
}
