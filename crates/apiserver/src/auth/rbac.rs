//! Evaluation of roles and bindings.

mod binding;
mod cluster_roles;
mod index;

use serde_json::{Value, json};

pub(super) use binding::RoleReference;
pub(super) use index::Index;

use super::{Attributes, User, policy_rule::PolicyRule};
use crate::api::Api;

pub(super) const GROUP: &str = "rbac.authorization.k8s.io";

/// Upstream's message about the binding that allows a request; `None` when none does.
pub(super) fn decide(api: &Api, user: &User, wanted: &Attributes) -> Option<String> {
    let content = api.authorizer.index.read(&api.store);
    let mut grants = content.grants(user, &wanted.namespace);
    let grant = grants.find(|grant| grant.rules().any(|rule| allows(rule, wanted)))?;
    Some(grant.reason())
}

/// All rules that apply to a user in a namespace.
pub(super) fn rules_of(api: &Api, user: &User, namespace: &str) -> Vec<PolicyRule> {
    let content = api.authorizer.index.read(&api.store);
    let rules = content
        .grants(user, namespace)
        .flat_map(|grant| grant.rules());
    rules.map(PolicyRule::read).collect()
}

/// The rules of a role and of those it aggregates; `None` when the role does not exist.
pub(super) fn role_rules(api: &Api, reference: &RoleReference) -> Option<Vec<PolicyRule>> {
    let content = api.authorizer.index.read(&api.store);
    let rules = content
        .roles(reference)?
        .iter()
        .flat_map(|role| &role.rules);
    Some(rules.map(PolicyRule::read).collect())
}

/// All rules of a user as a SelfSubjectRulesReview shows them.
pub(super) fn rules(api: &Api, user: &User, namespace: &str) -> Value {
    let content = api.authorizer.index.read(&api.store);
    let rules = content
        .grants(user, namespace)
        .flat_map(|grant| grant.rules());
    let (paths, resources): (Vec<Value>, Vec<Value>) = rules
        .cloned()
        .partition(|rule| rule.get("nonResourceURLs").is_some());
    json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false})
}

fn allows(rule: &Value, wanted: &Attributes) -> bool {
    let listed = |name: &str| {
        let list = rule.get(name).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str)
    };
    let verb = listed("verbs").any(|verb| verb == "*" || verb == wanted.verb);
    if let Some(path) = &wanted.path {
        return verb && listed("nonResourceURLs").any(|pattern| path_matches(pattern, path));
    }
    let group = listed("apiGroups").any(|group| group == "*" || group == wanted.group);
    let resource = listed("resources").any(|resource| resource_matches(resource, &wanted.resource));
    let mut names = listed("resourceNames").peekable();
    let name = names.peek().is_none() || names.any(|name| name == wanted.name);
    verb && group && resource && name
}

fn path_matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => pattern == path,
    }
}

fn resource_matches(pattern: &str, resource: &str) -> bool {
    match (pattern.strip_prefix("*/"), resource.split_once('/')) {
        _ if pattern == "*" || pattern == resource => true,
        (Some(below), Some((_, subresource))) => below == subresource,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(verb: &str, group: &str, resource: &str, name: &str) -> Attributes {
        Attributes {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            ..Attributes::default()
        }
    }

    #[test]
    fn a_rule_allows_what_it_lists_and_nothing_else() {
        let rule = json!({
            "verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "*/scale"],
            "resourceNames": [],
        });
        assert!(allows(&rule, &wanted("get", "", "pods", "x")));
        assert!(allows(
            &rule,
            &wanted("get", "", "replicationcontrollers/scale", "x")
        ));
        assert!(!allows(&rule, &wanted("get", "", "pods/status", "x")));
        assert!(!allows(&rule, &wanted("delete", "", "pods", "x")));
        assert!(!allows(&rule, &wanted("get", "apps", "pods", "x")));
    }

    #[test]
    fn names_and_paths_narrow_a_rule() {
        let named =
            json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "resourceNames": ["a"]});
        assert!(allows(&named, &wanted("get", "x", "y", "a")));
        assert!(!allows(&named, &wanted("get", "x", "y", "b")));
        let path = |path: &str| Attributes {
            verb: "get".to_owned(),
            path: Some(path.to_owned()),
            ..Attributes::default()
        };
        let rule = json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/openapi/*"]});
        assert!(allows(&rule, &path("/openapi/v3")));
        assert!(!allows(&rule, &path("/metrics")));
        assert!(
            !allows(&named, &path("/metrics")),
            "resource rules give no paths"
        );
    }
}
