//! Kinds with a rule or two.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    meta::{Meta as _, default_to, object_mut},
    status::FieldError,
    store::Object,
};

/// What ConfigMaps and Secrets may hold.
const DATA_LIMIT: usize = 1024 * 1024;

const RBAC: &str = "rbac.authorization.k8s.io";

/// Defaults.
pub(super) fn prepare(group: &str, kind: &str, object: &mut Object) {
    match (group, kind) {
        ("", "Secret") => {
            default_to(object, "type", "Opaque");
            if let Some(Value::Object(texts)) = object.remove("stringData") {
                let data = object_mut(object, "data");
                for (name, text) in texts {
                    let bytes = STANDARD.encode(text.as_str().unwrap_or_default());
                    data.insert(name, bytes.into());
                }
            }
        }
        ("discovery.k8s.io", "EndpointSlice") => {
            for port in elements(object, "ports") {
                default_to(port, "name", "");
                default_to(port, "protocol", "TCP");
            }
        }
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

/// Complaints.
pub(super) fn validate(
    group: &str,
    kind: &str,
    object: &Object,
    old: Option<&Object>,
    errors: &mut Vec<FieldError>,
) {
    match (group, kind) {
        ("", "ConfigMap" | "Secret") => {
            let size = |name: &str| {
                let data = object
                    .get(name)
                    .and_then(Value::as_object)
                    .into_iter()
                    .flatten();
                data.map(|(_, value)| value.as_str().map_or(0, str::len))
                    .sum::<usize>()
            };
            if size("data") + size("binaryData") > DATA_LIMIT {
                errors.push(FieldError::too_long("[]", DATA_LIMIT));
            }
            frozen_data(object, old, errors);
        }
        ("coordination.k8s.io", "Lease") => {
            let seconds = object.at(&["spec", "leaseDurationSeconds"]);
            if let Some(value) = seconds.filter(|value| value.as_i64().is_some_and(|n| n <= 0)) {
                let text = "must be greater than 0";
                errors.push(FieldError::invalid(
                    "spec.leaseDurationSeconds",
                    value,
                    text,
                ));
            }
        }
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice(object, old, errors),
        ("" | "events.k8s.io", "Event") => event(group, object, old, errors),
        (RBAC, "RoleBinding" | "ClusterRoleBinding") => {
            if let Some(old) = old
                && old.get("roleRef") != object.get("roleRef")
            {
                let value = object.get("roleRef").cloned().unwrap_or_default();
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

fn frozen_data(object: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let Some(old) = old.filter(|old| old.get("immutable") == Some(&json!(true))) else {
        return;
    };
    if object.get("immutable") != Some(&json!(true)) {
        errors.push(FieldError::forbidden(
            "immutable",
            "field is immutable when `immutable` is set",
        ));
    }
    for name in ["data", "binaryData"] {
        if old.get(name) != object.get(name) {
            errors.push(FieldError::forbidden(
                name,
                "field is immutable when `immutable` is set",
            ));
        }
    }
}

fn endpoint_slice(object: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let known = ["IPv4", "IPv6", "FQDN"];
    match object.text("addressType") {
        "" => errors.push(FieldError::required("addressType", "")),
        kind if !known.contains(&kind) => {
            errors.push(FieldError::not_supported(
                "addressType",
                &json!(kind),
                &known,
            ));
        }
        kind => {
            if let Some(old) = old.filter(|old| old.text("addressType") != kind) {
                let _ = old;
                errors.push(FieldError::invalid(
                    "addressType",
                    &json!(kind),
                    "field is immutable",
                ));
            }
            addresses(kind, object, errors);
        }
    }
}

fn addresses(kind: &str, object: &Object, errors: &mut Vec<FieldError>) {
    let endpoints = object.get("endpoints").and_then(Value::as_array);
    for (position, endpoint) in endpoints.into_iter().flatten().enumerate() {
        let addresses = endpoint.get("addresses").and_then(Value::as_array);
        let field = format!("endpoints[{position}].addresses");
        if addresses.is_none_or(Vec::is_empty) {
            errors.push(FieldError::required(
                field,
                "must contain at least 1 address",
            ));
            continue;
        }
        for (number, address) in addresses.into_iter().flatten().enumerate() {
            let text = address.as_str().unwrap_or_default();
            let complaint = match (kind, text.parse::<std::net::IpAddr>()) {
                ("IPv4", Ok(ip)) if ip.is_ipv4() => continue,
                ("IPv6", Ok(ip)) if ip.is_ipv6() => continue,
                ("FQDN", _) => continue,
                (_, Err(_)) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                ("IPv4", _) => "must be an IPv4 address",
                _ => "must be an IPv6 address",
            };
            errors.push(FieldError::invalid(
                format!("{field}[{number}]"),
                address,
                complaint,
            ));
        }
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
    // Cluster-scoped objects have their events in `default`.
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
