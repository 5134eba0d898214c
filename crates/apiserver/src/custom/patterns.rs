//! Validation of the regular expressions in a definition: those that cannot be compiled are refused.

use serde_json::{Value, json};

use super::schema::Patterns;
use crate::status::{FieldError, MAX_CAUSES};

/// Checks the patterns of a definition, schema by schema.
#[derive(Debug, Default)]
pub(super) struct PatternCheck {
    patterns: Patterns,
    /// The limit of patterns or of errors is reached; nothing more is compiled.
    is_over: bool,
}

impl PatternCheck {
    /// Errors of the patterns of the schema at a field of the definition.
    pub(super) fn errors(&mut self, schema: &Value, field: &str) -> Vec<FieldError> {
        let mut errors = Vec::new();
        self.check(schema, field, &mut errors);
        errors
    }

    fn check(&mut self, schema: &Value, field: &str, errors: &mut Vec<FieldError>) {
        if self.is_over {
            return;
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
            let field = format!("{field}.pattern");
            match self.patterns.compile(pattern) {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    let cause = cause(error);
                    let text = format!("must be a valid regular expression, but isn't: {cause}");
                    errors.push(FieldError::invalid(field, &json!(pattern), &text));
                    self.is_over = errors.len() >= MAX_CAUSES;
                }
                Err(too_much) => {
                    errors.push(FieldError::forbidden(field, &too_much.to_string()));
                    self.is_over = true;
                }
            }
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, property) in properties.into_iter().flatten() {
            self.check(property, &format!("{field}.properties[{name}]"), errors);
        }
        for name in ["items", "additionalProperties", "not"] {
            if let Some(inner) = schema.get(name).filter(|inner| inner.is_object()) {
                self.check(inner, &format!("{field}.{name}"), errors);
            }
        }
        for name in ["allOf", "anyOf", "oneOf"] {
            let schemas = schema.get(name).and_then(Value::as_array);
            for (position, inner) in schemas.into_iter().flatten().enumerate() {
                self.check(inner, &format!("{field}.{name}[{position}]"), errors);
            }
        }
    }
}

/// The last line of a parser error; the lines above draw the pattern with a marker.
fn cause(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unenforceable_pattern_is_reported_at_any_depth() {
        let bad = json!({"pattern": "("});
        let schema = json!({
            "properties": {"a": {"pattern": "^[a-z]+$"}, "b": {"items": bad}},
            "additionalProperties": {"not": bad},
            "allOf": [{}, {"anyOf": [bad]}],
            "oneOf": [{"pattern": "(?=a)"}, {"pattern": "(\\w{1000}){1000}"}],
        });
        let errors = PatternCheck::default().errors(&schema, "s");
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
