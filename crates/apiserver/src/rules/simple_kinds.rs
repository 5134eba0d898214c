//! Rules of kinds without a module of their own, and dispatch to some that have one.

use serde_json::{Value, json};

use super::{data, endpoint_slice};
use crate::{
    meta::{Meta as _, default_to, object_mut},
    status::FieldError,
    store::Object,
};

const RBAC: &str = "rbac.authorization.k8s.io";

/// Fills in the defaults of a kind.
pub(super) fn prepare(group: &str, kind: &str, object: &mut Object) {
    match (group, kind) {
        ("", "Secret") => data::prepare_secret(object),
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice::prepare(object),
        ("networking.k8s.io", "NetworkPolicy") => {
            let spec = object_mut(object, "spec");
            let egress = spec
                .get("egress")
                .and_then(Value::as_array)
                .is_some_and(|e| !e.is_empty());
            let types = if egress {
                json!(["Ingress", "Egress"])
            } else {
                json!(["Ingress"])
            };
            default_to(spec, "policyTypes", types);
        }
        (RBAC, "RoleBinding" | "ClusterRoleBinding") => {
            default_to(object_mut(object, "roleRef"), "apiGroup", RBAC);
            for subject in elements(object, "subjects") {
                if matches!(subject.text("kind"), "User" | "Group") {
                    default_to(subject, "apiGroup", RBAC);
                }
            }
        }
        ("", "Endpoints") => {
            for subset in elements(object, "subsets") {
                for port in elements(subset, "ports") {
                    default_to(port, "protocol", "TCP");
                }
            }
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => {
            let spec = object_mut(object, "spec");
            default_to(spec, "failurePolicy", "Fail");
            default_match_constraints(object_mut(spec, "matchConstraints"));
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding") => {
            let spec = object_mut(object, "spec");
            if let Some(Value::Object(resources)) = spec.get_mut("matchResources") {
                default_match_constraints(resources);
            }
        }
        _ => {}
    }
}

fn default_match_constraints(constraints: &mut Object) {
    default_to(constraints, "matchPolicy", "Equivalent");
    default_to(constraints, "namespaceSelector", json!({}));
    default_to(constraints, "objectSelector", json!({}));
    for list in ["resourceRules", "excludeResourceRules"] {
        for rule in elements(constraints, list) {
            default_to(rule, "scope", "*");
        }
    }
}

fn elements<'a>(object: &'a mut Object, list: &str) -> impl Iterator<Item = &'a mut Object> {
    let list = object.get_mut(list).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Adds the errors of a kind.
pub(super) fn validate(
    group: &str,
    kind: &str,
    object: &Object,
    old: Option<&Object>,
    errors: &mut Vec<FieldError>,
) {
    match (group, kind) {
        ("", "ConfigMap" | "Secret") => data::validate(kind, object, old, errors),
        ("coordination.k8s.io", "Lease") => lease(object, errors),
        (RBAC, "Role" | "ClusterRole") => {
            rules(kind, object, errors);
            aggregation(object, errors);
        }
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice::validate(object, old, errors),
        ("" | "events.k8s.io", "Event") => event(group, object, old, errors),
        (RBAC, "RoleBinding" | "ClusterRoleBinding") => {
            role_reference(kind, object, errors);
            if let Some(old) = old
                && old.get("roleRef") != object.get("roleRef")
            {
                // Upstream shows the value of its Go type.
                let said = |name: &str| object.at(&["roleRef", name]).cloned();
                let value = json!({
                    "APIGroup": said("apiGroup"), "Kind": said("kind"), "Name": said("name"),
                });
                errors.push(FieldError::invalid(
                    "roleRef",
                    &value,
                    "cannot change roleRef",
                ));
            }
        }
        ("networking.k8s.io", "IPAddress")
            if object.at(&["spec", "parentRef"]).is_none_or(Value::is_null) =>
        {
            errors.push(FieldError::required("spec.parentRef", ""));
        }
        _ => {}
    }
}

fn lease(object: &Object, errors: &mut Vec<FieldError>) {
    for (name, least, text) in [
        ("leaseDurationSeconds", 1, "must be greater than 0"),
        ("leaseTransitions", 0, "must be greater than or equal to 0"),
    ] {
        let value = object.at(&["spec", name]);
        if let Some(value) = value.filter(|value| value.as_i64().is_some_and(|n| n < least)) {
            errors.push(FieldError::invalid(format!("spec.{name}"), value, text));
        }
    }
}

/// Errors of incomplete rules of a role.
fn rules(kind: &str, object: &Object, errors: &mut Vec<FieldError>) {
    let rules = object.get("rules").and_then(Value::as_array);
    for (position, rule) in rules.into_iter().flatten().enumerate() {
        let field = |name: &str| format!("rules[{position}].{name}");
        let list = |name: &str| rule.get(name).and_then(Value::as_array);
        let is_empty = |name: &str| list(name).is_none_or(Vec::is_empty);
        if is_empty("verbs") {
            let text = "verbs must contain at least one value";
            errors.push(FieldError::required(field("verbs"), text));
        }
        if let Some(paths) = list("nonResourceURLs").filter(|paths| !paths.is_empty()) {
            let both = !is_empty("apiGroups") || !is_empty("resources");
            let text = match (kind, both) {
                ("Role", _) => "namespaced rules cannot apply to non-resource URLs",
                (_, true) => "rules cannot apply to both regular resources and non-resource URLs",
                _ => continue,
            };
            let field = field("nonResourceURLs");
            errors.push(FieldError::invalid(field, &json!(paths), text));
            continue;
        }
        for (name, what) in [("apiGroups", "api group"), ("resources", "resource")] {
            if is_empty(name) {
                let text = format!("resource rules must supply at least one {what}");
                errors.push(FieldError::required(field(name), &text));
            }
        }
    }
}

/// Errors of an aggregation rule's selectors.
fn aggregation(object: &Object, errors: &mut Vec<FieldError>) {
    const FIELD: &str = "aggregationRule.clusterRoleSelectors";
    let Some(rule) = object.get("aggregationRule").filter(|rule| !rule.is_null()) else {
        return;
    };
    let selectors = rule.get("clusterRoleSelectors").and_then(Value::as_array);
    let Some(selectors) = selectors.filter(|selectors| !selectors.is_empty()) else {
        let text = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.push(FieldError::required(FIELD, text));
        return;
    };
    for (number, selector) in selectors.iter().enumerate() {
        let before = errors.len();
        let expressions = selector.get("matchExpressions").and_then(Value::as_array);
        for (position, expression) in expressions.into_iter().flatten().enumerate() {
            let field =
                |name: &str| format!("{FIELD}[{number}].matchExpressions[{position}].{name}");
            let operator = expression.get("operator").and_then(Value::as_str);
            let values = expression.get("values").and_then(Value::as_array);
            match (operator.unwrap_or_default(), values.map_or(0, Vec::len)) {
                ("In" | "NotIn", 0) => {
                    let text = "must be specified when `operator` is 'In' or 'NotIn'";
                    errors.push(FieldError::required(field("values"), text));
                }
                ("Exists" | "DoesNotExist", 1..) => {
                    let text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                    errors.push(FieldError::forbidden(field("values"), text));
                }
                ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
                (other, _) => {
                    let text = "not a valid selector operator";
                    errors.push(FieldError::invalid(field("operator"), &json!(other), text));
                }
            }
        }
        if errors.len() > before {
            let field = format!("{FIELD}[{number}]");
            errors.push(FieldError::invalid(
                field,
                &Value::Null,
                "invalid label selector.",
            ));
        }
    }
}

/// Errors of a binding's `roleRef`; only a RoleBinding can refer to a Role.
fn role_reference(kind: &str, object: &Object, errors: &mut Vec<FieldError>) {
    let said = |name: &str| {
        let value = object.at(&["roleRef", name]);
        value.and_then(Value::as_str).unwrap_or_default()
    };
    let group = said("apiGroup");
    if group != RBAC {
        let value = json!(group);
        errors.push(FieldError::not_supported(
            "roleRef.apiGroup",
            &value,
            &[RBAC],
        ));
    }
    let kinds = match kind {
        "RoleBinding" => &["Role", "ClusterRole"][..],
        _ => &["ClusterRole"],
    };
    let kind = said("kind");
    if !kinds.contains(&kind) {
        errors.push(FieldError::not_supported(
            "roleRef.kind",
            &json!(kind),
            kinds,
        ));
    }
    if said("name").is_empty() {
        errors.push(FieldError::required("roleRef.name", ""));
    }
}

fn event(group: &str, object: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let object_field = if group.is_empty() {
        "involvedObject"
    } else {
        "regarding"
    };
    let said = object
        .at(&[object_field, "namespace"])
        .and_then(Value::as_str)
        .unwrap_or_default();
    let namespace = object.namespace();
    // Events of cluster-scoped objects are in the namespace `default`.
    let fits = said == namespace || (said.is_empty() && namespace == "default");
    if !fits {
        let text = "does not match event.namespace";
        errors.push(FieldError::invalid(
            "involvedObject.namespace",
            &json!(said),
            text,
        ));
    }
    if group.is_empty() || old.is_some() {
        return;
    }
    if object.get("eventTime").is_none_or(Value::is_null) {
        errors.push(FieldError::required("eventTime", ""));
        return;
    }
    for name in [
        "reportingController",
        "reportingInstance",
        "action",
        "reason",
    ] {
        if object.text(name).is_empty() {
            errors.push(FieldError::required(name, ""));
        }
    }
    let kind = object.text("type");
    if !["Normal", "Warning"].contains(&kind) {
        errors.push(FieldError::invalid(
            "type",
            &json!(kind),
            "has invalid value",
        ));
    }
}
