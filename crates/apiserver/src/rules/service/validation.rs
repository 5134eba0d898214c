//! Validation of Services. Errors are in upstream's order, since one message joins them.

use std::{collections::HashSet, net::IpAddr};

use serde_json::{Value, json};
use weft_model::selector::syntax;

use super::{HEADLESS, View};
use crate::{
    meta::Meta as _,
    rules::{
        WriteScope,
        address::{NO_ADDRESS, destination_errors, network_errors},
    },
    status::FieldError,
    store::Object,
};

const KINDS: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const NO_PORT: &str = "must be between 1 and 65535, inclusive";
const FOR_LOAD_BALANCERS: &str = "may only be used when `type` is 'LoadBalancer'";
/// Limit of session affinity in seconds: one day.
const LONGEST_AFFINITY: i64 = 86_400;

/// Adds the errors of a Service.
pub(in crate::rules) fn validate(
    scope: &WriteScope<'_>,
    object: &Object,
    old: Option<&Object>,
    errors: &mut Vec<FieldError>,
) {
    let view = View(object);
    if let Some(error) = addresses_disagree(&view) {
        // As upstream: nothing else is validated, since no address can be allocated.
        errors.push(error);
        return;
    }
    if view.ports().is_empty() && !view.is_headless() && view.kind() != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    kind_errors(&view, errors);
    port_errors(&view, errors);
    selector_errors(&view, errors);
    affinity_errors(&view, errors);
    external_address_errors(&view, errors);
    if !KINDS.contains(&view.kind()) {
        let kind = json!(view.kind());
        errors.push(FieldError::not_supported("spec.type", &kind, &KINDS));
    }
    node_port_errors(&view, errors);
    repeated_port_errors(&view, errors);
    load_balancer_errors(&view, old, errors);
    address_errors(&view, old, errors);
    family_errors(scope, &view, errors);
    policy_errors(&view, errors);
    let ingress = view.list(&["status", "loadBalancer", "ingress"]);
    if view.kind() != "LoadBalancer" && !ingress.is_empty() {
        let text = "may only be used when `spec.type` is 'LoadBalancer'";
        errors.push(FieldError::forbidden("status.loadBalancer.ingress", text));
    }
}

fn addresses_disagree(view: &View<'_>) -> Option<FieldError> {
    let addresses = view.list(&["spec", "clusterIPs"]);
    let first = addresses.first()?;
    let text = match view.text("clusterIP") {
        "" => "must be empty when `clusterIP` is not specified",
        address if first != address => "first value must match `clusterIP`",
        _ => return None,
    };
    Some(FieldError::invalid(
        "spec.clusterIPs",
        &json!(addresses),
        text,
    ))
}

fn kind_errors(view: &View<'_>, errors: &mut Vec<FieldError>) {
    match view.kind() {
        kind @ ("LoadBalancer" | "NodePort") if view.is_headless() => {
            let text = format!("may not be set to 'None' for {kind} services");
            let value = json!(HEADLESS);
            errors.push(FieldError::invalid("spec.clusterIPs[0]", &value, &text));
        }
        "ExternalName" => {
            let name = view.text("externalName");
            if name.is_empty() {
                errors.push(FieldError::required("spec.externalName", ""));
                return;
            }
            for complaint in syntax::subdomain_errors(name.trim_end_matches('.')) {
                let value = json!(name);
                errors.push(FieldError::invalid("spec.externalName", &value, &complaint));
            }
        }
        _ => {}
    }
}

fn port_errors(view: &View<'_>, errors: &mut Vec<FieldError>) {
    let ports = view.ports();
    let mut names: HashSet<&str> = HashSet::new();
    for (position, port) in ports.iter().enumerate() {
        let field = |name: &str| format!("spec.ports[{position}].{name}");
        let name = text(port, "name");
        let is_new = names.insert(name);
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(FieldError::required(field("name"), ""));
            }
        } else {
            for complaint in syntax::dns_label_errors(name) {
                errors.push(FieldError::invalid(field("name"), &json!(name), &complaint));
            }
            if !is_new {
                errors.push(FieldError::duplicate(field("name"), &json!(name)));
            }
        }
        let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
        if !is_port(number) {
            errors.push(FieldError::invalid(field("port"), &json!(number), NO_PORT));
        }
        let protocol = text(port, "protocol");
        if !PROTOCOLS.contains(&protocol) {
            let protocol = json!(protocol);
            let error = FieldError::not_supported(field("protocol"), &protocol, &PROTOCOLS);
            errors.push(error);
        }
        let target = port.get("targetPort").cloned().unwrap_or_default();
        for complaint in target_errors(&target) {
            errors.push(FieldError::invalid(field("targetPort"), &target, complaint));
        }
        let application = text(port, "appProtocol");
        errors.extend(crate::rules::app_protocol::errors(
            &field("appProtocol"),
            application,
        ));
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn is_port(number: i64) -> bool {
    (1..=65_535).contains(&number)
}

/// Errors of a target port: a number or the name of a container port.
fn target_errors(target: &Value) -> Vec<&'static str> {
    let Some(name) = target.as_str() else {
        let fits = is_port(target.as_i64().unwrap_or(0));
        return if fits { Vec::new() } else { vec![NO_PORT] };
    };
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    [
        (name.len() > 15, "must be no more than 15 characters"),
        (
            !name.chars().all(fits),
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (
            !name.chars().any(|c| c.is_ascii_lowercase()),
            "must contain at least one letter (a-z)",
        ),
        (name.contains("--"), "must not contain consecutive hyphens"),
        (
            name.starts_with('-') || name.ends_with('-'),
            "must not begin or end with a hyphen",
        ),
    ]
    .into_iter()
    .filter_map(|(applies, text)| applies.then_some(text))
    .collect()
}

fn selector_errors(view: &View<'_>, errors: &mut Vec<FieldError>) {
    let selector = view.0.at(&["spec", "selector"]).and_then(Value::as_object);
    for (key, value) in selector.into_iter().flatten() {
        for complaint in syntax::qualified_name_errors(key) {
            errors.push(FieldError::invalid(
                "spec.selector",
                &json!(key),
                &complaint,
            ));
        }
        for complaint in syntax::label_value_errors(value.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid("spec.selector", value, &complaint));
        }
    }
}

fn affinity_errors(view: &View<'_>, errors: &mut Vec<FieldError>) {
    let known = ["ClientIP", "None"];
    let affinity = view.text("sessionAffinity");
    if !known.contains(&affinity) {
        let affinity = json!(affinity);
        let error = FieldError::not_supported("spec.sessionAffinity", &affinity, &known);
        errors.push(error);
    }
    let path = ["sessionAffinityConfig", "clientIP", "timeoutSeconds"];
    let timeout = view.0.at(&["spec", path[0], path[1], path[2]]);
    if let Some(timeout) = timeout
        && !(1..=LONGEST_AFFINITY).contains(&timeout.as_i64().unwrap_or(0))
    {
        let text = format!("must be greater than 0 and less than {LONGEST_AFFINITY}");
        let field = format!("spec.{}", path.join("."));
        errors.push(FieldError::invalid(field, timeout, &text));
    }
}

fn external_address_errors(view: &View<'_>, errors: &mut Vec<FieldError>) {
    for (position, address) in view.list(&["spec", "externalIPs"]).iter().enumerate() {
        let field = format!("spec.externalIPs[{position}]");
        match address.as_str().unwrap_or_default().parse::<IpAddr>() {
            Ok(parsed) => errors.extend(destination_errors(&field, parsed)),
            Err(_) => errors.push(FieldError::invalid(field, address, NO_ADDRESS)),
        }
    }
}

fn node_port_errors(view: &View<'_>, errors: &mut Vec<FieldError>) {
    if !matches!(view.kind(), "ClusterIP" | "ExternalName") {
        return;
    }
    for (position, port) in view.ports().iter().enumerate() {
        let given = port.get("nodePort").and_then(Value::as_i64).unwrap_or(0);
        if given != 0 {
            let field = format!("spec.ports[{position}].nodePort");
            let text = format!("may not be used when `type` is '{}'", view.kind());
            errors.push(FieldError::forbidden(field, &text));
        }
    }
}

fn repeated_port_errors(view: &View<'_>, errors: &mut Vec<FieldError>) {
    let mut seen: HashSet<(i64, &str)> = HashSet::new();
    for (position, port) in view.ports().iter().enumerate() {
        let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
        let protocol = text(port, "protocol");
        if !seen.insert((number, protocol)) {
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":{protocol:?},\"AppProtocol\":null,\"Port\":{number},\
                 \"TargetPort\":0,\"NodePort\":0}}"
            );
            errors.push(FieldError {
                field: format!("spec.ports[{position}]"),
                reason: "FieldValueDuplicate",
                message: format!("Duplicate value: {shown}"),
            });
        }
    }
}

fn load_balancer_errors(view: &View<'_>, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let balances = view.kind() == "LoadBalancer";
    // Upstream uses the name of its Go field here.
    let field = "spec.LoadBalancerSourceRanges";
    let ranges = view.list(&["spec", "loadBalancerSourceRanges"]);
    if !balances && !ranges.is_empty() {
        errors.push(FieldError::forbidden(field, FOR_LOAD_BALANCERS));
    }
    for (position, range) in ranges.iter().enumerate() {
        errors.extend(network_errors(&format!("{field}[{position}]"), range));
    }
    let node_ports = view.0.at(&["spec", "allocateLoadBalancerNodePorts"]);
    if !balances && node_ports.is_some() {
        let field = "spec.allocateLoadBalancerNodePorts";
        errors.push(FieldError::forbidden(field, FOR_LOAD_BALANCERS));
    }
    class_errors(view, old, errors);
}

fn class_errors(view: &View<'_>, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let field = "spec.loadBalancerClass";
    let class = view.text("loadBalancerClass");
    if view.kind() != "LoadBalancer" {
        if !class.is_empty() {
            errors.push(FieldError::forbidden(field, FOR_LOAD_BALANCERS));
        }
        return;
    }
    let before = old.map(View).filter(|old| old.kind() == "LoadBalancer");
    if before.is_some_and(|old| old.text("loadBalancerClass") != class) {
        let text = "may not change once set";
        errors.push(FieldError::invalid(field, &json!(class), text));
    } else if !class.is_empty() {
        for complaint in syntax::qualified_name_errors(class) {
            errors.push(FieldError::invalid(field, &json!(class), &complaint));
        }
    }
}

fn address_errors(view: &View<'_>, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let (field, address) = ("spec.clusterIPs[0]", view.text("clusterIP"));
    if address.is_empty() {
        return;
    }
    if address != HEADLESS && address.parse::<IpAddr>().is_err() {
        errors.push(FieldError::invalid(field, &json!(address), NO_ADDRESS));
        return;
    }
    let before = old.map(View);
    let before = before.as_ref().map_or("", |old| old.text("clusterIP"));
    if !before.is_empty() && before != address {
        let text = "may not change once set";
        errors.push(FieldError::invalid(field, &json!([address]), text));
    }
}

fn family_errors(scope: &WriteScope<'_>, view: &View<'_>, errors: &mut Vec<FieldError>) {
    let families = scope.api.allocator.families();
    if view.is_headless() || view.kind() == "ExternalName" {
        return;
    }
    if view.text("ipFamilyPolicy") == "RequireDualStack" && families.len() < 2 {
        let text = "this cluster is not configured for dual-stack services";
        let value = json!("RequireDualStack");
        errors.push(FieldError::invalid("spec.ipFamilyPolicy", &value, text));
        return;
    }
    let said = view.list(&["spec", "ipFamilies"]);
    let mut seen = HashSet::new();
    for (position, family) in said.iter().enumerate() {
        if !seen.insert(family) {
            let field = format!("spec.ipFamilies[{position}]");
            errors.push(FieldError::duplicate(field, family));
        }
        if !families.iter().any(|known| family == known) {
            let field = format!("spec.ipFamilies[{position}]");
            let text = "not configured on this cluster";
            errors.push(FieldError::invalid(field, family, text));
        }
    }
}

fn policy_errors(view: &View<'_>, errors: &mut Vec<FieldError>) {
    let known = ["Cluster", "Local"];
    let (field, external) = (
        "spec.externalTrafficPolicy",
        view.text("externalTrafficPolicy"),
    );
    if !view.is_external() {
        if !external.is_empty() {
            let text = "may only be set for externally-accessible services";
            errors.push(FieldError::invalid(field, &json!(external), text));
        }
    } else if !known.contains(&external) {
        errors.push(FieldError::not_supported(field, &json!(external), &known));
    }
    if let Some(port) = view.0.at(&["spec", "healthCheckNodePort"])
        && port.as_i64() != Some(0)
        && !view.needs_health_port()
    {
        let text = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is \
                    'Local'";
        errors.push(FieldError::invalid("spec.healthCheckNodePort", port, text));
    }
    let internal = view.text("internalTrafficPolicy");
    if view.kind() != "ExternalName" && !known.contains(&internal) {
        let field = "spec.internalTrafficPolicy";
        errors.push(FieldError::not_supported(field, &json!(internal), &known));
    }
    let known = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    let distribution = view.text("trafficDistribution");
    if !distribution.is_empty() && !known.contains(&distribution) {
        let field = "spec.trafficDistribution";
        errors.push(FieldError::not_supported(
            field,
            &json!(distribution),
            &known,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_number_or_a_name() {
        for fine in [json!(80), json!("web"), json!("a-1")] {
            assert!(target_errors(&fine).is_empty(), "{fine}");
        }
        assert_eq!(target_errors(&json!(0)), [NO_PORT]);
        assert_eq!(target_errors(&json!("-")).len(), 2);
        assert_eq!(target_errors(&json!("123")).len(), 1);
    }
}
