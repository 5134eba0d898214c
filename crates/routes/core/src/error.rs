use std::time::Duration;

use weft_model::SharedStr;

/// Why a provider did not do what it was asked for, sorted by what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// A passing failure: a dropped connection, a bad gateway. Nothing was changed.
    #[error("passing failure: {0}")]
    Retry(SharedStr),
    /// Too many calls. With the time to wait, where the provider says it.
    #[error("rate limit exceeded")]
    RateLimited {
        /// How long to wait.
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
    /// The table is not what we believed: the destination is taken, or changed under us.
    #[error("route table differs from what was believed")]
    Conflict,
    /// Our credentials do not allow it.
    #[error("not allowed")]
    Forbidden,
    /// What the call was about is gone: for a delete that is what was wanted.
    #[error("gone")]
    Gone,
    /// The provider will never accept this.
    #[error("refused: {0}")]
    Invalid(SharedStr),
    /// The answer cannot be understood.
    #[error("answer makes no sense: {0}")]
    Garbage(SharedStr),
    /// No answer came in time: it may have happened or not.
    #[error("no answer in time")]
    Uncertain,
}

impl ProviderError {
    /// Whether the table has to be read before anything else is believed about the destination.
    pub fn needs_list(&self) -> bool {
        matches!(self, Self::Conflict | Self::Uncertain | Self::Garbage(_))
    }

    /// A word for a metric label, from a closed set.
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
