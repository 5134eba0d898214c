//! ValidatingAdmissionPolicies and their bindings, evaluated on every write of a client.
//!
//! Writes that the server makes itself (controllers, bootstrap) have no request and skip them.

mod evaluation;
mod matching;
mod policy;

use serde_json::Value;

use crate::{
    api::Api,
    cel,
    kind::Subresource,
    meta::Meta,
    options::DryRun,
    rules::WriteScope,
    status::{ApiError, Outcome},
    store::{Filter, Object},
};

use evaluation::{Evaluation, Finding};
use policy::Policy;
pub(crate) use policy::{Policies, validate};

const GROUP: &str = "admissionregistration.k8s.io";

/// The operation of an AdmissionRequest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }

    fn options(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Delete => "DeleteOptions",
        }
    }
}

/// The write that policies decide on: the fields of `AdmissionRequest` that this server sets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdmissionRequest<'a> {
    pub(crate) operation: Operation,
    pub(crate) subresource: Option<Subresource>,
    /// The name in the request; empty when a collection is deleted.
    pub(crate) name: &'a str,
    pub(crate) object: Option<&'a Object>,
    pub(crate) old: Option<&'a Object>,
    pub(crate) dry_run: DryRun,
}

impl AdmissionRequest<'_> {
    fn namespace(&self) -> &str {
        self.object
            .or(self.old)
            .map(Meta::namespace)
            .unwrap_or_default()
    }

    /// The name to show in a refusal: that of the request, else of the object, else `Unknown`.
    fn shown_name(&self) -> &str {
        let own = self.object.map(Meta::name).unwrap_or_default();
        [self.name, own, "Unknown"]
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or_default()
    }
}

/// True when at least one binding exists: without one no policy is evaluated.
pub(crate) fn is_active(api: &Api) -> bool {
    let bindings = format!("validatingadmissionpolicybindings.{GROUP}").into();
    api.store.has_any(&bindings)
}

/// Evaluates every bound policy that matches a write; an error is the first denial.
pub(crate) fn admit(scope: &WriteScope<'_>, request: &AdmissionRequest<'_>) -> Outcome<()> {
    // As upstream: policies do not apply to policies and bindings, so a bad one can be removed.
    if scope.kind.group == GROUP || scope.context.is_none() {
        return Ok(());
    }
    let all = |plural: &str| {
        let storage = format!("{plural}.{GROUP}").into();
        scope.api.store.all(&storage, &Filter::default()).0
    };
    let bindings = all("validatingadmissionpolicybindings");
    if bindings.is_empty() {
        return Ok(());
    }
    let policies = scope
        .api
        .policies
        .compiled(&all("validatingadmissionpolicies"));
    for binding in bindings.iter().map(|stored| stored.decode()) {
        let name = binding
            .at(&["spec", "policyName"])
            .and_then(Value::as_str)
            .unwrap_or_default();
        let Some(policy) = policies.iter().find(|policy| policy.name == name) else {
            continue;
        };
        let invocation = Invocation {
            scope,
            request,
            policy,
            binding: &binding,
        };
        if invocation.selects() {
            invocation.decide()?;
        }
    }
    Ok(())
}

/// One policy with one of its bindings, applied to one write.
struct Invocation<'a> {
    scope: &'a WriteScope<'a>,
    request: &'a AdmissionRequest<'a>,
    policy: &'a Policy,
    binding: &'a Object,
}

impl Invocation<'_> {
    fn decide(&self) -> Outcome<()> {
        let findings = match self.params() {
            Ok(all) => {
                let judge = || {
                    let evaluations = all.iter().map(|params| Evaluation::new(self, params));
                    evaluations.flat_map(|e| e.findings()).collect::<Vec<_>>()
                };
                cel::with_deep_stack(judge)
                    .unwrap_or_else(|crashed| vec![Finding::Failed(crashed.to_string())])
            }
            Err(error) => vec![Finding::Failed(error.to_string())],
        };
        for finding in findings {
            match finding {
                Finding::Denied(message) => self.react(&message)?,
                Finding::Failed(message) if self.policy.fails_closed => self.react(&message)?,
                Finding::Failed(_) => {}
            }
        }
        Ok(())
    }

    fn react(&self, message: &str) -> Outcome<()> {
        let (policy, binding) = (&self.policy.name, self.binding.name());
        let actions = self
            .binding
            .at(&["spec", "validationActions"])
            .and_then(Value::as_array);
        let wants = |action: &str| {
            actions.is_some_and(|actions| actions.iter().any(|known| known == action))
        };
        if wants("Warn")
            && let Some(context) = self.scope.context
        {
            context.warn(format!(
                "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding \
                 '{binding}': {message}"
            ));
        }
        if wants("Deny") {
            let detail = format!(
                "ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: \
                 {message}"
            );
            let name = self.request.shown_name();
            return Err(ApiError::denied(self.scope.kind, name, &detail));
        }
        Ok(())
    }
}
