//! Errors of lists and watches, and what they mean for the informer.

use std::time::Duration;

use kube::core::Status;
use thiserror::Error;

/// Failure of a list or watch.
#[derive(Clone, Debug, Error)]
pub enum WatchError {
    /// The server answered with a failure.
    #[error("{method} {path}: {} ({})", status.message, status.code)]
    Api {
        /// `list` or `watch`.
        method: &'static str,
        /// Path of the collection.
        path: String,
        /// The server's answer.
        status: Box<Status>,
        /// `Retry-After` of the answer.
        retry_after: Option<Duration>,
    },
    /// The request could not be sent, or the stream broke.
    #[error("connection: {0}")]
    Connection(String),
    /// Nothing, not even a bookmark, arrived for the idle limit.
    #[error("no data or bookmark for {0:?}")]
    Idle(Duration),
    /// A streaming list did not mark the end of the initial state.
    #[error("streaming list has no end mark")]
    Unmarked,
    /// The answer breaks the list/watch protocol.
    #[error("protocol: {0}")]
    Protocol(String),
    /// A list showed an older state than one already seen.
    #[error("the server listed version {listed}, older than the known {known}")]
    Stale {
        /// The version of the list.
        listed: String,
        /// The newest version seen before.
        known: String,
    },
}

/// Meaning of a failed request for the informer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The version asked for is gone: list again.
    Expired,
    /// The version asked for has not been reached by this server.
    TooLarge,
    /// The server does not know this parameter or this way of listing.
    Refused,
    /// The kind is not served (404).
    Missing,
    /// Credentials are refused (401) or not sufficient (403).
    Forbidden,
    /// Try again later.
    Transient,
}

impl WatchError {
    pub(crate) fn verdict(&self) -> Verdict {
        let Self::Api { status, .. } = self else {
            return Verdict::Transient;
        };
        if is_too_large(status) {
            return Verdict::TooLarge;
        }
        match (status.code, status.reason.as_str()) {
            (410, _) | (_, "Expired" | "Gone") => Verdict::Expired,
            (404, _) => Verdict::Missing,
            (401 | 403, _) => Verdict::Forbidden,
            (400 | 422, _) => Verdict::Refused,
            _ => Verdict::Transient,
        }
    }

    /// Wait that the server asked for before the next request.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Api { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// The server's cache lags behind the version asked for (a 504 with a cause of this name; older
/// servers only say it in the message).
fn is_too_large(status: &Status) -> bool {
    let by_cause = status.details.iter().flat_map(|details| &details.causes);
    status.code == 504
        && (by_cause
            .into_iter()
            .any(|cause| cause.reason == "ResourceVersionTooLarge")
            || status.message.contains("Too large resource version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(json: &str) -> Verdict {
        let status = serde_json::from_str(json).unwrap();
        WatchError::Api {
            method: "list",
            path: String::new(),
            status,
            retry_after: None,
        }
        .verdict()
    }

    #[test]
    fn failures_are_classified_by_code_reason_and_cause() {
        for (json, expected) in [
            (r#"{"code":410,"reason":"Expired"}"#, Verdict::Expired),
            (r#"{"code":410,"reason":"Gone"}"#, Verdict::Expired),
            (r#"{"code":200,"reason":"Expired"}"#, Verdict::Expired),
            (r#"{"code":404,"reason":"NotFound"}"#, Verdict::Missing),
            (
                r#"{"code":401,"reason":"Unauthorized"}"#,
                Verdict::Forbidden,
            ),
            (r#"{"code":403,"reason":"Forbidden"}"#, Verdict::Forbidden),
            (r#"{"code":422,"reason":"Invalid"}"#, Verdict::Refused),
            (
                r#"{"code":429,"reason":"TooManyRequests"}"#,
                Verdict::Transient,
            ),
            (
                r#"{"code":500,"reason":"InternalError"}"#,
                Verdict::Transient,
            ),
            (r#"{"code":504,"reason":"Timeout"}"#, Verdict::Transient),
            (
                r#"{"code":504,"reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"m"}]}}"#,
                Verdict::TooLarge,
            ),
            (
                r#"{"code":504,"message":"Timeout: Too large resource version: 9, current: 8"}"#,
                Verdict::TooLarge,
            ),
        ] {
            assert_eq!(verdict(json), expected, "{json}");
        }
    }
}
