//! Patterns of a schema: one that cannot be enforced is refused with the definition.

use serde_json::{Value, json};

use super::schema::pattern::compile_pattern;
use crate::status::FieldError;

/// Complaints about the patterns of a schema that is at a field of a definition.
pub(super) fn errors(schema: &Value, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check(schema, field, &mut errors);
    errors
}

fn check(schema: &Value, field: &str, errors: &mut Vec<FieldError>) {
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && let Err(error) = compile_pattern(pattern)
    {
        let text = format!(
            "must be a valid regular expression, but isn't: {}",
            cause(&error)
        );
        let field = format!("{field}.pattern");
        errors.push(FieldError::invalid(field, &json!(pattern), &text));
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        check(property, &format!("{field}.properties[{name}]"), errors);
    }
    for name in ["items", "additionalProperties", "not"] {
        if let Some(inner) = schema.get(name).filter(|inner| inner.is_object()) {
            check(inner, &format!("{field}.{name}"), errors);
        }
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        let schemas = schema.get(name).and_then(Value::as_array);
        for (position, inner) in schemas.into_iter().flatten().enumerate() {
            check(inner, &format!("{field}.{name}[{position}]"), errors);
        }
    }
}

/// The last line of what the parser says; those above draw the pattern with a pointer.
fn cause(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_that_cannot_be_enforced_is_named_wherever_it_is() {
        let bad = json!({"pattern": "("});
        let schema = json!({
            "properties": {"a": {"pattern": "^[a-z]+$"}, "b": {"items": bad}},
            "additionalProperties": {"not": bad},
            "allOf": [{}, {"anyOf": [bad]}],
            "oneOf": [{"pattern": "(?=a)"}, {"pattern": "(\\w{1000}){1000}"}],
        });
        let errors = errors(&schema, "s");
        let mut fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "s.additionalProperties.not.pattern",
                "s.allOf[1].anyOf[0].pattern",
                "s.oneOf[0].pattern",
                "s.oneOf[1].pattern",
                "s.properties[b].items.pattern",
            ]
        );
        let found = errors
            .iter()
            .find(|error| error.field.ends_with("items.pattern"));
        assert_eq!(
            found.unwrap().message,
            "Invalid value: \"(\": must be a valid regular expression, but isn't: unclosed group"
        );
    }
}
