//! Splits a line into words, with the separators and quotes of iptables.

/// A word and whether it was quoted; a quoted word is never an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word<'a> {
    pub(crate) text: &'a str,
    pub(crate) quoted: bool,
}

impl Word<'_> {
    /// True if this is the given option (or `!`).
    pub(crate) fn is(self, option: &str) -> bool {
        !self.quoted && self.text == option
    }
}

/// Iterates over the words of a line without copying.
///
/// A backslash inside quotes is an error: no rule of ours contains one, and unescaping would need a
/// copy.
#[derive(Clone, Debug)]
pub(crate) struct Words<'a> {
    rest: &'a str,
}

/// Unterminated quotes, or a backslash between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misquoted;

impl<'a> Words<'a> {
    pub(crate) fn new(line: &'a str) -> Self {
        Self {
            rest: line.trim_start_matches(is_blank),
        }
    }

    fn advance(&mut self, to: usize) {
        self.rest = self.rest[to..].trim_start_matches(is_blank);
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = Result<Word<'a>, Misquoted>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest;
        if rest.is_empty() {
            return None;
        }
        let Some(inside) = rest.strip_prefix('"') else {
            let end = rest.find(is_blank).unwrap_or(rest.len());
            let text = &rest[..end];
            self.advance(end);
            return Some(if text.contains(['"', '\\']) {
                Err(Misquoted)
            } else {
                Ok(Word {
                    text,
                    quoted: false,
                })
            });
        };
        match inside.find(['"', '\\']) {
            Some(end) if inside.as_bytes()[end] == b'"' => {
                let behind = &inside[end + 1..];
                if !behind.is_empty() && !behind.starts_with(is_blank) {
                    self.rest = "";
                    return Some(Err(Misquoted));
                }
                self.advance(end + 2);
                Some(Ok(Word {
                    text: &inside[..end],
                    quoted: true,
                }))
            }
            _ => {
                self.rest = "";
                Some(Err(Misquoted))
            }
        }
    }
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Vec<(&str, bool)>, Misquoted> {
        Words::new(line)
            .map(|word| word.map(|word| (word.text, word.quoted)))
            .collect()
    }

    #[test]
    fn blanks_separate_words_and_quotes_hold_them_together() {
        assert_eq!(
            words("  -m comment --comment \"a  -j b\"  -j X ").unwrap(),
            [
                ("-m", false),
                ("comment", false),
                ("--comment", false),
                ("a  -j b", true),
                ("-j", false),
                ("X", false)
            ]
        );
        assert_eq!(words("\"\"").unwrap(), [("", true)]);
    }

    #[test]
    fn quotes_that_do_not_end_and_escapes_are_errors() {
        for line in ["\"open", "\"a\\\"b\"", "a\"b", "\"a\"b", "a\\ b"] {
            assert_eq!(words(line), Err(Misquoted), "{line}");
        }
    }
}
