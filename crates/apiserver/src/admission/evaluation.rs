//! One policy evaluated with one set of parameters.

use std::{cell::Cell, collections::HashMap};

use kube_cel::cel::{Context, Value as CelValue};
use serde_json::{Value, json};
use thiserror::Error;

use super::{Invocation, policy::Compiled};
use crate::{
    auth::User,
    cel::{self, Expression, ExpressionError, Roots, RunError, Size, VARIABLES, VariableUse},
    kind::Subresource,
    meta::Meta as _,
    options::DryRun,
    selector,
    store::Filter,
    view,
};

/// Upstream's CEL cost limit for all expressions of a policy, per write and parameter object.
const BUDGET: u64 = 10_000_000;

/// A reason to refuse a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// A validation is false; the message of the denial.
    Denied(String),
    /// An expression failed to evaluate; `failurePolicy` decides if that refuses the write.
    Failed(String),
}

/// Parameters of a policy that cannot be resolved, with upstream's messages.
#[derive(Debug, Error)]
pub(super) enum ParamsError {
    #[error(
        "failed to configure policy: failed to find resource referenced by paramKind: \
         '{api_version}, Kind={kind}'"
    )]
    UnknownKind { api_version: String, kind: String },
    #[error(
        "failed to configure binding: no params found for policy binding with `Deny` \
         parameterNotFoundAction"
    )]
    NotFound,
}

/// An expression that does not yield a bool, with upstream's messages.
#[derive(Debug, Error)]
enum ConditionError {
    #[error(transparent)]
    Compilation(#[from] ExpressionError),
    #[error("expression '{0}' resulted in error: must evaluate to bool")]
    NotBool(String),
    #[error(
        "expression '{text}' resulted in error: composited variable {variable:?} fails to evaluate: \
         {error}"
    )]
    Variable {
        text: String,
        variable: String,
        error: RunError,
    },
    #[error("expression '{text}' resulted in error: {error}")]
    Run { text: String, error: RunError },
}

impl Invocation<'_> {
    /// The parameter objects that the binding selects; one null without `paramKind` or `paramRef`.
    pub(super) fn params(&self) -> Result<Vec<Value>, ParamsError> {
        let (Some((api_version, kind)), Some(reference)) = (
            &self.policy.param_kind,
            self.binding.at(&["spec", "paramRef"]),
        ) else {
            return Ok(vec![Value::Null]);
        };
        let text = |name: &str| {
            reference
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let served = self.scope.api.registry.served();
        let Some(kind) = served.of_kind(group, kind) else {
            return Err(ParamsError::UnknownKind {
                api_version: api_version.clone(),
                kind: kind.clone(),
            });
        };
        let namespace = match text("namespace") {
            "" if kind.namespaced => self.request.namespace(),
            namespace => namespace,
        };
        let filter = Filter::in_namespace(kind.namespaced.then_some(namespace));
        let (all, _) = self.scope.api.store.all(&kind.storage, &filter);
        let wanted = |object: &crate::store::Object| match (reference.get("selector"), text("name"))
        {
            (Some(selector), "") => selector::matches(selector, object.at(&["metadata", "labels"])),
            (_, name) => object.name() == name,
        };
        let found: Vec<Value> = all
            .iter()
            .map(|stored| view::object(kind, stored))
            .filter(wanted)
            .map(Value::Object)
            .collect();
        if found.is_empty() && text("parameterNotFoundAction") == "Deny" {
            return Err(ParamsError::NotFound);
        }
        Ok(found)
    }

    /// The CEL variable `request`.
    fn request_variable(&self) -> Value {
        let (kind, request) = (self.scope.kind, self.request);
        let own = (&*kind.group, &*kind.version, &*kind.kind);
        let shown = request
            .subresource
            .and_then(Subresource::kind)
            .unwrap_or(own);
        let user = self.scope.context.map(|context| &context.user);
        let kind_value = json!({"group": shown.0, "version": shown.1, "kind": shown.2});
        let resource = json!({
            "group": kind.group, "version": kind.version, "resource": kind.plural,
        });
        let mut variable = json!({
            "operation": request.operation.name(),
            "kind": kind_value,
            "requestKind": kind_value,
            "resource": resource,
            "requestResource": resource,
            "dryRun": request.dry_run == DryRun::Yes,
            "options": {"kind": request.operation.options(), "apiVersion": "meta.k8s.io/v1"},
            "userInfo": user.map_or_else(
                || json!({"username": null, "groups": null}),
                User::to_info,
            ),
        });
        // Empty fields are absent.
        for (name, text) in [
            ("name", request.name),
            ("namespace", request.namespace()),
            (
                "subResource",
                request.subresource.map_or("", Subresource::name),
            ),
            (
                "requestSubResource",
                request.subresource.map_or("", Subresource::name),
            ),
        ] {
            if !text.is_empty() {
                variable[name] = text.into();
            }
        }
        variable
    }
}

/// One policy evaluated with one parameter object.
pub(super) struct Evaluation<'a> {
    invocation: &'a Invocation<'a>,
    values: [(&'static str, Value); 5],
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(invocation: &'a Invocation<'a>, params: &Value) -> Self {
        let side = |object: Option<&crate::store::Object>| {
            object.map_or(Value::Null, |object| Value::Object(object.clone()))
        };
        let namespace = invocation
            .namespace_object()
            .map_or(Value::Null, Value::Object);
        Self {
            values: [
                ("object", side(invocation.request.object)),
                ("oldObject", side(invocation.request.old)),
                ("request", invocation.request_variable()),
                ("params", params.clone()),
                ("namespaceObject", namespace),
            ],
            invocation,
        }
    }

    /// All reasons to refuse the write; call it in [`cel::with_deep_stack`].
    pub(super) fn findings(&self) -> Vec<Finding> {
        let variables: Vec<(&str, &Value)> = self
            .values
            .iter()
            .map(|(name, value)| (*name, value))
            .collect();
        let mut evaluator = Evaluator {
            context: cel::context(&variables),
            roots: variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), Size::of(value)))
                .collect(),
            variables: HashMap::new(),
            budget: Cell::new(BUDGET),
        };
        evaluator.set_variables(&self.invocation.policy.variables);
        let judge = |compiled: &Compiled| evaluator.truth(compiled);
        for condition in &self.invocation.policy.conditions {
            match judge(condition) {
                Ok(true) => {}
                Ok(false) => return Vec::new(),
                Err(error) => return vec![Finding::Failed(error.to_string())],
            }
        }
        let mut findings = Vec::new();
        for validation in &self.invocation.policy.validations {
            match judge(&validation.expression) {
                Ok(true) => {}
                Ok(false) => {
                    let said = validation.message_expression.as_ref();
                    let said = said.and_then(|compiled| {
                        match evaluator.run(compiled.as_ref().ok()?).ok()? {
                            CelValue::String(text) if !text.trim().is_empty() => {
                                Some(text.to_string())
                            }
                            _ => None,
                        }
                    });
                    let message = said.or_else(|| validation.message.clone());
                    let text = validation.expression.as_ref().map_or("", |e| &e.text);
                    findings.push(Finding::Denied(
                        message.unwrap_or_else(|| format!("failed expression: {text}")),
                    ));
                }
                Err(error) => findings.push(Finding::Failed(error.to_string())),
            }
        }
        findings
    }
}

/// CEL environment of one evaluation: variables and the cost budget they share.
struct Evaluator<'a> {
    context: Context<'static>,
    roots: Roots<'a>,
    /// The variables evaluated so far.
    variables: HashMap<&'a str, Variable>,
    /// CEL cost that is left.
    budget: Cell<u64>,
}

/// The last value set under a name, and the first error.
#[derive(Default)]
struct Variable {
    value: Option<CelValue>,
    error: Option<RunError>,
}

impl<'a> Evaluator<'a> {
    /// Evaluates the variables in declaration order: each may use those before it.
    fn set_variables(&mut self, variables: &'a [(String, Compiled)]) {
        for (name, compiled) in variables {
            let outcome = match compiled {
                Ok(expression) => {
                    let size = expression.estimate(&self.roots).size;
                    self.roots.insert(format!("{VARIABLES}.{name}"), size);
                    self.run(expression)
                }
                Err(error) => Err(RunError::Failed(error.to_string())),
            };
            let variable = self.variables.entry(name).or_default();
            match outcome {
                Ok(value) => variable.value = Some(value),
                Err(error) => drop(variable.error.get_or_insert(error)),
            }
        }
    }

    /// Evaluates an expression. Only the variables that it uses are passed: the interpreter copies
    /// each of them.
    fn run(&self, expression: &Expression) -> Result<CelValue, RunError> {
        let value = |name: &str| self.variables.get(name)?.value.clone();
        let shown: HashMap<String, CelValue> = match &expression.variables {
            VariableUse::Named(names) => names
                .iter()
                .filter_map(|name| Some((name.clone(), value(name)?)))
                .collect(),
            VariableUse::All => {
                self.spend(self.variables.len() as u64)?;
                let names = self.variables.keys();
                names
                    .filter_map(|name| Some(((*name).to_owned(), value(name)?)))
                    .collect()
            }
        };
        let cost = expression.estimate(&self.roots).cost;
        // An expression above the limit is refused by `Expression::run` and costs nothing.
        if cost <= cel::CALL_LIMIT {
            self.spend(cost)?;
        }
        if self.variables.is_empty() {
            return expression.run(&self.context, &self.roots);
        }
        let mut scope = self.context.new_inner_scope();
        scope.add_variable_from_value(VARIABLES, shown);
        expression.run(&scope, &self.roots)
    }

    fn spend(&self, cost: u64) -> Result<(), RunError> {
        let left = self.budget.get().checked_sub(cost);
        self.budget.set(left.unwrap_or(0));
        left.map(drop).ok_or(RunError::OutOfBudget)
    }

    /// Evaluates an expression that must yield a bool.
    fn truth(&self, compiled: &Compiled) -> Result<bool, ConditionError> {
        let expression = compiled.as_ref().map_err(Clone::clone)?;
        let text = expression.text.clone();
        let error = match self.run(expression) {
            Ok(CelValue::Bool(value)) => return Ok(value),
            Ok(_) => return Err(ConditionError::NotBool(text)),
            Err(error) => error,
        };
        // A variable that failed is absent, so an expression that uses it misses a key.
        if let RunError::NoSuchKey(key) = &error
            && let Some(variable) = self.variables.get(key.as_str())
            && let Some(error) = &variable.error
        {
            return Err(ConditionError::Variable {
                text,
                variable: key.to_string(),
                error: error.clone(),
            });
        }
        Err(ConditionError::Run { text, error })
    }
}
