//! Stored objects: encoded bytes, and the parsed parts that selectors and controllers need.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};
use weft_model::SharedStr;

use crate::kind::{Origin, ResourceType};

/// A decoded object.
pub(crate) type Object = Map<String, Value>;

/// A stored object. Lists and watches share its bytes.
#[derive(Debug)]
pub(crate) struct Stored {
    /// `namespace/name`, or `name` for cluster-scoped objects; collections sort by it.
    pub(crate) key: Arc<str>,
    pub(crate) namespace: SharedStr,
    pub(crate) name: SharedStr,
    pub(crate) uid: SharedStr,
    pub(crate) version: u64,
    /// The whole object as JSON, kind and apiVersion first.
    pub(crate) bytes: Bytes,
    /// Sorted by key.
    pub(crate) labels: Box<[(SharedStr, SharedStr)]>,
    /// Values of the kind's selectable fields, in the order of its [`crate::kind::FieldTable`].
    pub(crate) fields: Box<[SharedStr]>,
    /// UIDs of the owners.
    pub(crate) owners: Box<[SharedStr]>,
}

impl Stored {
    /// Encodes an object that has its `resourceVersion`.
    pub(crate) fn new(kind: &ResourceType, object: Object) -> Self {
        let bytes = encode(&object, kind.origin());
        let object = Value::Object(object);
        let metadata = &object["metadata"];
        let text = |name: &str| {
            metadata
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (namespace, name) = (text("namespace"), text("name"));
        let labels = metadata.get("labels").and_then(Value::as_object);
        let owners = metadata.get("ownerReferences").and_then(Value::as_array);
        Self {
            key: object_key(namespace, name).into(),
            namespace: SharedStr::interned(namespace),
            name: SharedStr::new(name),
            uid: SharedStr::new(text("uid")),
            version: text("resourceVersion").parse().unwrap_or_default(),
            labels: labels
                .into_iter()
                .flatten()
                .filter_map(|(key, value)| Some((key, value.as_str()?)))
                .map(|(key, value)| (SharedStr::interned(key), SharedStr::interned(value)))
                .collect(),
            fields: kind.fields.values(&object),
            owners: owners
                .into_iter()
                .flatten()
                .filter_map(|owner| owner.get("uid")?.as_str())
                .map(SharedStr::new)
                .collect(),
            bytes,
        }
    }

    /// Decodes the object; empty if that fails, which the server's own encoding does not.
    pub(crate) fn decode(&self) -> Object {
        serde_json::from_slice(&self.bytes).unwrap_or_default()
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        let position = self
            .labels
            .binary_search_by(|(known, _)| known.as_str().cmp(key))
            .ok()?;
        Some(self.labels[position].1.as_str())
    }

    /// The same content at another version, as DELETED events have it.
    pub(crate) fn at_version(&self, version: u64) -> Self {
        let origin = if self.bytes.starts_with(b"{\"apiVersion\"") {
            Origin::Custom
        } else {
            Origin::Builtin
        };
        let mut object = self.decode();
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            metadata.insert("resourceVersion".into(), version.to_string().into());
        }
        Self {
            key: self.key.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            version,
            bytes: encode(&object, origin),
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            owners: self.owners.clone(),
        }
    }
}

/// The key of an object within its collection.
pub(crate) fn object_key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

/// Encodes an object with kind, apiVersion and metadata first, so that lists can omit the first two by
/// skipping [`ResourceType::prefix`]. Custom resources begin with apiVersion, the others with kind.
pub(crate) fn encode(object: &Object, origin: Origin) -> Bytes {
    let order = if origin == Origin::Custom {
        ["apiVersion", "kind"]
    } else {
        ["kind", "apiVersion"]
    };
    let mut out = Vec::with_capacity(512);
    let mut separator = b'{';
    let ordered = order
        .into_iter()
        .chain(["metadata"])
        .filter_map(|key| object.get_key_value(key));
    let rest = object
        .iter()
        .filter(|(key, _)| !matches!(key.as_str(), "kind" | "apiVersion" | "metadata"));
    for (key, value) in ordered.chain(rest) {
        out.push(separator);
        separator = b',';
        write_json(&mut out, key);
        out.push(b':');
        write_json(&mut out, value);
    }
    if object.is_empty() {
        out.push(b'{');
    }
    out.push(b'}');
    out.shrink_to_fit();
    Bytes::from(out)
}

fn write_json(out: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    // Writing a JSON value to a Vec cannot fail.
    let _ = serde_json::to_writer(out, value);
}
