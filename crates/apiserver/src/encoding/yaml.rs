//! Decoding and encoding of YAML bodies.

use serde_json::Value;
use thiserror::Error;

use super::json::Document;

/// Limit of a document's depth; lower than JSON's since the parser uses much stack per level.
const MAX_DEPTH: usize = 60;

/// A body that is not YAML, with the message of the parser.
#[derive(Debug, Error)]
#[error(transparent)]
pub(crate) enum YamlError {
    Utf8(#[from] std::str::Utf8Error),
    Syntax(#[from] Box<serde_saphyr::Error>),
}

/// Parses one YAML document; `duplicates` stays empty.
pub(crate) fn parse(bytes: &[u8]) -> Result<Document, YamlError> {
    let text = std::str::from_utf8(bytes)?;
    // As in Kubernetes, `y` and `n` are strings: only true and false are booleans.
    let options = serde_saphyr::options! {
        strict_booleans: true,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
    };
    let value = serde_saphyr::from_str_with_options::<Value>(text, options).map_err(Box::new)?;
    Ok(Document {
        value,
        duplicates: Vec::new(),
    })
}

/// Prints a value as block YAML.
pub(crate) fn print(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_bounded() {
        for levels in [40, 59, 60, 1000, 100_000] {
            let text = format!("x: {}{}", "[".repeat(levels), "]".repeat(levels));
            assert_eq!(
                parse(text.as_bytes()).is_ok(),
                levels < MAX_DEPTH,
                "{levels}"
            );
        }
    }
}
