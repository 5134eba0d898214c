//! Texts of table cells, cut where they take too much: upstream shows each value whole, however large.

use std::io;

use serde_json::Value;

/// Bytes of one cell.
const CELL_LIMIT: usize = 16 * 1024;

/// Bytes of the cells of a row next to those of its object.
const ROW_LIMIT: usize = 4 * 1024;

/// What is at the end of a text that was cut.
const CUT: &str = "...";

/// Bytes that are left for the cells of a row.
#[derive(Debug)]
pub(crate) struct RowBudget(usize);

impl RowBudget {
    /// Enough to show each part of an object twice.
    pub(crate) fn new(object_bytes: usize) -> Self {
        Self(ROW_LIMIT + 2 * object_bytes)
    }

    /// A value as text: strings as they are, everything else as JSON.
    pub(super) fn text(&mut self, value: &Value) -> String {
        let limit = self.0.min(CELL_LIMIT);
        let (mut text, is_whole) = match value {
            Value::String(text) => {
                let start = &text[..text.floor_char_boundary(limit)];
                (start.to_owned(), start.len() == text.len())
            }
            value => json(value, limit),
        };
        self.0 -= text.len();
        if !is_whole {
            text.push_str(CUT);
        }
        text
    }
}

/// The beginning of a value as JSON, and whether that is all of it.
fn json(value: &Value, limit: usize) -> (String, bool) {
    let mut writer = LimitedWriter {
        bytes: Vec::new(),
        limit,
    };
    let is_whole = serde_json::to_writer(&mut writer, value).is_ok();
    let mut bytes = writer.bytes;
    if let Err(error) = std::str::from_utf8(&bytes) {
        bytes.truncate(error.valid_up_to());
    }
    (String::from_utf8(bytes).unwrap_or_default(), is_whole)
}

/// A writer that has room for so many bytes.
struct LimitedWriter {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for LimitedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fitting = bytes.len().min(self.limit - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..fitting]);
        if fitting < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(fitting)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_shown_whole_until_the_budget_ends() {
        let mut budget = RowBudget(12);
        assert_eq!(budget.text(&json!("ab")), "ab");
        assert_eq!(budget.text(&json!({"a": [1]})), "{\"a\":[1]}");
        assert_eq!(budget.text(&json!([1, 2])), "[...");
        assert_eq!(budget.text(&json!("x")), "...");
        assert_eq!(budget.text(&json!("")), "");
    }

    #[test]
    fn a_character_is_never_split() {
        assert_eq!(RowBudget(3).text(&json!("ää")), "ä...");
        assert_eq!(RowBudget(4).text(&json!(["ää"])), "[\"ä...");
        assert_eq!(RowBudget(5).text(&json!(["ää"])), "[\"ä...");
    }
}
