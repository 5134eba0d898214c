//! Match constraints: the writes that a policy and its binding select.

use serde_json::Value;

use super::Invocation;
use crate::{kind::Subresource, meta::Meta as _, selector, store::Object};

/// The meaning of a block of match constraints without resource rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WithoutRules {
    SelectsNothing,
    SelectsAll,
}

impl Invocation<'_> {
    pub(super) fn selects(&self) -> bool {
        self.matches(&self.policy.constraints, WithoutRules::SelectsNothing)
            && self
                .binding
                .at(&["spec", "matchResources"])
                .is_none_or(|resources| self.matches(resources, WithoutRules::SelectsAll))
    }

    /// True when a block of match constraints selects the write.
    fn matches(&self, block: &Value, without_rules: WithoutRules) -> bool {
        let rules = |name: &str| {
            let rules = block.get(name).and_then(Value::as_array);
            rules.map(Vec::as_slice).unwrap_or_default()
        };
        let any = |rules: &[Value]| rules.iter().any(|rule| self.rule_matches(rule));
        let selected = rules("resourceRules");
        let included =
            (selected.is_empty() && without_rules == WithoutRules::SelectsAll) || any(selected);
        included
            && !any(rules("excludeResourceRules"))
            && block
                .get("objectSelector")
                .is_none_or(|selector| self.object_matches(selector))
            && block
                .get("namespaceSelector")
                .is_none_or(|selector| self.namespace_matches(selector))
    }

    fn rule_matches(&self, rule: &Value) -> bool {
        let kind = self.scope.kind;
        let list = |name: &str| {
            let list = rule.get(name).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(Value::as_str)
        };
        let listed = |name: &str, wanted: &str| list(name).any(|v| v == "*" || v == wanted);
        let mut names = list("resourceNames").peekable();
        let named = names.peek().is_none() || names.any(|name| name == self.request.name);
        let scope = rule.get("scope").and_then(Value::as_str).unwrap_or("*");
        listed("apiGroups", &kind.group)
            && listed("apiVersions", &kind.version)
            && listed("operations", self.request.operation.name())
            && list("resources").any(|pattern| self.resource_matches(pattern))
            && named
            && match scope {
                "Namespaced" => kind.namespaced,
                "Cluster" => !kind.namespaced,
                _ => true,
            }
    }

    /// `pods`, `pods/status`, `pods/*`, `*/scale`, `*` or `*/*`.
    fn resource_matches(&self, pattern: &str) -> bool {
        let (resource, subresource) = pattern.split_once('/').unwrap_or((pattern, ""));
        let actual = self.request.subresource.map_or("", Subresource::name);
        (resource == "*" || resource == self.scope.kind.plural)
            && (subresource == "*" || subresource == actual)
    }

    /// True when the selector matches the object before or after the write.
    fn object_matches(&self, selector: &Value) -> bool {
        let mut sides = [self.request.object, self.request.old]
            .into_iter()
            .flatten();
        sides.any(|object| selector::matches(selector, labels(object)))
    }

    fn namespace_matches(&self, selector: &Value) -> bool {
        if self.scope.kind.is("", "Namespace") {
            return self.object_matches(selector);
        }
        self.namespace_object()
            .is_none_or(|namespace| selector::matches(selector, labels(&namespace)))
    }

    /// The Namespace object of the write; none for cluster-scoped kinds.
    pub(super) fn namespace_object(&self) -> Option<Object> {
        if !self.scope.kind.namespaced {
            return None;
        }
        let name = self.request.namespace();
        let stored = self.scope.writer.get(&"namespaces".into(), name)?;
        Some(stored.decode())
    }
}

fn labels(object: &Object) -> Option<&Value> {
    object.at(&["metadata", "labels"])
}
