//! Validation that a schema is structural: every field it specifies has a type.

use serde_json::{Value, json};

use crate::status::FieldError;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Errors of the schema at a field of the definition.
pub(super) fn errors(schema: &Value, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match kind(schema) {
        "" => {
            let text = "must not be empty at the root";
            errors.push(FieldError::required(format!("{field}.type"), text));
        }
        "object" => inner(schema, field, &mut errors),
        other => {
            let text = "must be object at the root";
            let field = format!("{field}.type");
            errors.push(FieldError::invalid(field, &json!(other), text));
        }
    }
    errors
}

fn kind(schema: &Value) -> &str {
    let kind = schema.get("type").and_then(Value::as_str);
    kind.unwrap_or_default()
}

fn inner(schema: &Value, field: &str, errors: &mut Vec<FieldError>) {
    const OF_OBJECTS: &str = "must not be empty for specified object fields";
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let field = format!("{field}.properties[{name}]");
        part(property, &field, OF_OBJECTS, errors);
    }
    let additional = schema.get("additionalProperties");
    if let Some(additional) = additional.filter(|additional| additional.is_object()) {
        let field = format!("{field}.additionalProperties");
        if properties.is_some_and(|properties| !properties.is_empty()) {
            let text = "additionalProperties and properties are mutual exclusive";
            errors.push(FieldError::forbidden(&field, text));
        }
        part(additional, &field, OF_OBJECTS, errors);
    }
    match schema.get("items") {
        Some(items) => {
            let text = "must not be empty for specified array items";
            part(items, &format!("{field}.items"), text, errors);
        }
        None if kind(schema) == "array" => {
            let field = format!("{field}.items");
            errors.push(FieldError::required(field, "must be specified"));
        }
        None => {}
    }
}

fn part(schema: &Value, field: &str, untyped: &str, errors: &mut Vec<FieldError>) {
    let says = |name: &str| schema.get(name) == Some(&json!(true));
    let of_any_type =
        says("x-kubernetes-int-or-string") || says("x-kubernetes-preserve-unknown-fields");
    match kind(schema) {
        "" if of_any_type => {}
        "" => errors.push(FieldError::required(format!("{field}.type"), untyped)),
        kind if !TYPES.contains(&kind) => {
            let field = format!("{field}.type");
            errors.push(FieldError::not_supported(field, &json!(kind), &TYPES));
        }
        _ => {}
    }
    inner(schema, field, errors);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_named_has_a_type() {
        let fine = json!({"type": "object", "properties": {
            "a": {"type": "array", "items": {"type": "string"}},
            "b": {"x-kubernetes-int-or-string": true},
            "c": {"x-kubernetes-preserve-unknown-fields": true},
            "d": {"type": "object", "additionalProperties": {"type": "integer"}},
        }});
        assert_eq!(errors(&fine, "s"), []);
        for (schema, expected) in [
            (json!({}), "s.type"),
            (json!({"type": "string"}), "s.type"),
            (
                json!({"type": "object", "properties": {"a": {}}}),
                "s.properties[a].type",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "array"}}}),
                "s.properties[a].items",
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "wat"}}),
                "s.additionalProperties.type",
            ),
        ] {
            let errors = errors(&schema, "s");
            let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(fields, [expected], "{schema}");
        }
    }
}
