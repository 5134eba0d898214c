//! ValidatingAdmissionPolicies, compiled once per resource version.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    cel::{self, Expression, ExpressionError},
    meta::Meta as _,
    status::FieldError,
    store::{Object, Stored},
};

/// A compiled expression, or the error of compiling it.
pub(super) type Compiled = Result<Expression, ExpressionError>;

/// One entry of `spec.validations`.
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
    /// API version and kind of `spec.paramKind`.
    pub(super) param_kind: Option<(String, String)>,
    pub(super) conditions: Vec<Compiled>,
    pub(super) variables: Vec<(String, Compiled)>,
    pub(super) validations: Vec<Validation>,
    /// `failurePolicy` is not `Ignore`: a write is refused when an expression fails to evaluate.
    pub(super) fails_closed: bool,
}

impl Policy {
    /// Call it in [`cel::with_deep_stack`].
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

/// Adds the compilation errors of a policy's expressions.
pub(crate) fn validate(object: &Object, errors: &mut Vec<FieldError>) {
    let parts = [
        ("matchConditions", "expression", true),
        ("variables", "expression", true),
        ("validations", "expression", true),
        ("validations", "messageExpression", false),
    ];
    let mut checked = Vec::new();
    for (list, name, required) in parts {
        for (position, entry) in entries(object, list).enumerate() {
            let text = member(entry, name);
            if required || !text.is_empty() {
                checked.push((format!("spec.{list}[{position}].{name}"), text));
            }
        }
    }
    // All on one thread: a policy may have thousands of expressions.
    let problems = cel::with_deep_stack(|| {
        let texts = checked.iter().map(|(_, text)| compilation_problem(text));
        texts.collect::<Vec<_>>()
    });
    let problems =
        problems.unwrap_or_else(|crashed| vec![Some(crashed.to_string()); checked.len()]);
    for ((field, text), problem) in checked.into_iter().zip(problems) {
        if text.is_empty() {
            errors.push(FieldError::required(field, "expression is not specified"));
        } else if let Some(problem) = problem {
            let detail = format!("compilation failed: {problem}");
            errors.push(FieldError::invalid(field, &json!(text), &detail));
        }
    }
}

/// Call it in [`cel::with_deep_stack`]. A panic of the parser becomes an error of this text.
fn compilation_problem(text: &str) -> Option<String> {
    match std::panic::catch_unwind(|| Expression::compile(text).map(drop)) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(cel::Crashed.to_string()),
    }
}

/// Cache of compiled policies by UID, with the resource version each was compiled from.
#[derive(Debug, Default)]
pub(crate) struct Policies(Mutex<HashMap<String, (u64, Arc<Policy>)>>);

impl Policies {
    /// Compiles new and changed policies, and drops those that are not in `stored`.
    pub(super) fn compiled(&self, stored: &[Arc<Stored>]) -> Vec<Arc<Policy>> {
        let mut known = self.0.lock();
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
