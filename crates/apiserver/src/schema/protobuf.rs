//! Protobuf bodies.

use crate::{
    encoding::json::Document,
    status::{ApiError, Outcome},
};

/// Reads an enveloped object of a kind.
pub(crate) fn decode(_body: &[u8], _group: &str, _version: &str, _kind: &str) -> Outcome<Document> {
    Err(ApiError::unsupported_media(
        "application/json, application/yaml",
    ))
}
