//! What the built-in kinds look like inside.

pub(crate) mod protobuf;

use crate::{kind::ResourceType, status::Outcome, store::Object};

/// Removes what a kind does not know and answers its paths.
#[expect(clippy::unnecessary_wraps, reason = "wrong types are refused here")]
pub(crate) fn check(
    resource: &ResourceType,
    _group: &str,
    _version: &str,
    kind: &str,
    object: &mut Object,
) -> Outcome<Vec<String>> {
    Ok(match &resource.custom {
        Some(custom) if kind == resource.kind => custom.prune(object),
        _ => Vec::new(),
    })
}
