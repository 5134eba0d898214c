//! Regular expressions of schemas, compiled once with the definition they are in.

use regex::{Regex, RegexBuilder};

/// Bytes a compiled pattern may take. How long a match takes grows with it.
const SIZE_LIMIT: usize = 1024 * 1024;

/// Compiles a pattern as upstream reads it.
pub(in crate::custom) fn compile_pattern(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(&ascii_classes(pattern))
        .size_limit(SIZE_LIMIT)
        .build()
}

/// The pattern with `\d`, `\w`, `\s` and `\b` as Go means them: of ASCII. Here they would be of all of
/// Unicode, which matches more texts and takes a hundred times the space.
fn ascii_classes(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        match rest.next() {
            // A class inside of a class is a part of it.
            Some('d') => out.push_str("[0-9]"),
            Some('D') => out.push_str("[^0-9]"),
            Some('w') => out.push_str("[0-9A-Za-z_]"),
            Some('W') => out.push_str("[^0-9A-Za-z_]"),
            Some('s') => out.push_str("[\\t\\n\\f\\r ]"),
            Some('S') => out.push_str("[^\\t\\n\\f\\r ]"),
            Some('b') => out.push_str("(?-u:\\b)"),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_of_ascii_as_in_go() {
        for (pattern, text, fits) in [
            (r"^\d+$", "123", true),
            (r"^\d+$", "١٢", false),
            (r"^[\w.-]+$", "a_1.b-c", true),
            (r"^[\w.-]+$", "ä", false),
            (r"^[^\s]+$", "a b", false),
            (r"^\W$", "ä", true),
            (r"\bfoo\b", "a foo b", true),
            (r"\bfoo\b", "afoo", false),
            (r"^\\d$", r"\d", true),
            (r"^\pL$", "ä", true),
        ] {
            let compiled = compile_pattern(pattern).unwrap();
            assert_eq!(compiled.is_match(text), fits, "{pattern} on {text}");
        }
    }

    #[test]
    fn a_pattern_that_would_take_too_long_is_refused() {
        assert!(compile_pattern(r"\w{0,1000}").is_ok());
        assert!(compile_pattern(r"(\pL{0,1000}){0,1000}").is_err());
        assert!(compile_pattern("(").is_err());
    }
}
