//! Evaluation of roles and bindings.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{Attributes, User};
use crate::{
    api::Api,
    meta::Meta as _,
    selector,
    store::{Filter, Object, object_key},
};

pub(super) const GROUP: &str = "rbac.authorization.k8s.io";

/// The binding that allows something, in upstream's words.
pub(super) fn decide(api: &Api, user: &User, wanted: &Attributes) -> Option<String> {
    for grant in grants(api, user, &wanted.namespace) {
        if grant.rules.iter().any(|rule| allows(rule, wanted)) {
            return Some(grant.reason(user));
        }
    }
    None
}

/// All rules a user has in a namespace.
pub(super) fn rules_of(api: &Api, user: &User, namespace: &str) -> Vec<Value> {
    let grants = grants(api, user, namespace).into_iter();
    grants.flat_map(|grant| grant.rules).collect()
}

/// The same as a SelfSubjectRulesReview shows them.
pub(super) fn rules(api: &Api, user: &User, namespace: &str) -> Value {
    let rules = rules_of(api, user, namespace);
    let (paths, resources): (Vec<Value>, Vec<Value>) = rules
        .into_iter()
        .partition(|rule| rule.get("nonResourceURLs").is_some());
    json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false})
}

/// A binding that names the user, with the rules of its role.
struct Grant {
    binding: Object,
    namespaced: bool,
    rules: Vec<Value>,
}

impl Grant {
    fn reason(&self, user: &User) -> String {
        let role = |name: &str| {
            self.binding
                .at(&["roleRef", name])
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (kind, name) = if self.namespaced {
            let name = format!("{}/{}", self.binding.name(), self.binding.namespace());
            ("RoleBinding", name)
        } else {
            ("ClusterRoleBinding", self.binding.name().to_owned())
        };
        let subject = subjects(&self.binding).find(|subject| is_subject(subject, user, ""));
        let subject = subject.map_or_else(String::new, |subject| {
            let text = |name: &str| {
                subject
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            match text("kind") {
                "ServiceAccount" => {
                    format!("ServiceAccount \"{}/{}\"", text("name"), text("namespace"))
                }
                kind => format!("{kind} {:?}", text("name")),
            }
        });
        format!(
            "RBAC: allowed by {kind} {name:?} of {} {:?} to {subject}",
            role("kind"),
            role("name")
        )
    }
}

fn grants(api: &Api, user: &User, namespace: &str) -> Vec<Grant> {
    let mut grants = Vec::new();
    for binding in all(api, "clusterrolebindings", None) {
        if subjects(&binding).any(|subject| is_subject(subject, user, "")) {
            let rules = role_rules(api, &binding, "");
            grants.push(Grant {
                binding,
                namespaced: false,
                rules,
            });
        }
    }
    if !namespace.is_empty() {
        for binding in all(api, "rolebindings", Some(namespace)) {
            if subjects(&binding).any(|subject| is_subject(subject, user, namespace)) {
                let rules = role_rules(api, &binding, namespace);
                grants.push(Grant {
                    binding,
                    namespaced: true,
                    rules,
                });
            }
        }
    }
    grants
}

fn all(api: &Api, plural: &str, namespace: Option<&str>) -> Vec<Object> {
    let storage = format!("{plural}.{GROUP}").into();
    let (items, _) = api.store.all(&storage, &Filter::in_namespace(namespace));
    items.iter().map(|stored| stored.decode()).collect()
}

fn subjects(binding: &Object) -> impl Iterator<Item = &Value> {
    binding
        .get("subjects")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn is_subject(subject: &Value, user: &User, namespace: &str) -> bool {
    let text = |name: &str| {
        subject
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    match text("kind") {
        "User" => text("name") == user.name,
        "Group" => user.is_in(text("name")),
        "ServiceAccount" => {
            let home = match text("namespace") {
                "" => namespace,
                home => home,
            };
            user.name == format!("system:serviceaccount:{home}:{}", text("name"))
        }
        _ => false,
    }
}

fn role_rules(api: &Api, binding: &Object, namespace: &str) -> Vec<Value> {
    let reference = RoleReference::read(binding, namespace);
    let rules = reference.and_then(|reference| reference.rules(api));
    rules.unwrap_or_default()
}

/// The role a binding refers to.
pub(super) enum RoleReference {
    /// The role's key.
    Role(String),
    /// The role's name.
    ClusterRole(String),
}

impl RoleReference {
    /// `None` when the binding refers to something else.
    pub(super) fn read(binding: &Object, namespace: &str) -> Option<Self> {
        let text = |name: &str| binding.at(&["roleRef", name]).and_then(Value::as_str);
        let name = text("name").unwrap_or_default();
        match text("kind") {
            Some("Role") => Some(Self::Role(object_key(namespace, name))),
            Some("ClusterRole") => Some(Self::ClusterRole(name.to_owned())),
            _ => None,
        }
    }

    pub(super) fn resource(&self) -> &'static str {
        match self {
            Self::Role(_) => "roles",
            Self::ClusterRole(_) => "clusterroles",
        }
    }

    /// The rules of the role and of those it aggregates; `None` when there is no such role.
    pub(super) fn rules(&self, api: &Api) -> Option<Vec<Value>> {
        let (Self::Role(key) | Self::ClusterRole(key)) = self;
        let storage = format!("{}.{GROUP}", self.resource()).into();
        let role = api.store.get(&storage, key)?.decode();
        let mut rules = own_rules(&role);
        if let Self::ClusterRole(name) = self {
            let mut seen = HashSet::from([name.clone()]);
            aggregate(api, &role, &mut seen, &mut rules);
        }
        Some(rules)
    }
}

fn own_rules(role: &Object) -> Vec<Value> {
    let rules = role.get("rules").and_then(Value::as_array);
    rules.cloned().unwrap_or_default()
}

/// Adds the rules of the roles an aggregating role selects, and of those that they select.
fn aggregate(api: &Api, role: &Object, seen: &mut HashSet<String>, rules: &mut Vec<Value>) {
    let selectors = role.at(&["aggregationRule", "clusterRoleSelectors"]);
    let Some(selectors) = selectors.and_then(Value::as_array) else {
        return;
    };
    if selectors.is_empty() {
        return;
    }
    for candidate in all(api, "clusterroles", None) {
        let labels = candidate.at(&["metadata", "labels"]);
        let selected = selectors
            .iter()
            .any(|selector| selector::matches(selector, labels));
        if selected && seen.insert(candidate.name().to_owned()) {
            rules.extend(own_rules(&candidate));
            aggregate(api, &candidate, seen, rules);
        }
    }
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
