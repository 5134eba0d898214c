//! Protection of roles and bindings from privilege escalation.
//!
//! Writing a role needs every right it grants, or the verb `escalate` on it; binding a role needs
//! every right it grants, or the verb `bind` on it.

use serde_json::Value;

use super::{
    Attributes, AuthorizationMode, MASTERS, User, go_list,
    policy_rule::{PolicyRule, Uncovered, covered, listed},
    rbac,
};
use crate::{
    api::Context,
    meta::Meta as _,
    rules::WriteScope,
    status::{ApiError, Outcome},
    store::Object,
};

/// Metadata whose change needs no check: what the garbage collector and the server itself write.
const UNCHECKED: [&str; 4] = [
    "finalizers",
    "ownerReferences",
    "managedFields",
    "resourceVersion",
];

/// Refuses a write of a role or binding that would grant more than its author has.
pub(crate) fn check(
    scope: &WriteScope<'_>,
    namespace: &str,
    object: &Object,
    old: Option<&Object>,
) -> Outcome<()> {
    let Some(context) = scope.context else {
        return Ok(());
    };
    let is_checked = scope.kind.group == rbac::GROUP
        && scope.api.authorizer.mode == AuthorizationMode::Rbac
        && !context.user.is_in(MASTERS);
    if !is_checked || old.is_some_and(|old| is_collection_only(old, object)) {
        return Ok(());
    }
    let check = Check {
        scope,
        context,
        namespace,
        object,
    };
    match scope.kind.kind.as_str() {
        "Role" => check.role(),
        "ClusterRole" => check.cluster_role(old),
        "RoleBinding" | "ClusterRoleBinding" => check.binding(),
        _ => Ok(()),
    }
}

/// True when two states differ only in [`UNCHECKED`] metadata.
fn is_collection_only(old: &Object, new: &Object) -> bool {
    let stripped = |object: &Object| {
        let mut object = object.clone();
        let metadata = object.metadata_mut();
        for name in UNCHECKED {
            metadata.remove(name);
        }
        object
    };
    stripped(old) == stripped(new)
}

struct Check<'a> {
    scope: &'a WriteScope<'a>,
    context: &'a Context,
    namespace: &'a str,
    object: &'a Object,
}

impl Check<'_> {
    fn user(&self) -> &User {
        &self.context.user
    }

    fn may(&self, verb: &str, resource: &str, name: &str) -> bool {
        let wanted = Attributes {
            verb: verb.to_owned(),
            group: rbac::GROUP.to_owned(),
            resource: resource.to_owned(),
            namespace: self.namespace.to_owned(),
            name: name.to_owned(),
            path: None,
        };
        let api = self.scope.api;
        api.authorizer.decide(api, self.user(), &wanted).is_some()
    }

    /// Uses the name of the path: `escalate` on one role name does not allow creating that role.
    fn may_escalate(&self) -> bool {
        self.may("escalate", &self.scope.kind.plural, &self.context.info.name)
    }

    fn role(&self) -> Outcome<()> {
        if self.may_escalate() {
            return Ok(());
        }
        self.confirm(&own_rules(self.object))
    }

    fn cluster_role(&self, old: Option<&Object>) -> Outcome<()> {
        if self.may_escalate() {
            return Ok(());
        }
        self.confirm(&own_rules(self.object))?;
        // Aggregated rules change without a write of this role, so it counts as full authority.
        let gathers = |role: &Object| {
            let rule = role.get("aggregationRule");
            rule.is_some_and(|rule| !rule.is_null())
        };
        if !gathers(self.object) && !old.is_some_and(gathers) {
            return Ok(());
        }
        self.missing(&PolicyRule::full_authority()).map_err(|_| {
            self.refusal("must have cluster-admin privileges to use the aggregationRule")
        })
    }

    fn binding(&self) -> Outcome<()> {
        let text = |name: &str| {
            let value = self.object.at(&["roleRef", name]);
            value.and_then(Value::as_str).unwrap_or_default()
        };
        let (kind, name) = (text("kind"), text("name"));
        let Some(reference) = rbac::RoleReference::read(self.object, self.namespace) else {
            let text = format!("unsupported role reference kind: {kind:?}");
            return Err(ApiError::untyped(text));
        };
        if self.may("bind", reference.resource(), name) {
            return Ok(());
        }
        if matches!(reference, rbac::RoleReference::Role(_)) && self.namespace.is_empty() {
            return Err(ApiError::bad_request("Namespace parameter required."));
        }
        let Some(rules) = rbac::role_rules(self.scope.api, &reference) else {
            // Upstream names the binding's resource here, and the role's name.
            return Err(ApiError::not_found(self.scope.kind, name));
        };
        self.confirm(&rules)
    }

    /// Refuses unless the user holds all of these rules.
    fn confirm(&self, rules: &[PolicyRule]) -> Outcome<()> {
        self.missing(rules).map_err(|uncovered| {
            let missing = match uncovered {
                Uncovered::Missing(rules) => listed(&rules),
                Uncovered::TooMany => "more rules than can be compared".to_owned(),
            };
            self.refusal(&format!(
                "user {:?} (groups={}) is attempting to grant RBAC permissions not currently \
                 held:\n{missing}",
                self.user().name,
                go_list(&self.user().groups)
            ))
        })
    }

    fn missing(&self, rules: &[PolicyRule]) -> Result<(), Uncovered> {
        let held = rbac::rules_of(self.scope.api, self.user(), self.namespace);
        covered(&held, rules)
    }

    fn refusal(&self, detail: &str) -> ApiError {
        ApiError::forbidden(self.scope.kind, self.object.name(), detail)
    }
}

fn own_rules(role: &Object) -> Vec<PolicyRule> {
    let rules = role.get("rules").and_then(Value::as_array);
    rules.into_iter().flatten().map(PolicyRule::read).collect()
}
