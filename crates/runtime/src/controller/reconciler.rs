//! The reconciler trait, its result and its error.

use std::{error::Error, fmt, marker::PhantomData, time::Duration};

use weft_model::error_text;

use super::Context;
use crate::QueueKey;

/// Next step for a key after a successful reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    pub(super) after: Option<Duration>,
}

impl Action {
    /// Waits for the next change.
    pub const fn await_change() -> Self {
        Self { after: None }
    }

    /// Reconciles again after `after`, changed or not.
    pub const fn requeue(after: Duration) -> Self {
        Self { after: Some(after) }
    }
}

/// Failure of a reconcile, retryable or terminal.
///
/// Any error converts into a retryable one, so `?` works; [`ReconcileError::terminal`] marks those
/// that only a change of the object can cure.
#[derive(Debug)]
pub struct ReconcileError {
    source: Box<dyn Error + Send + Sync>,
    terminal: bool,
}

impl ReconcileError {
    /// An error that a retry may cure.
    pub fn retry(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            source: error.into(),
            terminal: false,
        }
    }

    /// An error that stays until the object changes: the key is not retried.
    pub fn terminal(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            source: error.into(),
            terminal: true,
        }
    }

    /// Returns whether the key is not retried.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// The cause.
    pub fn into_inner(self) -> Box<dyn Error + Send + Sync> {
        self.source
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for ReconcileError {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

impl fmt::Display for ReconcileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&error_text(&*self.source))
    }
}

/// Moves the actual state towards the desired one, key by key.
pub trait Reconciler<Q: QueueKey>: Send + Sync + 'static {
    /// Reconciles one key. Never runs for the same key twice at a time.
    fn reconcile(
        &self,
        context: Context<Q>,
    ) -> impl Future<Output = Result<Action, ReconcileError>> + Send;
}

/// A reconciler from an async function.
pub fn reconcile_with<Q, F, Fut>(function: F) -> impl Reconciler<Q>
where
    Q: QueueKey,
    F: Fn(Context<Q>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Action, ReconcileError>> + Send + 'static,
{
    struct Function<Q, F>(F, PhantomData<fn(Q)>);
    impl<Q, F, Fut> Reconciler<Q> for Function<Q, F>
    where
        Q: QueueKey,
        F: Fn(Context<Q>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Action, ReconcileError>> + Send + 'static,
    {
        fn reconcile(
            &self,
            context: Context<Q>,
        ) -> impl Future<Output = Result<Action, ReconcileError>> + Send {
            (self.0)(context)
        }
    }
    Function(function, PhantomData)
}
