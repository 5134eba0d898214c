//! Values against schemas, in the words of upstream's validator.

use std::collections::{HashMap, HashSet};

use regex::Regex;
use serde_json::Value;

use super::{flag, pattern::compile_pattern};
use crate::{
    encoding::paths::Path,
    status::{FieldError, MAX_CAUSES},
};

/// Bytes of complaints about one object: a complaint shows values, paths and lists of what is allowed.
const MAX_BYTES: usize = 1024 * 1024;

/// Comparisons of a value with a schema for one object. The largest object that can be stored has less
/// than a million values; what takes more has alternatives inside of alternatives.
const MAX_STEPS: u64 = 10_000_000;

/// One place of a schema in the form in which values are compared with it.
#[derive(Debug, Default)]
pub(in crate::custom) struct Node {
    /// Keywords whose values are plain: bounds, lengths, type, format.
    words: Value,
    pattern: Option<Regex>,
    allowed: Option<Allowed>,
    required: Vec<String>,
    properties: HashMap<String, Node>,
    additional: Option<Box<Node>>,
    items: Option<Box<Node>>,
    identity: Identity,
    all: Vec<Node>,
    any: Option<Vec<Node>>,
    one: Option<Vec<Node>>,
    not: Option<Box<Node>>,
}

/// Values an enumeration allows.
#[derive(Debug)]
struct Allowed {
    values: HashSet<Value>,
    shown: String,
}

/// By what the elements of a list are told apart, if they must be.
#[derive(Debug, Default)]
enum Identity {
    #[default]
    None,
    Whole,
    /// Names of members, with the values they have by default.
    Members(Vec<(String, Value)>),
}

impl Node {
    pub(in crate::custom) fn compile(schema: &Value) -> Self {
        let one = |name: &str| {
            let inner = schema.get(name).filter(|inner| inner.is_object());
            inner.map(|inner| Box::new(Self::compile(inner)))
        };
        let several = |name: &str| {
            let list = schema.get(name).and_then(Value::as_array);
            list.map(|list| list.iter().map(Self::compile).collect::<Vec<_>>())
        };
        let members = |name: &str| schema.get(name).and_then(Value::as_object);
        let words = members_of(schema).filter(|(_, value)| !value.is_array() && !value.is_object());
        let required = schema.get("required").and_then(Value::as_array);
        Self {
            words: Value::Object(
                words
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect(),
            ),
            pattern: pattern_of(schema),
            allowed: schema.get("enum").and_then(Value::as_array).map(|values| {
                let shown: Vec<String> = values.iter().map(ToString::to_string).collect();
                Allowed {
                    values: values.iter().cloned().collect(),
                    shown: shown.join(", "),
                }
            }),
            required: required
                .into_iter()
                .flatten()
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect(),
            properties: members("properties")
                .into_iter()
                .flatten()
                .map(|(name, property)| (name.clone(), Self::compile(property)))
                .collect(),
            additional: one("additionalProperties"),
            items: one("items"),
            identity: Identity::of(schema),
            all: several("allOf").unwrap_or_default(),
            any: several("anyOf"),
            one: several("oneOf"),
            not: one("not"),
        }
    }

    /// The schema of a member.
    fn member(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or(self.additional.as_deref())
    }
}

fn members_of(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.as_object().into_iter().flatten()
}

fn pattern_of(schema: &Value) -> Option<Regex> {
    let pattern = schema.get("pattern")?.as_str()?;
    match compile_pattern(pattern) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            tracing::warn!(%error, pattern, "cannot compile pattern of a stored definition, not enforced");
            None
        }
    }
}

impl Identity {
    fn of(schema: &Value) -> Self {
        let text = |name: &str| schema.get(name).and_then(Value::as_str);
        match text("x-kubernetes-list-type") {
            Some("set") => Self::Whole,
            Some("map") => {
                let keys = schema.get("x-kubernetes-list-map-keys");
                let Some(keys) = keys.and_then(Value::as_array) else {
                    return Self::None;
                };
                let keyed = |key: &str| {
                    let default = schema.pointer("/items/properties");
                    let default = default.and_then(|all| all.get(key)?.get("default"));
                    (key.to_owned(), default.cloned().unwrap_or_default())
                };
                let keys = keys.iter().filter_map(Value::as_str);
                Self::Members(keys.map(keyed).collect())
            }
            _ => Self::None,
        }
    }

    /// What an element is known by; empty when it may be repeated.
    fn parts<'a>(&'a self, element: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::None => Vec::new(),
            Self::Whole => vec![element],
            Self::Members(keys) => {
                let part =
                    |(key, default): &'a (String, Value)| element.get(key).unwrap_or(default);
                keys.iter().map(part).collect()
            }
        }
    }

    fn shown(&self, element: &Value) -> Value {
        match self {
            Self::None | Self::Whole => element.clone(),
            Self::Members(keys) => {
                let part = |(key, default): &(String, Value)| {
                    let value = element.get(key).unwrap_or(default);
                    (key.clone(), value.clone())
                };
                Value::Object(keys.iter().map(part).collect())
            }
        }
    }
}

/// Complaints about one object, as many as are named, and the work of finding them.
struct Findings {
    errors: Vec<FieldError>,
    most: usize,
    bytes: usize,
    steps: u64,
}

impl Findings {
    fn new(most: usize, steps: u64) -> Self {
        Self {
            errors: Vec::new(),
            most,
            bytes: 0,
            steps,
        }
    }

    fn push(&mut self, error: FieldError) {
        self.bytes += error.field.len() + error.message.len();
        self.errors.push(error);
    }

    /// Whether there is no use in looking further.
    fn is_over(&self) -> bool {
        self.errors.len() >= self.most || self.bytes > MAX_BYTES || self.steps > MAX_STEPS
    }

    fn into_errors(mut self) -> Vec<FieldError> {
        let text = if self.steps > MAX_STEPS {
            "the object has too many values for the alternatives of its schema"
        } else if self.is_over() {
            "there are more errors than are named"
        } else {
            return self.errors;
        };
        self.errors.push(FieldError::rule("<nil>", text));
        self.errors
    }
}

/// Complaints of types, bounds, patterns and required fields.
pub(in crate::custom) fn schema_errors(schema: &Node, value: &Value) -> Vec<FieldError> {
    let mut findings = Findings::new(MAX_CAUSES - 1, 0);
    check(schema, value, Path::Root, &mut findings);
    findings.into_errors()
}

fn check(schema: &Node, value: &Value, path: Path<'_>, findings: &mut Findings) {
    findings.steps += 1;
    if findings.is_over() || (value.is_null() && flag(&schema.words, "nullable")) {
        return;
    }
    if let Some(error) = type_error(&schema.words, value, path) {
        findings.push(error);
        return;
    }
    if let Some(allowed) = &schema.allowed
        && !allowed.values.contains(value)
    {
        findings.push(FieldError {
            field: path.to_string(),
            reason: "FieldValueNotSupported",
            message: format!(
                "Unsupported value: {value}: supported values: {}",
                allowed.shown
            ),
        });
    }
    match value {
        Value::Number(_) => number_errors(&schema.words, value, path, findings),
        Value::String(text) => text_errors(schema, text, value, path, findings),
        Value::Array(list) => {
            let words = ("minItems", "maxItems", "items");
            size_errors(&schema.words, words, list.len(), value, path, findings);
            if let Some(items) = &schema.items {
                for (position, element) in list.iter().enumerate() {
                    check(items, element, Path::Element(&path, position), findings);
                }
            }
        }
        Value::Object(object) => {
            let words = ("minProperties", "maxProperties", "properties");
            size_errors(&schema.words, words, object.len(), value, path, findings);
            for name in &schema.required {
                if !object.contains_key(name) && !findings.is_over() {
                    let field = Path::Member(&path, name).to_string();
                    findings.push(FieldError::required(field, ""));
                }
            }
            for (name, member) in object {
                if let Some(known) = schema.member(name) {
                    check(known, member, Path::Member(&path, name), findings);
                }
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
    combined_errors(schema, value, path, findings);
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

fn type_error(schema: &Value, value: &Value, path: Path<'_>) -> Option<FieldError> {
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
    let path = path.to_string();
    let shown = if path.is_empty() { "<root>" } else { &path };
    let detail = format!("{shown} in body must be of type {wanted}: {actual:?}");
    Some(FieldError::type_invalid(&path, actual, &detail))
}

fn number_errors(schema: &Value, value: &Value, path: Path<'_>, findings: &mut Findings) {
    let Some(number) = value.as_f64() else { return };
    let bound = |name: &str| {
        schema
            .get(name)
            .and_then(|bound| Some((bound, bound.as_f64()?)))
    };
    let mut complain = |text: String| {
        findings.push(FieldError::invalid(
            path.to_string(),
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

fn text_errors(schema: &Node, text: &str, value: &Value, path: Path<'_>, findings: &mut Findings) {
    let words = &schema.words;
    let limit = |name: &str| {
        words
            .get(name)
            .and_then(Value::as_u64)
            .and_then(|limit| usize::try_from(limit).ok())
    };
    let length = text.chars().count();
    if let Some(limit) = limit("maxLength").filter(|limit| length > *limit) {
        findings.push(FieldError::too_long(path.to_string(), limit));
    }
    let mut complain = |text: &str| {
        let detail = format!("{path} in body {text}");
        findings.push(FieldError::invalid(path.to_string(), value, &detail));
    };
    if let Some(limit) = limit("minLength").filter(|limit| length < *limit) {
        complain(&format!("should be at least {limit} chars long"));
    }
    if let Some(pattern) = &schema.pattern
        && !pattern.is_match(text)
    {
        let pattern = words.get("pattern").and_then(Value::as_str);
        let pattern = pattern.unwrap_or_default();
        complain(&format!("should match '{pattern}'"));
    }
    let format = words.get("format").and_then(Value::as_str);
    let format = format.unwrap_or_default();
    if !format_fits(format, text) {
        complain(&format!("must be of type {format}: {text:?}"));
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
    path: Path<'_>,
    findings: &mut Findings,
) {
    let limit = |name: &str| {
        schema
            .get(name)
            .and_then(Value::as_u64)
            .and_then(|limit| usize::try_from(limit).ok())
    };
    if let Some(limit) = limit(most).filter(|limit| count > *limit) {
        findings.push(FieldError::too_many(path.to_string(), count, limit));
    }
    if let Some(limit) = limit(least).filter(|limit| count < *limit) {
        let detail = format!("{path} in body should have at least {limit} {what}");
        findings.push(FieldError::invalid(path.to_string(), value, &detail));
    }
}

fn combined_errors(schema: &Node, value: &Value, path: Path<'_>, findings: &mut Findings) {
    for schema in &schema.all {
        check(schema, value, path, findings);
    }
    let mut steps = findings.steps;
    let mut fits = |schema: &Node| {
        let mut trial = Findings::new(1, steps);
        check(schema, value, path, &mut trial);
        steps = trial.steps;
        trial.errors.is_empty()
    };
    let mut complaints = Vec::new();
    if let Some(any) = &schema.any
        && !any.iter().any(&mut fits)
    {
        complaints.push("must validate at least one schema (anyOf)".to_owned());
    }
    if let Some(one) = &schema.one {
        const ONE: &str = "must validate one and only one schema (oneOf). Found";
        match one.iter().filter(|schema| fits(schema)).count() {
            1 => {}
            0 => complaints.push(format!("{ONE} none valid")),
            n => complaints.push(format!("{ONE} {n} valid alternatives")),
        }
    }
    if schema.not.as_deref().is_some_and(&mut fits) {
        complaints.push("must not validate the schema (not)".to_owned());
    }
    findings.steps = steps;
    for text in complaints {
        let detail = format!("{path} in body {text}");
        findings.push(FieldError::invalid(path.to_string(), value, &detail));
    }
}

/// Repeats in lists that may have none.
pub(in crate::custom) fn list_errors(schema: &Node, value: &Value) -> Vec<FieldError> {
    let mut findings = Findings::new(MAX_CAUSES - 1, 0);
    repeats(schema, value, Path::Root, &mut findings);
    findings.into_errors()
}

fn repeats(schema: &Node, value: &Value, path: Path<'_>, findings: &mut Findings) {
    match value {
        Value::Array(list) => {
            let mut seen = HashSet::new();
            for (position, element) in list.iter().enumerate() {
                if findings.is_over() {
                    return;
                }
                let below = Path::Element(&path, position);
                let identity = schema.identity.parts(element);
                if !identity.is_empty() && !seen.insert(identity) {
                    let shown = schema.identity.shown(element);
                    findings.push(FieldError::duplicate(below.to_string(), &shown));
                }
                if let Some(items) = &schema.items {
                    repeats(items, element, below, findings);
                }
            }
        }
        Value::Object(object) => {
            for (name, member) in object {
                if let Some(known) = schema.member(name) {
                    repeats(known, member, Path::Member(&path, name), findings);
                }
            }
        }
        _ => {}
    }
}
