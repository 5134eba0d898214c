//! Texts of table cells, cut at a size limit. Upstream shows each value whole.

use std::io;

use serde_json::Value;

/// Limit of one cell in bytes.
const CELL_LIMIT: usize = 16 * 1024;

/// Bytes that the cells of a row may take in addition to twice the size of its object.
const ROW_LIMIT: usize = 4 * 1024;

/// The end of a cut text.
const CUT: &str = "...";

/// Bytes left for the cells of a row.
#[derive(Debug)]
pub(crate) struct RowBudget(usize);

impl RowBudget {
    /// Room to show each part of an object twice.
    pub(crate) fn new(object_bytes: usize) -> Self {
        Self(ROW_LIMIT + 2 * object_bytes)
    }

    /// A value as text: strings unquoted, everything else as JSON.
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

/// The first bytes of a value as JSON; true when that is the whole value.
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

/// A buffer that fails when `limit` bytes are exceeded.
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
