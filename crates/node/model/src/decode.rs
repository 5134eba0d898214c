//! Helpers for decoding Kubernetes objects.

use serde::{Deserialize, Deserializer};

/// Decodes `null` as the default: Go's encoder writes it for empty lists and structs.
pub fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
