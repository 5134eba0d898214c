//! Accessors of the parts that all objects share, above all `metadata`.

use serde_json::{Map, Value};

use crate::store::Object;

/// Reading and writing `metadata`.
pub(crate) trait Meta {
    /// The metadata, if it is an object at all.
    fn metadata(&self) -> Option<&Object>;
    /// The metadata, made empty when absent or of another type.
    fn metadata_mut(&mut self) -> &mut Object;
    /// A string of the metadata; empty when absent.
    fn meta_text(&self, name: &str) -> &str;
    /// A string member of the object itself; empty when absent.
    fn text(&self, name: &str) -> &str;
    /// The value at a path of member names.
    fn at(&self, path: &[&str]) -> Option<&Value>;

    fn name(&self) -> &str {
        self.meta_text("name")
    }

    fn namespace(&self) -> &str {
        self.meta_text("namespace")
    }

    fn is_deleting(&self) -> bool {
        self.metadata()
            .is_some_and(|metadata| metadata.contains_key("deletionTimestamp"))
    }

    fn finalizers(&self) -> Vec<&str> {
        let finalizers = self
            .at(&["metadata", "finalizers"])
            .and_then(Value::as_array);
        finalizers
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    }

    /// Removes a finalizer, and the list with the last one.
    fn remove_finalizer(&mut self, name: &str) {
        let others = self.finalizers().into_iter().filter(|one| *one != name);
        let others: Vec<Value> = others.map(Value::from).collect();
        if others.is_empty() {
            self.metadata_mut().remove("finalizers");
        } else {
            self.metadata_mut()
                .insert("finalizers".into(), others.into());
        }
    }
}

impl Meta for Object {
    fn metadata(&self) -> Option<&Object> {
        self.get("metadata")?.as_object()
    }

    fn metadata_mut(&mut self) -> &mut Object {
        object_mut(self, "metadata")
    }

    fn meta_text(&self, name: &str) -> &str {
        self.metadata()
            .and_then(|metadata| metadata.get(name)?.as_str())
            .unwrap_or_default()
    }

    fn text(&self, name: &str) -> &str {
        self.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn at(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter()
            .try_fold(self.get(*first)?, |value, part| value.get(*part))
    }
}

/// A member that is an object, made empty when absent or of another type.
pub(crate) fn object_mut<'a>(parent: &'a mut Object, name: &str) -> &'a mut Object {
    let slot = parent
        .entry(name)
        .or_insert_with(|| Value::Object(Map::new()));
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    match slot {
        Value::Object(object) => object,
        _ => unreachable!("just made an object"),
    }
}

/// Sets a member that is absent, null or an empty string: Go cannot distinguish an empty string from
/// an absent one, and protobuf sends it.
pub(crate) fn default_to(object: &mut Object, name: &str, value: impl Into<Value>) {
    let is_unset = |value: &Value| value.is_null() || value.as_str() == Some("");
    if object.get(name).is_none_or(is_unset) {
        object.insert(name.to_owned(), value.into());
    }
}

/// Copies a member from another object; removes it when it is absent there.
pub(crate) fn copy_member(from: &Object, to: &mut Object, name: &str) {
    match from.get(name) {
        Some(value) => to.insert(name.to_owned(), value.clone()),
        None => to.remove(name),
    };
}
