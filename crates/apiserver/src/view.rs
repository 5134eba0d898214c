//! Conversion of stored objects to the requested version and representation, and back.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    kind::ResourceType,
    store::{Object, Stored, encode},
};

/// The whole object in the version of `kind`.
pub(crate) fn full(kind: &ResourceType, stored: &Stored) -> Bytes {
    if stored.bytes.starts_with(kind.prefix.as_bytes()) {
        return stored.bytes.clone();
    }
    let object = object(kind, stored);
    encode(&object, kind.origin())
}

/// The object, decoded, in the version of `kind`.
pub(crate) fn object(kind: &ResourceType, stored: &Stored) -> Object {
    let mut object = stored.decode();
    if kind.is("events.k8s.io", "Event") {
        crate::rules::event::to_events_group(&mut object);
    }
    // An object that cannot be decoded is empty and stays so.
    if object.contains_key("kind") {
        object.insert("kind".into(), kind.kind.clone().into());
        object.insert("apiVersion".into(), kind.api_version().into());
    }
    object
}

/// The object as an item of a list: built-in kinds omit kind and apiVersion.
pub(crate) fn item(kind: &ResourceType, stored: &Stored) -> Bytes {
    let bytes = full(kind, stored);
    if kind.is_custom() || !bytes.starts_with(kind.prefix.as_bytes()) {
        return bytes;
    }
    let mut item = Vec::with_capacity(bytes.len() - kind.prefix.len() + 1);
    item.push(b'{');
    item.extend_from_slice(&bytes[kind.prefix.len()..]);
    Bytes::from(item)
}

#[derive(Deserialize)]
struct MetadataOnly {
    #[serde(default = "empty")]
    metadata: Value,
}

fn empty() -> Value {
    json!({})
}

/// The `PartialObjectMetadata` of a stored object.
pub(crate) fn metadata(stored: &Stored) -> Value {
    // Decodes the metadata only: the rest may be a thousand times as large.
    let metadata = serde_json::from_slice::<MetadataOnly>(&stored.bytes)
        .map_or_else(|_| json!({}), |object| object.metadata);
    let mut partial = Map::new();
    partial.insert("kind".into(), "PartialObjectMetadata".into());
    partial.insert("apiVersion".into(), "meta.k8s.io/v1".into());
    partial.insert("metadata".into(), metadata);
    partial.into()
}

/// Converts an object of the version of `kind` to the stored form.
pub(crate) fn to_storage(kind: &ResourceType, object: &mut Object) {
    if kind.is("events.k8s.io", "Event") {
        crate::rules::event::from_events_group(object);
        object.insert("apiVersion".into(), "v1".into());
    }
    if let Some(custom) = &kind.custom {
        object.insert(
            "apiVersion".into(),
            custom.storage_api_version.clone().into(),
        );
    }
}
