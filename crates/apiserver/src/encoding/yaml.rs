//! YAML bodies.

use serde_json::Value;

use super::json::Document;

/// Reads one YAML document.
pub(crate) fn parse(bytes: &[u8]) -> Result<Document, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    // Kubernetes reads `y` and `n` as texts; only true and false are booleans here.
    let options = serde_saphyr::options! { strict_booleans: true };
    let value = serde_saphyr::from_str_with_options::<Value>(text, options)
        .map_err(|error| error.to_string())?;
    Ok(Document {
        value,
        duplicates: Vec::new(),
    })
}

/// Prints a value as block YAML.
pub(crate) fn print(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_default()
}
