//! Structural schemas of custom resources: pruning, defaulting and validation.

mod pattern;
mod validate;

use serde_json::Value;

use crate::{
    encoding::{
        paths::{join, note},
        size::{self, TooLarge},
    },
    store::Object,
};

pub(super) use pattern::Patterns;
pub(super) use validate::{Node, list_errors, schema_errors};

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
/// Fields of every resource, which the schema need not specify.
const TYPE_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

pub(super) fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// Removes fields that the schema does not specify; returns their paths.
pub(super) fn prune(schema: &Value, object: &mut Object) -> Vec<String> {
    let mut unknown = Vec::new();
    prune_object(schema, object, "", &TYPE_FIELDS, &mut unknown);
    unknown
}

fn prune_object(
    schema: &Value,
    object: &mut Object,
    path: &str,
    kept: &[&str],
    unknown: &mut Vec<String>,
) {
    let properties = schema.get("properties");
    let additional = schema
        .get("additionalProperties")
        .filter(|schema| schema.is_object());
    let any_value = schema.get("additionalProperties") == Some(&Value::Bool(true));
    let preserve = flag(schema, PRESERVE);
    let names: Vec<String> = object.keys().cloned().collect();
    for name in names {
        if kept.contains(&name.as_str()) {
            continue;
        }
        let below = join(path, &name);
        let known = properties.and_then(|all| all.get(&name)).or(additional);
        match (known, object.get_mut(&name)) {
            (Some(known), Some(value)) => prune_value(known, value, &below, unknown),
            _ if preserve || any_value => {}
            _ => {
                object.remove(&name);
                note(unknown, || below);
            }
        }
    }
}

fn prune_value(schema: &Value, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            let kept: &[&str] = if flag(schema, EMBEDDED) {
                &TYPE_FIELDS
            } else {
                &[]
            };
            prune_object(schema, object, path, kept, unknown);
        }
        Value::Array(list) => {
            let Some(items) = schema.get("items") else {
                return;
            };
            for (position, element) in list.iter_mut().enumerate() {
                prune_value(items, element, &format!("{path}[{position}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Fills in defaults inside present objects while they fit into `left` bytes: a default of some
/// kilobytes for each of thousands of elements would take gigabytes.
pub(super) fn default(schema: &Value, value: &mut Value, left: &mut usize) -> Result<(), TooLarge> {
    match value {
        Value::Object(object) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            for (name, property) in properties.into_iter().flatten() {
                let nullable = flag(property, "nullable");
                let unset = match object.get(name) {
                    None => true,
                    Some(Value::Null) => !nullable && property.get("default").is_some(),
                    Some(_) => false,
                };
                if unset && let Some(default) = property.get("default") {
                    size::take(left, default)?;
                    object.insert(name.clone(), default.clone());
                }
                if let Some(value) = object.get_mut(name) {
                    self::default(property, value, left)?;
                }
            }
            if let Some(additional) = schema.get("additionalProperties").filter(|s| s.is_object()) {
                let known = |name: &str| properties.is_some_and(|all| all.contains_key(name));
                for (_, value) in object.iter_mut().filter(|(name, _)| !known(name)) {
                    self::default(additional, value, left)?;
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = schema.get("items") {
                for element in list {
                    self::default(items, element, left)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
