//! Policies, compiled once per version.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::{Value, json};

use crate::{
    cel::{self, Expression, ExpressionError},
    meta::Meta as _,
    status::FieldError,
    store::{Object, Stored},
};

/// An expression, or why there is none.
pub(super) type Compiled = Result<Expression, ExpressionError>;

/// What must hold.
#[derive(Debug)]
pub(super) struct Validation {
    pub(super) expression: Compiled,
    pub(super) message: Option<String>,
    pub(super) message_expression: Option<Compiled>,
}

/// One policy, ready to be evaluated.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) constraints: Value,
    /// API version and kind of its parameters.
    pub(super) param_kind: Option<(String, String)>,
    pub(super) conditions: Vec<Compiled>,
    pub(super) variables: Vec<(String, Compiled)>,
    pub(super) validations: Vec<Validation>,
    /// Whether a write is refused when an expression fails.
    pub(super) fails_closed: bool,
}

impl Policy {
    /// Only to be called with a deep stack.
    fn compile(object: &Object) -> Self {
        let text = |path: &[&str]| object.at(path).and_then(Value::as_str).map(str::to_owned);
        let param_kind = text(&["spec", "paramKind", "apiVersion"])
            .zip(text(&["spec", "paramKind", "kind"]))
            .filter(|(_, kind)| !kind.is_empty());
        Self {
            name: object.name().to_owned(),
            constraints: object
                .at(&["spec", "matchConstraints"])
                .cloned()
                .unwrap_or_default(),
            param_kind,
            conditions: entries(object, "matchConditions")
                .map(|entry| compile(entry, "expression"))
                .collect(),
            variables: entries(object, "variables")
                .map(|entry| {
                    (
                        member(entry, "name").to_owned(),
                        compile(entry, "expression"),
                    )
                })
                .collect(),
            validations: entries(object, "validations")
                .map(|entry| Validation {
                    expression: compile(entry, "expression"),
                    message: entry
                        .get("message")
                        .and_then(Value::as_str)
                        .map(str::to_owned),
                    message_expression: entry
                        .get("messageExpression")
                        .map(|_| compile(entry, "messageExpression")),
                })
                .collect(),
            fails_closed: text(&["spec", "failurePolicy"]).as_deref() != Some("Ignore"),
        }
    }
}

fn entries<'a>(object: &'a Object, list: &str) -> impl Iterator<Item = &'a Value> {
    let entries = object.at(&["spec", list]).and_then(Value::as_array);
    entries.into_iter().flatten()
}

fn member<'a>(entry: &'a Value, name: &str) -> &'a str {
    entry.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn compile(entry: &Value, name: &str) -> Compiled {
    Expression::compile(member(entry, name))
}

/// Complaints about the expressions of a policy.
pub(crate) fn validate(object: &Object, errors: &mut Vec<FieldError>) {
    let parts = [
        ("matchConditions", "expression", true),
        ("variables", "expression", true),
        ("validations", "expression", true),
        ("validations", "messageExpression", false),
    ];
    for (list, name, required) in parts {
        for (position, entry) in entries(object, list).enumerate() {
            let field = || format!("spec.{list}[{position}].{name}");
            let text = member(entry, name);
            if text.is_empty() {
                if required {
                    errors.push(FieldError::required(field(), "expression is not specified"));
                }
                continue;
            }
            let compiled = cel::with_deep_stack(|| Expression::compile(text).map(drop));
            let problem = match compiled {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(crashed) => crashed.to_string(),
            };
            let detail = format!("compilation failed: {problem}");
            errors.push(FieldError::invalid(field(), &json!(text), &detail));
        }
    }
}

/// The policies as last compiled, by UID.
#[derive(Debug, Default)]
pub(crate) struct Policies(Mutex<HashMap<String, (u64, Arc<Policy>)>>);

impl Policies {
    /// Compiles what changed and forgets what is gone.
    pub(super) fn compiled(&self, stored: &[Arc<Stored>]) -> Vec<Arc<Policy>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fresh = HashMap::with_capacity(stored.len());
        for policy in stored {
            let uid = policy.uid.to_string();
            let kept = known
                .remove(&uid)
                .filter(|(version, _)| *version == policy.version);
            let compiled = kept.or_else(|| {
                let compile = || Policy::compile(&policy.decode());
                let compiled = cel::with_deep_stack(compile).ok()?;
                Some((policy.version, Arc::new(compiled)))
            });
            fresh.extend(compiled.map(|compiled| (uid, compiled)));
        }
        *known = fresh;
        known.values().map(|(_, policy)| policy.clone()).collect()
    }
}
