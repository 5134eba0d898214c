//! `appProtocol` of the ports of Services and EndpointSlices.

use serde_json::json;
use weft_model::selector::syntax;

use crate::status::FieldError;

/// The errors of a value; an empty one has none.
pub(super) fn errors(field: &str, value: &str) -> Vec<FieldError> {
    let complaints = match value {
        "" => Vec::new(),
        _ => syntax::qualified_name_errors(value),
    };
    let invalid = |complaint: String| FieldError::invalid(field, &json!(value), &complaint);
    complaints.into_iter().map(invalid).collect()
}
