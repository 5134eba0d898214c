//! The text of comment matches.

use std::fmt;

/// The longest comment that the match accepts, in bytes.
const LIMIT: usize = 255;

/// The text of a `comment` match.
///
/// Printable ASCII without quotes and backslashes, so that a name from an object can end neither
/// the comment nor the line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Comment(Box<str>);

/// Text that is not a comment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a comment: expected 1 to 255 printable ASCII characters without quotes and backslashes"
)]
pub struct InvalidComment(pub String);

impl Comment {
    /// A comment of this text.
    pub fn new(text: impl Into<Box<str>>) -> Result<Self, InvalidComment> {
        let text = text.into();
        let printable =
            |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\' | b'\'');
        if text.is_empty() || text.len() > LIMIT || !text.bytes().all(printable) {
            return Err(InvalidComment(text.into()));
        }
        Ok(Self(text))
    }

    /// The text without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// With quotes where `iptables-save` writes them: none around plain words.
impl fmt::Display for Comment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if self.0.bytes().all(plain) {
            f.write_str(&self.0)
        } else {
            write!(f, "\"{}\"", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_comment_can_leave_it() {
        for text in [
            "",
            "a\"b",
            "a\\",
            "a\nb",
            "a'b",
            "ü",
            "a\u{7f}",
            &"x".repeat(256),
        ] {
            assert!(Comment::new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_plain_words_go_without_quotes() {
        assert_eq!(
            Comment::new("plain_word-1").unwrap().to_string(),
            "plain_word-1"
        );
        assert_eq!(Comment::new("ns/name").unwrap().to_string(), "\"ns/name\"");
    }
}
