//! Field paths in error messages, limited in number and length.
//!
//! A body can repeat one long name hundreds of thousands of times.

use std::fmt;

/// Path of a value, formatted only for an error: otherwise a long name would be copied for
/// each value below it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Path<'a> {
    Root,
    Member(&'a Path<'a>, &'a str),
    Element(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Member(Self::Root, name) => write!(f, "{name}"),
            Self::Member(parent, name) => write!(f, "{parent}.{name}"),
            Self::Element(parent, position) => write!(f, "{parent}[{position}]"),
        }
    }
}

/// Limit of reported paths per body.
const MAX_COMPLAINTS: usize = 100;
/// Limit of one path or warning in bytes.
const MAX_LENGTH: usize = 1024;

/// Adds a path unless the list is full.
pub(crate) fn note(complaints: &mut Vec<String>, path: impl FnOnce() -> String) {
    if complaints.len() < MAX_COMPLAINTS {
        complaints.push(shortened(path()));
    }
}

/// The path of a member.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        return shortened(name.to_owned());
    }
    // A path at the limit is cut already.
    if path.len() >= MAX_LENGTH {
        return path.to_owned();
    }
    shortened(format!("{path}.{name}"))
}

/// Cuts a text at the limit, at a character boundary.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > MAX_LENGTH {
        text.truncate(text.floor_char_boundary(MAX_LENGTH));
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_short_and_whole() {
        let long = "ä".repeat(MAX_LENGTH);
        let cut = join("a", &long);
        assert!(
            cut.len() <= MAX_LENGTH + 3 && cut.ends_with("ä..."),
            "{cut}"
        );
        assert_eq!(join(&cut, "below"), cut);
        assert_eq!(join("a", "b"), "a.b");
    }
}
