//! Validation of values against schemas, with the messages of upstream's validator.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use serde_json::Value;

use super::{
    flag,
    pattern::{Pattern, Patterns},
};
use crate::{
    encoding::{paths::Path, size},
    status::{FieldError, MAX_CAUSES},
};

/// Limit of all errors about one object in bytes: an error shows values, paths and allowed values.
const MAX_BYTES: usize = 1024 * 1024;

/// Limit of validation steps per object: one for each pair of value and schema, more for long texts.
/// The largest object that can be stored has less than a million values; only nested alternatives, or
/// many or large patterns on a long text, take more.
const MAX_STEPS: u64 = 10_000_000;

/// Bytes read, hashed or written per step.
const BYTES_PER_STEP: usize = 64;

/// Names looked up per step.
const NAMES_PER_STEP: usize = 8;

/// One node of a schema, compiled for validation.
#[derive(Debug, Default)]
pub(in crate::custom) struct Node {
    /// Keywords whose values are plain: bounds, lengths, type, format.
    words: Value,
    pattern: Option<Pattern>,
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

/// Uniqueness of list elements.
#[derive(Debug, Default)]
enum Identity {
    #[default]
    None,
    Whole,
    /// Key members with their defaults.
    Members(Vec<(String, Value)>),
}

fn steps(count: usize, per_step: usize) -> u64 {
    1 + (count / per_step) as u64
}

/// Steps to read a whole value.
fn steps_of(value: &Value) -> u64 {
    let mut left = size::STORED_LIMIT;
    // A value over the limit cannot be stored and counts as the limit.
    let _ = size::take(&mut left, value);
    steps(size::STORED_LIMIT - left, BYTES_PER_STEP)
}

impl Node {
    pub(in crate::custom) fn compile(schema: &Value, patterns: &mut Patterns) -> Self {
        let pattern = pattern_of(schema, patterns);
        let mut one = |name: &str| {
            let inner = schema.get(name).filter(|inner| inner.is_object());
            inner.map(|inner| Box::new(Self::compile(inner, patterns)))
        };
        let (additional, items, not) = (one("additionalProperties"), one("items"), one("not"));
        let mut several = |name: &str| {
            let list = schema.get(name).and_then(Value::as_array);
            list.map(|list| {
                let compiled = list.iter().map(|inner| Self::compile(inner, patterns));
                compiled.collect::<Vec<_>>()
            })
        };
        let (all, any, one) = (several("allOf"), several("anyOf"), several("oneOf"));
        let members = |name: &str| schema.get(name).and_then(Value::as_object);
        let words = members_of(schema).filter(|(_, value)| !value.is_array() && !value.is_object());
        let required = schema.get("required").and_then(Value::as_array);
        Self {
            words: Value::Object(
                words
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect(),
            ),
            pattern,
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
                .map(|(name, property)| (name.clone(), Self::compile(property, patterns)))
                .collect(),
            additional,
            items,
            identity: Identity::of(schema),
            all: all.unwrap_or_default(),
            any,
            one,
            not,
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

/// `None` without a compilable pattern: such a definition is refused today, but an earlier version may
/// have stored it.
fn pattern_of(schema: &Value, patterns: &mut Patterns) -> Option<Pattern> {
    let pattern = schema.get("pattern")?.as_str()?;
    let error = match patterns.compile(pattern) {
        Ok(Ok(compiled)) => return Some(compiled.clone()),
        Ok(Err(error)) => error.to_string(),
        Err(too_much) => too_much.to_string(),
    };
    tracing::warn!(%error, pattern, "cannot compile pattern of a stored definition, not enforced");
    None
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

    /// Steps to identify an element.
    fn steps(&self, element: &Value) -> u64 {
        match self {
            Self::None => 1,
            Self::Whole => steps_of(element),
            Self::Members(keys) => {
                let part = |(key, default): &(String, Value)| {
                    steps_of(element.get(key).unwrap_or(default))
                };
                keys.iter().map(part).sum()
            }
        }
    }

    /// The values that identify an element; empty when duplicates are allowed.
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

/// Errors about one object within limits of number, bytes and steps.
struct Findings {
    errors: Vec<FieldError>,
    is_trial: bool,
    count: usize,
    most: usize,
    bytes: usize,
    steps: u64,
    /// The field at which [`MAX_STEPS`] was exceeded.
    stopped_at: Option<String>,
}

impl Findings {
    fn new(most: usize, steps: u64) -> Self {
        Self {
            errors: Vec::new(),
            is_trial: false,
            count: 0,
            most,
            bytes: 0,
            steps,
            stopped_at: None,
        }
    }

    /// Reserves steps before they are taken; false when the limit is exceeded.
    fn spend(&mut self, steps: u64, path: Path<'_>) -> bool {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > MAX_STEPS && self.stopped_at.is_none() {
            self.stopped_at = Some(path.to_string());
        }
        self.stopped_at.is_none()
    }

    /// A validation that only decides between alternatives: errors are counted, not formatted.
    fn trial(steps: u64) -> Self {
        Self {
            is_trial: true,
            ..Self::new(1, steps)
        }
    }

    fn push(&mut self, error: impl FnOnce() -> FieldError) {
        self.count += 1;
        if self.is_trial {
            return;
        }
        let error = error();
        let bytes = error.field.len() + error.message.len();
        self.bytes += bytes;
        self.steps += (bytes / BYTES_PER_STEP) as u64;
        self.errors.push(error);
    }

    /// True when a limit is reached and validation can stop.
    fn is_over(&self) -> bool {
        self.count >= self.most || self.bytes > MAX_BYTES || self.stopped_at.is_some()
    }

    fn into_errors(mut self) -> Vec<FieldError> {
        if let Some(field) = self.stopped_at {
            let text = "the object takes too many steps to compare with its schema";
            self.errors.push(FieldError::forbidden(field, text));
        } else if self.is_over() {
            let text = "further errors are omitted";
            self.errors.push(FieldError::rule("<nil>", text));
        }
        self.errors
    }
}

/// Errors of types, bounds, patterns and required fields.
pub(in crate::custom) fn schema_errors(schema: &Node, value: &Value) -> Vec<FieldError> {
    let mut findings = Findings::new(MAX_CAUSES - 1, 0);
    check(schema, value, Path::Root, &mut findings);
    findings.into_errors()
}

fn check(schema: &Node, value: &Value, path: Path<'_>, findings: &mut Findings) {
    if !findings.spend(1, path)
        || findings.is_over()
        || (value.is_null() && flag(&schema.words, "nullable"))
    {
        return;
    }
    if let Some(error) = type_error(&schema.words, value, path) {
        findings.push(|| error);
        return;
    }
    if let Some(allowed) = &schema.allowed
        && findings.spend(steps_of(value), path)
        && !allowed.values.contains(value)
    {
        findings.push(|| FieldError {
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
            findings.spend(steps(schema.required.len(), NAMES_PER_STEP), path);
            for name in &schema.required {
                if findings.is_over() {
                    break;
                }
                if !object.contains_key(name) {
                    let field = || Path::Member(&path, name).to_string();
                    findings.push(|| FieldError::required(field(), ""));
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

/// The schema type of a JSON value, in upstream's words.
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
        findings.push(|| {
            let detail = format!("{path} in body should be {text}");
            FieldError::invalid(path.to_string(), value, &detail)
        });
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
    if !findings.spend(steps(text.len(), BYTES_PER_STEP), path) {
        return;
    }
    let length = text.chars().count();
    if let Some(limit) = limit("maxLength").filter(|limit| length > *limit) {
        findings.push(|| FieldError::too_long(path.to_string(), limit));
    }
    let complain = |text: fmt::Arguments<'_>, findings: &mut Findings| {
        findings.push(|| {
            let detail = format!("{path} in body {text}");
            FieldError::invalid(path.to_string(), value, &detail)
        });
    };
    if let Some(limit) = limit("minLength").filter(|limit| length < *limit) {
        let text = format_args!("should be at least {limit} chars long");
        complain(text, findings);
    }
    if let Some(pattern) = &schema.pattern
        && findings.spend(pattern.steps(text), path)
        && !pattern.is_match(text)
    {
        let pattern = words.get("pattern").and_then(Value::as_str);
        let pattern = pattern.unwrap_or_default();
        complain(format_args!("should match '{pattern}'"), findings);
    }
    let format = words.get("format").and_then(Value::as_str);
    let format = format.unwrap_or_default();
    if !format_fits(format, text) {
        let text = format_args!("must be of type {format}: {text:?}");
        complain(text, findings);
    }
}

/// Checks the formats that occur in networking; others are not checked.
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
        findings.push(|| FieldError::too_many(path.to_string(), count, limit));
    }
    if let Some(limit) = limit(least).filter(|limit| count < *limit) {
        findings.push(|| {
            let detail = format!("{path} in body should have at least {limit} {what}");
            FieldError::invalid(path.to_string(), value, &detail)
        });
    }
}

fn combined_errors(schema: &Node, value: &Value, path: Path<'_>, findings: &mut Findings) {
    for schema in &schema.all {
        check(schema, value, path, findings);
    }
    let (mut steps, mut stopped_at) = (findings.steps, findings.stopped_at.take());
    let mut fits = |schema: &Node| {
        if stopped_at.is_some() {
            return false;
        }
        let mut trial = Findings::trial(steps);
        check(schema, value, path, &mut trial);
        (steps, stopped_at) = (trial.steps, trial.stopped_at);
        trial.count == 0
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
    (findings.steps, findings.stopped_at) = (steps, stopped_at);
    if findings.stopped_at.is_some() {
        return;
    }
    for text in complaints {
        findings.push(|| {
            let detail = format!("{path} in body {text}");
            FieldError::invalid(path.to_string(), value, &detail)
        });
    }
}

/// Duplicates in lists that must not have any.
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
                let below = Path::Element(&path, position);
                if findings.is_over() {
                    return;
                }
                if !findings.spend(schema.identity.steps(element), below) {
                    return;
                }
                let identity = schema.identity.parts(element);
                if !identity.is_empty() && !seen.insert(identity) {
                    let shown = || schema.identity.shown(element);
                    findings.push(|| FieldError::duplicate(below.to_string(), &shown()));
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
