//! Regular expressions of schemas, compiled once per definition within memory limits.

use std::collections::HashMap;

use regex::{Regex, RegexBuilder};
use thiserror::Error;

/// Limit of a compiled pattern in bytes. The time of a match grows with the size.
const SIZE_LIMIT: usize = 1024 * 1024;

/// Size limits to try when compiling. The smallest that suffices counts as the pattern's size, since
/// the library does not report it.
const SIZES: [usize; 6] = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, SIZE_LIMIT];

/// Limit of the lazy DFA's state cache in bytes, per search direction.
const STATES_LIMIT: usize = 512 * 1024;

/// Limit of distinct patterns per definition.
const MAX_PATTERNS: usize = 500;

/// Limit of all distinct patterns of one definition in bytes.
const TOTAL_LIMIT: usize = 16 * 1024 * 1024;

/// A compiled pattern.
#[derive(Debug, Clone)]
pub(in crate::custom) struct Pattern {
    regex: Regex,
    /// Upper bound in bytes.
    size: usize,
}

impl Pattern {
    pub(super) fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// Estimated steps of a match: in the worst case each byte of the text meets each state.
    pub(super) fn steps(&self, text: &str) -> u64 {
        (text.len() as u64).saturating_mul(self.size as u64 / 1024) / 4
    }
}

/// A limit on the patterns of a definition that is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(in crate::custom) enum TooMuch {
    #[error("the definition has more than {MAX_PATTERNS} different patterns")]
    Patterns,
    #[error("the patterns of the definition take more than {TOTAL_LIMIT} bytes compiled")]
    Bytes,
}

/// Compiled patterns of one definition; equal ones are compiled once.
#[derive(Debug, Default)]
pub(in crate::custom) struct Patterns {
    known: HashMap<String, Result<Pattern, regex::Error>>,
    bytes: usize,
}

impl Patterns {
    /// Compiles a pattern with the semantics of Go.
    pub(in crate::custom) fn compile(
        &mut self,
        pattern: &str,
    ) -> Result<&Result<Pattern, regex::Error>, TooMuch> {
        if !self.known.contains_key(pattern) {
            if self.known.len() >= MAX_PATTERNS {
                return Err(TooMuch::Patterns);
            }
            if self.bytes >= TOTAL_LIMIT {
                return Err(TooMuch::Bytes);
            }
            let compiled = compile_pattern(pattern);
            self.bytes += match &compiled {
                Ok(pattern) => pattern.size,
                // Compilation used up to the limit.
                Err(regex::Error::CompiledTooBig(_)) => SIZE_LIMIT,
                Err(_) => 0,
            };
            self.known.insert(pattern.to_owned(), compiled);
        }
        Ok(&self.known[pattern])
    }
}

fn compile_pattern(pattern: &str) -> Result<Pattern, regex::Error> {
    let readable = ascii_classes(pattern);
    let mut builder = RegexBuilder::new(&readable);
    builder.dfa_size_limit(STATES_LIMIT);
    let mut outcome = Err(regex::Error::CompiledTooBig(SIZE_LIMIT));
    for size in SIZES {
        outcome = builder
            .size_limit(size)
            .build()
            .map(|regex| Pattern { regex, size });
        if !matches!(outcome, Err(regex::Error::CompiledTooBig(_))) {
            break;
        }
    }
    outcome
}

/// Replaces `\d`, `\w`, `\s` and `\b` by Go's ASCII classes. The library's Unicode classes match more
/// texts and take a hundred times the memory.
fn ascii_classes(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        match rest.next() {
            // A nested class is a union with the outer one.
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
