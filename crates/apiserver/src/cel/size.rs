//! Upper bounds of the sizes of CEL values.

use serde_json::Value;

/// Largest request in bytes: the bound where a schema sets none.
const REQUEST: u64 = 3 * 1024 * 1024;
/// Largest UTF-8 character in bytes.
const CHARACTER: u64 = 4;

/// A bound of a value that need not exist yet.
#[derive(Debug, Clone)]
pub(crate) enum Size<'a> {
    /// One of these values.
    Values(Vec<&'a Value>),
    /// Any value that this schema allows.
    Schema(&'a Value),
    /// At most `length` members, elements or bytes, and `weight` of them at all levels.
    Counted { length: u64, weight: u64 },
}

impl<'a> Size<'a> {
    /// A number or a bool.
    pub(super) const SCALAR: Self = Self::counted(1);

    pub(super) const fn counted(weight: u64) -> Self {
        Self::Counted {
            length: weight,
            weight,
        }
    }

    pub(crate) fn of(value: &'a Value) -> Self {
        Self::Values(vec![value])
    }

    /// Members of a map, elements of a list, bytes of a text.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Values(values) => values.iter().map(|value| length(value)).max().unwrap_or(0),
            Self::Schema(schema) => schema_length(schema),
            Self::Counted { length, .. } => *length,
        }
    }

    /// Members, elements and bytes at all levels.
    pub(super) fn weight(&self) -> u64 {
        match self {
            Self::Values(values) => values.iter().map(|value| weight(value)).max().unwrap_or(0),
            Self::Schema(schema) => schema_weight(schema),
            Self::Counted { weight, .. } => *weight,
        }
    }

    pub(super) fn is_text(&self) -> bool {
        match self {
            Self::Values(values) => values.iter().any(|value| value.is_string()),
            Self::Schema(schema) => schema_type(schema) == "string",
            Self::Counted { length, .. } => *length > 1,
        }
    }

    /// A member by its name.
    pub(super) fn member(&self, name: &str) -> Self {
        match self {
            // `__` escapes names that are not CEL identifiers; their member is not resolved.
            _ if name.contains("__") => self.element(),
            Self::Values(values) => {
                Self::Values(values.iter().filter_map(|value| value.get(name)).collect())
            }
            Self::Schema(schema) => {
                let property = schema.get("properties").and_then(|all| all.get(name));
                let additional = schema
                    .get("additionalProperties")
                    .filter(|additional| additional.is_object());
                property.or(additional).map_or_else(
                    || match schema.get("x-kubernetes-preserve-unknown-fields") {
                        Some(Value::Bool(true)) => Self::counted(REQUEST),
                        _ => Self::SCALAR,
                    },
                    Self::Schema,
                )
            }
            Self::Counted { weight, .. } => Self::counted(*weight),
        }
    }

    /// Any element of a list or member of a map.
    pub(super) fn element(&self) -> Self {
        match self {
            Self::Values(values) => Self::Values(values.iter().flat_map(|v| inside(v)).collect()),
            Self::Schema(schema) => ["items", "additionalProperties"]
                .iter()
                .find_map(|name| schema.get(*name).filter(|inner| inner.is_object()))
                .map_or_else(|| Self::counted(schema_weight(schema)), Self::Schema),
            Self::Counted { weight, .. } => Self::counted(*weight),
        }
    }

    /// The loop variable over it: elements of a list, names of a map.
    pub(super) fn looped(&self) -> Self {
        match self {
            Self::Values(values) if values.iter().any(|value| value.is_object()) => {
                let names = values
                    .iter()
                    .filter_map(|value| value.as_object())
                    .flat_map(|members| members.keys().map(String::len));
                Self::counted(names.max().map_or(0, |longest| longest as u64))
            }
            Self::Schema(schema) if schema_type(schema) == "object" => Self::counted(NAME),
            other => other.element(),
        }
    }

    /// The larger bound of two alternatives.
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Values(mut values), Self::Values(more)) => {
                values.extend(more);
                Self::Values(values)
            }
            (one, other) => Self::Counted {
                length: one.length().max(other.length()),
                weight: one.weight().max(other.weight()),
            },
        }
    }
}

/// Assumed length of a member name in bytes where only a schema is known.
const NAME: u64 = 64;

fn inside<'a>(value: &'a Value) -> Box<dyn Iterator<Item = &'a Value> + 'a> {
    match value {
        Value::Array(list) => Box::new(list.iter()),
        Value::Object(members) => Box::new(members.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn length(value: &Value) -> u64 {
    match value {
        Value::Array(list) => list.len() as u64,
        Value::Object(members) => members.len() as u64,
        Value::String(text) => text.len() as u64,
        _ => 1,
    }
}

fn weight(value: &Value) -> u64 {
    match value {
        Value::Array(list) => list.iter().map(weight).sum::<u64>() + 1,
        Value::Object(members) => {
            let members = members
                .iter()
                .map(|(name, value)| name.len() as u64 + weight(value));
            members.sum::<u64>() + 1
        }
        other => length(other),
    }
}

fn schema_type(schema: &Value) -> &str {
    match schema.get("type").and_then(Value::as_str) {
        Some(name) => name,
        None if schema.get("x-kubernetes-int-or-string").is_some() => "string",
        None => "",
    }
}

fn bound(schema: &Value, name: &str) -> Option<u64> {
    schema.get(name).and_then(Value::as_u64)
}

fn schema_length(schema: &Value) -> u64 {
    let inner = |name: &str| schema.get(name).filter(|inner| inner.is_object());
    match schema_type(schema) {
        "array" => {
            let most = inner("items").map_or(REQUEST, |items| REQUEST / (shortest(items) + 1));
            bound(schema, "maxItems").map_or(most, |limit| limit.min(most))
        }
        "object" => match (inner("properties"), inner("additionalProperties")) {
            (_, Some(additional)) => {
                // Two quotes, a colon and a comma around each value.
                let most = REQUEST / (shortest(additional) + 4);
                bound(schema, "maxProperties").map_or(most, |limit| limit.min(most))
            }
            (Some(properties), None) => length(properties),
            (None, None) => 1,
        },
        "string" => text_length(schema),
        _ => 1,
    }
}

fn text_length(schema: &Value) -> u64 {
    if let Some(Value::Array(allowed)) = schema.get("enum") {
        return allowed.iter().map(length).max().unwrap_or(0);
    }
    let limit = bound(schema, "maxLength").map(|limit| limit.saturating_mul(CHARACTER));
    match schema.get("format").and_then(Value::as_str) {
        Some("date" | "date-time" | "duration" | "ipv4" | "ipv6" | "uuid" | "cidr") => 64,
        _ => limit.unwrap_or(REQUEST).min(REQUEST),
    }
}

fn schema_weight(schema: &Value) -> u64 {
    let inner = |name: &str| schema.get(name).filter(|inner| inner.is_object());
    let length = schema_length(schema);
    if let Some(repeated) = inner("items").or_else(|| inner("additionalProperties")) {
        return length.saturating_mul(schema_weight(repeated)).min(REQUEST);
    }
    match inner("properties").and_then(Value::as_object) {
        Some(properties) => properties
            .values()
            .map(schema_weight)
            .fold(1, u64::saturating_add)
            .min(REQUEST),
        None => length,
    }
}

/// Bytes of the shortest JSON text that a schema allows.
fn shortest(schema: &Value) -> u64 {
    match schema_type(schema) {
        "boolean" => 4,
        "integer" | "number" => 1,
        "object" => {
            let required = schema.get("required").and_then(Value::as_array);
            let named = required.into_iter().flatten().filter_map(Value::as_str);
            let member = |name: &str| {
                let property = schema.get("properties").and_then(|all| all.get(name));
                name.len() as u64 + 3 + property.map_or(1, shortest)
            };
            2 + named.map(member).sum::<u64>()
        }
        _ => 2,
    }
}
