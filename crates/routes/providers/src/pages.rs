//! Bounds on lists that are read page by page.
//!
//! The server decides whether there is a next page. A list without end would use up all calls of
//! the rate limit, and memory without bound.

use std::collections::BTreeSet;

use weft_routes::ProviderError;

/// Maximum number of pages: more than any real list has.
const MOST_PAGES: usize = 200;

/// Maximum length of a page token in bytes: more than any real token has.
const LONGEST_TOKEN: usize = 8 << 10;

/// Maximum number of entries (machines, tables and what is nested in them): more than any real list
/// has.
const MOST_ENTRIES: usize = 200_000;

/// Progress of reading one list.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    read: usize,
    entries: usize,
    seen: BTreeSet<String>,
}

impl Pages {
    /// Counts a page with this many entries. Returns the token of the next page, `None` at the end,
    /// and an error if the list exceeds a bound or repeats a page.
    pub(crate) fn turn(
        &mut self,
        entries: usize,
        next: Option<String>,
    ) -> Result<Option<String>, ProviderError> {
        self.read += 1;
        self.entries = self.entries.saturating_add(entries);
        let bad = |text: String| Err(ProviderError::Garbage(text.as_str().into()));
        if self.entries > MOST_ENTRIES {
            return bad(format!("list has more than {MOST_ENTRIES} entries"));
        }
        let Some(token) = next.filter(|token| !token.is_empty()) else {
            return Ok(None);
        };
        if token.len() > LONGEST_TOKEN {
            return bad(format!(
                "token of the next page has {} bytes: expected at most {LONGEST_TOKEN}",
                token.len()
            ));
        }
        if self.read >= MOST_PAGES {
            return bad(format!("list has more than {MOST_PAGES} pages"));
        }
        if !self.seen.insert(token.clone()) {
            return bad(format!("next page {token:?} is an earlier page"));
        }
        Ok(Some(token))
    }

    /// Number of pages read.
    pub(crate) fn read(&self) -> usize {
        self.read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_garbage<T: std::fmt::Debug>(result: &Result<T, ProviderError>) -> bool {
        matches!(result, Err(ProviderError::Garbage(_)))
    }

    #[test]
    fn a_list_ends_after_its_last_page() {
        let mut pages = Pages::default();
        let next = pages.turn(1, Some("a".to_owned()));
        assert_eq!(next, Ok(Some("a".to_owned())));
        assert_eq!(pages.turn(1, None), Ok(None));
        assert_eq!(Pages::default().turn(1, Some(String::new())), Ok(None));
    }

    #[test]
    fn a_list_without_end_is_an_error() {
        let mut pages = Pages::default();
        let turned = (0..1_000_000).map(|page| pages.turn(1, Some(page.to_string())));
        let ended = turned.take_while(Result::is_ok).count();
        assert_eq!(ended, MOST_PAGES - 1);
    }

    #[test]
    fn a_page_that_was_read_already_a_long_token_and_a_flood_of_entries_are_errors() {
        let mut pages = Pages::default();
        for token in ["a", "b"] {
            pages.turn(1, Some(token.to_owned())).unwrap();
        }
        assert!(is_garbage(&pages.turn(1, Some("a".to_owned()))));
        let long = "x".repeat(LONGEST_TOKEN + 1);
        assert!(is_garbage(&Pages::default().turn(1, Some(long))));
        assert!(is_garbage(&Pages::default().turn(usize::MAX, None)));
    }
}
