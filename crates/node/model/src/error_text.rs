//! Errors as text with all their causes.

use std::error::Error;

/// An error and its causes, separated by colons.
pub fn error_text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
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

    #[test]
    fn every_cause_is_named_once() {
        let error = Listing(io::Error::other("connection refused"));
        assert_eq!(error_text(&error), "cannot list Pods: connection refused");
    }
}
