//! `metadata.resourceVersion`.

use std::{fmt, sync::Arc};

/// A resource version with an order, where the server's versions have one.
///
/// Kubernetes promises decimal numbers since 1.35; anything else is opaque and never ordered.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceVersion(Arc<str>);

impl ResourceVersion {
    /// The version as the server wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether no version is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if it is certain that the other was written later.
    pub fn is_older_than(&self, other: &Self) -> bool {
        is_older_version(&self.0, &other.0)
    }
}

impl From<&str> for ResourceVersion {
    fn from(text: &str) -> Self {
        Self(Arc::from(text))
    }
}

impl From<u64> for ResourceVersion {
    fn from(number: u64) -> Self {
        Self(Arc::from(number.to_string()))
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// True when both texts are decimal versions and `left` is the smaller one.
pub fn is_older_version(left: &str, right: &str) -> bool {
    matches!((number(left), number(right)), (Some(left), Some(right)) if left < right)
}

fn number(text: &str) -> Option<u128> {
    if text.is_empty() || text.starts_with('0') || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_are_not_decimal_are_never_ordered() {
        assert!(is_older_version("9", "10"));
        assert!(!is_older_version("10", "9"));
        for (left, right) in [
            ("a", "10"),
            ("9", "b"),
            ("09", "10"),
            ("", "1"),
            ("-1", "1"),
        ] {
            assert!(!is_older_version(left, right), "{left} < {right}");
        }
    }
}
