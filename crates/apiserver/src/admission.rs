//! ValidatingAdmissionPolicies and their bindings, evaluated on every write.

use kube_cel::{
    AdmissionRequest, GroupVersionKind, GroupVersionResource, VapEvaluator, VapExpression,
};
use serde_json::Value;

use crate::{
    meta::Meta as _,
    rules::Scene,
    status::{ApiError, Outcome},
    store::{Filter, Object},
};

const GROUP: &str = "admissionregistration.k8s.io";

/// Bytes an expression may have once its variables are written out.
const MAX_EXPANDED: usize = 64 * 1024;

/// Whether the policies let an object in.
pub(crate) fn admit(scene: &Scene<'_>, object: &Object, old: Option<&Object>) -> Outcome<()> {
    // Upstream never lets policies stand in their own way.
    if scene.kind.group == GROUP || scene.context.is_none() {
        return Ok(());
    }
    let all = |plural: &str| {
        let storage = format!("{plural}.{GROUP}").into();
        scene.api.store.all(&storage, &Filter::default()).0
    };
    let bindings = all("validatingadmissionpolicybindings");
    if bindings.is_empty() {
        return Ok(());
    }
    let policies: Vec<Object> = all("validatingadmissionpolicies")
        .iter()
        .map(|stored| stored.decode())
        .collect();
    for binding in bindings.iter().map(|stored| stored.decode()) {
        let name = binding
            .at(&["spec", "policyName"])
            .and_then(Value::as_str)
            .unwrap_or_default();
        let Some(policy) = policies.iter().find(|policy| policy.name() == name) else {
            continue;
        };
        let case = Case {
            scene,
            object,
            old,
            policy,
            binding: &binding,
        };
        if case.selects() && case.conditions_hold()? {
            case.evaluate()?;
        }
    }
    Ok(())
}

/// One policy, bound, and one object.
struct Case<'a> {
    scene: &'a Scene<'a>,
    object: &'a Object,
    old: Option<&'a Object>,
    policy: &'a Object,
    binding: &'a Object,
}

impl Case<'_> {
    fn operation(&self) -> &'static str {
        if self.old.is_some() {
            "UPDATE"
        } else {
            "CREATE"
        }
    }

    fn selects(&self) -> bool {
        let constraints = self.policy.at(&["spec", "matchConstraints"]);
        constraints.is_some_and(|constraints| self.matches(constraints, true))
            && self
                .binding
                .at(&["spec", "matchResources"])
                .is_none_or(|resources| self.matches(resources, false))
    }

    /// Whether a match block selects the request; a binding without rules selects all.
    fn matches(&self, block: &Value, rules_required: bool) -> bool {
        let rules = |name: &str| {
            block
                .get(name)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        };
        let selected = rules("resourceRules");
        let included = (selected.is_empty() && !rules_required)
            || selected.iter().any(|rule| self.rule_matches(rule));
        let excluded = rules("excludeResourceRules")
            .iter()
            .any(|rule| self.rule_matches(rule));
        let labels = |object: &Object| {
            object
                .at(&["metadata", "labels"])
                .cloned()
                .unwrap_or_default()
        };
        let selector = |name: &str, labels: &Value| {
            block
                .get(name)
                .is_none_or(|selector| selector_matches(selector, labels))
        };
        let namespace_labels = self.namespace_object().map(|object| labels(&object));
        included
            && !excluded
            && selector("objectSelector", &labels(self.object))
            && namespace_labels.is_none_or(|labels| selector("namespaceSelector", &labels))
    }

    fn rule_matches(&self, rule: &Value) -> bool {
        let kind = self.scene.kind;
        let listed = |name: &str, wanted: &str| {
            let list = rule.get(name).and_then(Value::as_array);
            list.into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .any(|v| v == "*" || v == wanted)
        };
        let names = rule.get("resourceNames").and_then(Value::as_array);
        let scope = rule.get("scope").and_then(Value::as_str).unwrap_or("*");
        listed("apiGroups", &kind.group)
            && listed("apiVersions", &kind.version)
            && listed("operations", self.operation())
            && listed("resources", &kind.plural)
            && names.is_none_or(|names| names.iter().any(|name| name == self.object.name()))
            && match scope {
                "Namespaced" => kind.namespaced,
                "Cluster" => !kind.namespaced,
                _ => true,
            }
    }

    fn namespace_object(&self) -> Option<Object> {
        let namespace = self.object.namespace();
        let stored = self.scene.writer.get(&"namespaces".into(), namespace)?;
        self.scene.kind.namespaced.then(|| stored.decode())
    }

    fn evaluator(&self) -> VapEvaluator {
        let kind = self.scene.kind;
        let user = self.scene.context.map(|context| context.user.clone());
        let request = AdmissionRequest {
            operation: self.operation().to_owned(),
            username: user
                .as_ref()
                .map(|user| user.name.clone())
                .unwrap_or_default(),
            uid: String::new(),
            groups: user.map(|user| user.groups).unwrap_or_default(),
            name: self.object.name().to_owned(),
            namespace: self.object.namespace().to_owned(),
            dry_run: false,
            kind: GroupVersionKind {
                group: kind.group.clone(),
                version: kind.version.clone(),
                kind: kind.kind.clone(),
            },
            resource: GroupVersionResource {
                group: kind.group.clone(),
                version: kind.version.clone(),
                resource: kind.plural.clone(),
            },
        };
        let mut builder = VapEvaluator::builder()
            .object(Value::Object(self.object.clone()))
            .request(request);
        if let Some(old) = self.old {
            builder = builder.old_object(Value::Object(old.clone()));
        }
        if let Some(namespace) = self.namespace_object() {
            builder = builder.namespace_object(Value::Object(namespace));
        }
        if let Some(params) = self.params() {
            builder = builder.params(params);
        }
        builder.build()
    }

    /// The object a binding gives its policy as parameters.
    fn params(&self) -> Option<Value> {
        let text = |object: &Object, path: &[&str]| {
            Some(object.at(path)?.as_str()?.to_owned()).filter(|text| !text.is_empty())
        };
        let group_version = text(self.policy, &["spec", "paramKind", "apiVersion"])?;
        let kind = text(self.policy, &["spec", "paramKind", "kind"])?;
        let name = text(self.binding, &["spec", "paramRef", "name"])?;
        let group = group_version.split_once('/').map_or("", |(group, _)| group);
        let served = self.scene.api.registry.served();
        let kind = served.of_kind(group, &kind)?;
        let namespace = match text(self.binding, &["spec", "paramRef", "namespace"]) {
            Some(namespace) => namespace,
            None if kind.namespaced => self.object.namespace().to_owned(),
            None => String::new(),
        };
        let key = crate::store::object_key(&namespace, &name);
        let stored = self.scene.writer.get(&kind.storage, &key)?;
        Some(Value::Object(crate::view::object(kind, &stored)))
    }

    /// A policy's variables, written out in place: expressions have no effects, so this is the
    /// same as evaluating each once.
    ///
    /// A variable that uses another twice doubles it, so the length is bounded.
    fn expand(&self, expression: &str) -> Outcome<String> {
        let variables = self
            .policy
            .at(&["spec", "variables"])
            .and_then(Value::as_array);
        let mut text = expression.to_owned();
        // Later variables may use earlier ones, so the last is written out first.
        for variable in variables.into_iter().flatten().rev() {
            let part = |name: &str| {
                variable
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            let replacement = format!("({})", part("expression"));
            text = write_out(&text, part("name"), &replacement).ok_or_else(|| {
                let detail = format!(
                    "ValidatingAdmissionPolicy '{}' has an expression of more than {MAX_EXPANDED} \
                     bytes with its variables written out",
                    self.policy.name()
                );
                ApiError::denied(self.scene.kind, self.object.name(), &detail)
            })?;
        }
        Ok(text)
    }

    fn expressions(&self, list: &str) -> Outcome<Vec<VapExpression>> {
        let entries = self.policy.at(&["spec", list]).and_then(Value::as_array);
        let text =
            |entry: &Value, name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
        entries
            .into_iter()
            .flatten()
            .map(|entry| {
                Ok(VapExpression {
                    expression: self.expand(&text(entry, "expression").unwrap_or_default())?,
                    message: text(entry, "message"),
                    message_expression: text(entry, "messageExpression")
                        .map(|text| self.expand(&text))
                        .transpose()?,
                })
            })
            .collect()
    }

    fn conditions_hold(&self) -> Outcome<bool> {
        let conditions = self.expressions("matchConditions")?;
        Ok(conditions.is_empty()
            || self
                .evaluator()
                .evaluate(&conditions)
                .iter()
                .all(|result| result.passed))
    }

    fn evaluate(&self) -> Outcome<()> {
        let results = self.evaluator().evaluate(&self.expressions("validations")?);
        let written = self
            .policy
            .at(&["spec", "validations"])
            .and_then(Value::as_array);
        for (result, entry) in results.iter().zip(written.into_iter().flatten()) {
            if result.passed {
                continue;
            }
            let expression = entry
                .get("expression")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let said = result
                .message
                .clone()
                .or_else(|| Some(entry.get("message")?.as_str()?.to_owned()));
            let message = said.unwrap_or_else(|| format!("failed expression: {expression}"));
            self.react(&message)?;
        }
        Ok(())
    }

    fn react(&self, message: &str) -> Outcome<()> {
        let (policy, binding) = (self.policy.name(), self.binding.name());
        let actions = self
            .binding
            .at(&["spec", "validationActions"])
            .and_then(Value::as_array);
        let wants = |action: &str| {
            actions.is_some_and(|actions| actions.iter().any(|known| known == action))
        };
        if wants("Warn")
            && let Some(context) = self.scene.context
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
            return Err(ApiError::denied(
                self.scene.kind,
                self.object.name(),
                &detail,
            ));
        }
        Ok(())
    }
}

/// Puts a text in the place of a variable, whole names only; none when the result is too long.
fn write_out(text: &str, variable: &str, replacement: &str) -> Option<String> {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let wanted = format!("variables.{variable}");
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(&wanted) {
        let (before, found) = rest.split_at(at);
        let after = &found[wanted.len()..];
        result.push_str(before);
        let within = result
            .chars()
            .next_back()
            .is_some_and(|character| is_name(character) || character == '.')
            || after.starts_with(is_name);
        result.push_str(if within { &wanted } else { replacement });
        if result.len() > MAX_EXPANDED {
            return None;
        }
        rest = after;
    }
    result.push_str(rest);
    (result.len() <= MAX_EXPANDED).then_some(result)
}

/// A label selector in its structured form.
fn selector_matches(selector: &Value, labels: &Value) -> bool {
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    let equal = selector.get("matchLabels").and_then(Value::as_object);
    let equal = equal
        .into_iter()
        .flatten()
        .all(|(key, value)| label(key) == value.as_str());
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    equal
        && expressions.into_iter().flatten().all(|expression| {
            let key = expression
                .get("key")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let values = expression.get("values").and_then(Value::as_array);
            let listed = |value: &str| values.is_some_and(|list| list.iter().any(|v| v == value));
            match (
                expression.get("operator").and_then(Value::as_str),
                label(key),
            ) {
                (Some("In"), value) => value.is_some_and(listed),
                (Some("NotIn"), value) => !value.is_some_and(listed),
                (Some("Exists"), value) => value.is_some(),
                (Some("DoesNotExist"), value) => value.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_written_out_by_whole_names_and_within_bounds() {
        let text = "variables.count < variables.countMax + x.variables.count";
        assert_eq!(
            write_out(text, "count", "(1)").unwrap(),
            "(1) < variables.countMax + x.variables.count"
        );
        let long = "x".repeat(MAX_EXPANDED / 2);
        assert_eq!(write_out("variables.p + variables.p", "p", &long), None);
    }
}
