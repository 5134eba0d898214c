use std::{error::Error, fmt, marker::PhantomData, time::Duration};

use super::Context;
use crate::QueueKey;

/// What to do with a key after a successful reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    pub(super) after: Option<Duration>,
}

impl Action {
    /// Nothing until something changes.
    pub const fn await_change() -> Self {
        Self { after: None }
    }

    /// Again after a time, changed or not.
    pub const fn requeue(after: Duration) -> Self {
        Self { after: Some(after) }
    }
}

/// Why a reconcile did not succeed, and whether trying again can help.
///
/// Any error converts into a retryable one, so `?` works; [`ReconcileError::terminal`] marks those
/// that only a change of the object can cure.
#[derive(Debug)]
pub struct ReconcileError {
    source: Box<dyn Error + Send + Sync>,
    terminal: bool,
}

impl ReconcileError {
    /// An error that another try may cure.
    pub fn retry(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            source: error.into(),
            terminal: false,
        }
    }

    /// An error that stays until the object changes.
    pub fn terminal(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            source: error.into(),
            terminal: true,
        }
    }

    /// Whether trying again is of no use.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// The error itself.
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
        write!(f, "{}", self.source)?;
        let mut cause = self.source.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// Brings the world in line with what a key says.
pub trait Reconciler<Q: QueueKey>: Send + Sync + 'static {
    /// Reconciles one key. Never called for the same key twice at a time.
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
