//! Errors of route providers.

use std::time::Duration;

use weft_model::SharedStr;

/// An error of a provider, classified by how to react to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// A temporary failure: a dropped connection, a bad gateway. Nothing was changed.
    #[error("temporary failure: {0}")]
    Retry(SharedStr),
    /// Too many calls.
    #[error("rate limit exceeded")]
    RateLimited {
        /// Time to wait, where the provider says it.
        after: Option<Duration>,
    },
    /// Another action runs on the same table.
    #[error("route table is locked")]
    Locked,
    /// The table is full.
    #[error("route quota is exhausted")]
    Quota,
    /// The node cannot be routed to yet: not attached, not running, gateway not reachable.
    #[error("node is not ready to be routed to: {0}")]
    NotReady(SharedStr),
    /// The table is not what the plan assumed: the destination is taken, or was changed from
    /// outside.
    #[error("route table differs from the cached one")]
    Conflict,
    /// The credentials do not allow it.
    #[error("permission denied")]
    Forbidden,
    /// The object of the call does not exist; a delete counts as done.
    #[error("not found")]
    Gone,
    /// The provider will never accept this.
    #[error("refused: {0}")]
    Invalid(SharedStr),
    /// The answer cannot be decoded.
    #[error("invalid answer: {0}")]
    Garbage(SharedStr),
    /// No clear answer: the change may have happened or not.
    #[error("no clear answer, outcome unknown")]
    Uncertain,
}

impl ProviderError {
    /// True if the table has to be read before the destination is changed again.
    pub fn needs_list(&self) -> bool {
        matches!(self, Self::Conflict | Self::Uncertain | Self::Garbage(_))
    }

    /// Value of a metric label, from a closed set.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Retry(_) => "retry",
            Self::RateLimited { .. } => "rate_limited",
            Self::Locked => "locked",
            Self::Quota => "quota",
            Self::NotReady(_) => "not_ready",
            Self::Conflict => "conflict",
            Self::Forbidden => "forbidden",
            Self::Gone => "gone",
            Self::Invalid(_) => "invalid",
            Self::Garbage(_) => "garbage",
            Self::Uncertain => "uncertain",
        }
    }
}
