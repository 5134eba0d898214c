//! What the built-in kinds look like inside.
//!
//! The table `schema/types.txt` names every field of every type: JSON name, protobuf number, type
//! and how lists merge. It is read once, and from it come the decoding of protobuf, the refusal of
//! wrong types, the finding of unknown fields, the zero values Go prints, and the list rules of
//! strategic merge and apply.

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

/// Removes what a kind does not know and answers its paths; wrong types are refused.
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

/// Gives an object of a built-in kind the shape Go would print it in.
pub(crate) fn reshape(kind: &ResourceType, object: &mut Object) {
    if kind.is_custom() {
        return;
    }
    if let Some(message) = message_of(&kind.group, &kind.version, &kind.kind)
        && let Err(error) = normalise(message, object)
    {
        // Only our own rules wrote since the types were checked.
        tracing::warn!(%error, kind = %kind.kind, "defaulting wrote a value of the wrong type");
    }
}
