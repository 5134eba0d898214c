//! Errors as text with all their causes.

use std::error::Error;

/// An error and its causes, separated by colons. A cause that an error above it already prints, as
/// some libraries do, is not repeated.
pub fn error_text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot list Pods")]
    struct Listing(#[source] io::Error);

    /// As errors of kube are: it prints its source and has it, too.
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Repeating(#[source] Listing);

    #[test]
    fn every_cause_is_named_once() {
        let error = Listing(io::Error::other("connection refused"));
        assert_eq!(error_text(&error), "cannot list Pods: connection refused");
        let error = Repeating(error);
        assert_eq!(error_text(&error), "cannot list Pods: connection refused");
    }
}
