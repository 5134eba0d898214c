//! Type table of the built-in kinds.
//!
//! `schema/types.txt` lists every field of every type: JSON name, protobuf number, type and merge
//! rule of lists. It is parsed once and drives protobuf decoding, type checks, detection of unknown
//! fields, the zero values that Go prints, and the list rules of strategic merge and apply.

pub(crate) mod protobuf;
mod shape;
mod table;

pub(crate) use shape::normalise;
pub(crate) use table::{Field, ListRule, Message, Shape, message_of};

use crate::{
    kind::ResourceType,
    status::{ApiError, Outcome},
    store::Object,
};

/// Removes unknown fields and returns their paths; refuses wrong types.
pub(crate) fn check(
    resource: &ResourceType,
    group: &str,
    version: &str,
    kind: &str,
    object: &mut Object,
) -> Outcome<Vec<String>> {
    if let Some(custom) = &resource.custom
        && kind == resource.kind
    {
        return custom.prune(object);
    }
    let Some(message) = message_of(group, version, kind) else {
        return Ok(Vec::new());
    };
    normalise(message, object).map_err(|error| {
        ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {error}"
        ))
    })
}

/// Normalises an object of a built-in kind to the form in which Go prints it.
pub(crate) fn reshape(kind: &ResourceType, object: &mut Object) {
    if kind.is_custom() {
        return;
    }
    if let Some(message) = message_of(&kind.group, &kind.version, &kind.kind)
        && let Err(error) = normalise(message, object)
    {
        // The body was checked before, so this is a bug in defaulting.
        tracing::warn!(%error, kind = %kind.kind, "defaulting wrote a value of the wrong type");
    }
}
