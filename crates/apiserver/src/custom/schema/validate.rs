//! Values against schemas, in the words of upstream's validator.

use serde_json::{Value, json};

use super::flag;
use crate::status::FieldError;

/// Complaints of types, bounds, patterns and required fields.
pub(in crate::custom) fn schema_errors(
    schema: &Value,
    value: &Value,
    path: &str,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check(schema, value, path, &mut errors);
    errors
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn check(schema: &Value, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if value.is_null() && flag(schema, "nullable") {
        return;
    }
    if let Some(error) = type_error(schema, value, path) {
        errors.push(error);
        return;
    }
    if let Some(Value::Array(allowed)) = schema.get("enum")
        && !allowed.contains(value)
    {
        let known: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        errors.push(FieldError {
            field: path.to_owned(),
            reason: "FieldValueNotSupported",
            message: format!(
                "Unsupported value: {value}: supported values: {}",
                known.join(", ")
            ),
        });
    }
    match value {
        Value::Number(_) => number_errors(schema, value, path, errors),
        Value::String(text) => text_errors(schema, text, value, path, errors),
        Value::Array(list) => {
            size_errors(
                schema,
                ("minItems", "maxItems", "items"),
                list.len(),
                value,
                path,
                errors,
            );
            if let Some(items) = schema.get("items") {
                for (position, element) in list.iter().enumerate() {
                    check(items, element, &format!("{path}[{position}]"), errors);
                }
            }
        }
        Value::Object(object) => {
            let words = ("minProperties", "maxProperties", "properties");
            size_errors(schema, words, object.len(), value, path, errors);
            let required = schema.get("required").and_then(Value::as_array);
            for name in required.into_iter().flatten().filter_map(Value::as_str) {
                if !object.contains_key(name) {
                    errors.push(FieldError::required(join(path, name), ""));
                }
            }
            let properties = schema.get("properties");
            let additional = schema
                .get("additionalProperties")
                .filter(|schema| schema.is_object());
            for (name, member) in object {
                let known = properties.and_then(|all| all.get(name)).or(additional);
                if let Some(known) = known {
                    check(known, member, &join(path, name), errors);
                }
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
    combined_errors(schema, value, path, errors);
}

/// Go's word for the type of a JSON value in a schema.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn type_error(schema: &Value, value: &Value, path: &str) -> Option<FieldError> {
    let actual = type_name(value);
    let wanted = if flag(schema, "x-kubernetes-int-or-string") {
        "integer,string"
    } else {
        schema.get("type").and_then(Value::as_str)?
    };
    let whole = value.as_f64().is_some_and(|number| number.fract() == 0.0);
    let fits = match wanted {
        "integer,string" => matches!(actual, "integer" | "string"),
        "number" => value.is_number(),
        "integer" => actual == "integer" || whole,
        wanted => actual == wanted,
    };
    if fits {
        return None;
    }
    let shown = if path.is_empty() { "<root>" } else { path };
    let detail = format!("{shown} in body must be of type {wanted}: {actual:?}");
    Some(FieldError::type_invalid(path, actual, &detail))
}

fn number_errors(schema: &Value, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(number) = value.as_f64() else { return };
    let bound = |name: &str| {
        schema
            .get(name)
            .and_then(|bound| Some((bound, bound.as_f64()?)))
    };
    let mut complain = |text: String| {
        errors.push(FieldError::invalid(
            path,
            value,
            &format!("{path} in body should be {text}"),
        ));
    };
    if let Some((bound, limit)) = bound("maximum") {
        if flag(schema, "exclusiveMaximum") {
            if number >= limit {
                complain(format!("less than {bound}"));
            }
        } else if number > limit {
            complain(format!("less than or equal to {bound}"));
        }
    }
    if let Some((bound, limit)) = bound("minimum") {
        if flag(schema, "exclusiveMinimum") {
            if number <= limit {
                complain(format!("greater than {bound}"));
            }
        } else if number < limit {
            complain(format!("greater than or equal to {bound}"));
        }
    }
    if let Some((bound, divisor)) = bound("multipleOf")
        && divisor != 0.0
        && (number / divisor).fract() != 0.0
    {
        complain(format!("a multiple of {bound}"));
    }
}

fn text_errors(
    schema: &Value,
    text: &str,
    value: &Value,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let limit = |name: &str| {
        schema
            .get(name)
            .and_then(Value::as_u64)
            .and_then(|limit| usize::try_from(limit).ok())
    };
    let length = text.chars().count();
    if let Some(limit) = limit("maxLength").filter(|limit| length > *limit) {
        errors.push(FieldError::too_long(path, limit));
    }
    if let Some(limit) = limit("minLength").filter(|limit| length < *limit) {
        let detail = format!("{path} in body should be at least {limit} chars long");
        errors.push(FieldError::invalid(path, value, &detail));
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && let Ok(regex) = regex::Regex::new(pattern)
        && !regex.is_match(text)
    {
        let detail = format!("{path} in body should match '{pattern}'");
        errors.push(FieldError::invalid(path, value, &detail));
    }
    let format = schema
        .get("format")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !format_fits(format, text) {
        let detail = format!("{path} in body must be of type {format}: {text:?}");
        errors.push(FieldError::invalid(path, value, &detail));
    }
}

/// The formats upstream checks that occur in networking; others are not looked at.
fn format_fits(format: &str, text: &str) -> bool {
    use std::net::{Ipv4Addr, Ipv6Addr};
    match format {
        "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => text.parse::<ipnet::IpNet>().is_ok(),
        "uuid" => {
            let groups: Vec<usize> = text.split('-').map(str::len).collect();
            groups == [8, 4, 4, 4, 12] && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
        }
        _ => true,
    }
}

fn size_errors(
    schema: &Value,
    (least, most, what): (&str, &str, &str),
    count: usize,
    value: &Value,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let limit = |name: &str| {
        schema
            .get(name)
            .and_then(Value::as_u64)
            .and_then(|limit| usize::try_from(limit).ok())
    };
    if let Some(limit) = limit(most).filter(|limit| count > *limit) {
        errors.push(FieldError::too_many(path, count, limit));
    }
    if let Some(limit) = limit(least).filter(|limit| count < *limit) {
        let detail = format!("{path} in body should have at least {limit} {what}");
        errors.push(FieldError::invalid(path, value, &detail));
    }
}

fn combined_errors(schema: &Value, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let schemas = |name: &str| schema.get(name).and_then(Value::as_array);
    let fits = |schema: &Value| schema_errors(schema, value, path).is_empty();
    for schema in schemas("allOf").into_iter().flatten() {
        check(schema, value, path, errors);
    }
    let mut complain = |text: &str| {
        errors.push(FieldError::invalid(
            path,
            value,
            &format!("{path} in body {text}"),
        ));
    };
    if schemas("anyOf").is_some_and(|any| !any.iter().any(fits)) {
        complain("must validate at least one schema (anyOf)");
    }
    if let Some(one) = schemas("oneOf") {
        match one.iter().filter(|schema| fits(schema)).count() {
            1 => {}
            0 => complain("must validate one and only one schema (oneOf). Found none valid"),
            n => complain(&format!(
                "must validate one and only one schema (oneOf). Found {n} valid alternatives"
            )),
        }
    }
    if schema.get("not").is_some_and(fits) {
        complain("must not validate the schema (not)");
    }
}

/// Repeats in lists that may have none.
pub(in crate::custom) fn list_errors(schema: &Value, value: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    repeats(schema, value, path, &mut errors);
    errors
}

fn repeats(schema: &Value, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Array(list) => {
            let identity = |element: &Value| match list_type(schema) {
                "set" => Some(element.clone()),
                "map" => {
                    let keys = schema
                        .get("x-kubernetes-list-map-keys")
                        .and_then(Value::as_array)?;
                    let keys = keys.iter().filter_map(Value::as_str);
                    let pairs = keys.map(|key| {
                        let default = || {
                            schema
                                .get("items")?
                                .get("properties")?
                                .get(key)?
                                .get("default")
                                .cloned()
                        };
                        let value = element
                            .get(key)
                            .cloned()
                            .or_else(default)
                            .unwrap_or_default();
                        (key.to_owned(), value)
                    });
                    Some(Value::Object(pairs.collect()))
                }
                _ => None,
            };
            let mut seen: Vec<Value> = Vec::new();
            for (position, element) in list.iter().enumerate() {
                let below = format!("{path}[{position}]");
                if let Some(identity) = identity(element) {
                    if seen.contains(&identity) {
                        errors.push(FieldError::duplicate(&below, &identity));
                    }
                    seen.push(identity);
                }
                if let Some(items) = schema.get("items") {
                    repeats(items, element, &below, errors);
                }
            }
        }
        Value::Object(object) => {
            for (name, member) in object {
                let known = schema.get("properties").and_then(|all| all.get(name));
                let known = known.or_else(|| schema.get("additionalProperties"));
                repeats(
                    known.unwrap_or(&json!({})),
                    member,
                    &join(path, name),
                    errors,
                );
            }
        }
        _ => {}
    }
}

fn list_type(schema: &Value) -> &str {
    schema
        .get("x-kubernetes-list-type")
        .and_then(Value::as_str)
        .unwrap_or_default()
}
