//! Rules of EndpointSlices.

use std::{collections::HashSet, net::IpAddr};

use serde_json::{Value, json};
use weft_model::selector::syntax;

use super::address::{NO_ADDRESS, destination_errors};
use crate::{
    meta::{Meta as _, default_to},
    status::FieldError,
    store::Object,
};

/// Limit of addresses per endpoint.
const MOST_ADDRESSES: usize = 100;

pub(super) fn prepare(object: &mut Object) {
    let ports = object.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        default_to(port, "name", "");
        default_to(port, "protocol", "TCP");
    }
}

pub(super) fn validate(object: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let known = ["FQDN", "IPv4", "IPv6"];
    let kind = object.text("addressType");
    if kind.is_empty() {
        errors.push(FieldError::required("addressType", ""));
    } else if !known.contains(&kind) {
        let error = FieldError::not_supported("addressType", &json!(kind), &known);
        errors.push(error);
    } else {
        if old.is_some_and(|old| old.text("addressType") != kind) {
            let text = "field is immutable";
            errors.push(FieldError::invalid("addressType", &json!(kind), text));
        }
        for (position, endpoint) in list(object.get("endpoints")).enumerate() {
            endpoint_errors(kind, &format!("endpoints[{position}]"), endpoint, errors);
        }
    }
    port_errors(object, errors);
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn endpoint_errors(kind: &str, field: &str, endpoint: &Value, errors: &mut Vec<FieldError>) {
    let addresses = format!("{field}.addresses");
    match list(endpoint.get("addresses")).count() {
        0 => errors.push(FieldError::required(
            &addresses,
            "must contain at least 1 address",
        )),
        count if count > MOST_ADDRESSES => {
            errors.push(FieldError::too_many(&addresses, count, MOST_ADDRESSES));
        }
        _ => {}
    }
    for (position, address) in list(endpoint.get("addresses")).enumerate() {
        address_errors(kind, &addresses, position, address, errors);
    }
    let node = text(endpoint, "nodeName");
    if !node.is_empty() {
        for complaint in syntax::subdomain_errors(node) {
            let field = format!("{field}.nodeName");
            errors.push(FieldError::invalid(field, &json!(node), &complaint));
        }
    }
    let hostname = text(endpoint, "hostname");
    if !hostname.is_empty() {
        for complaint in syntax::dns_label_errors(hostname) {
            let field = format!("{field}.hostname");
            errors.push(FieldError::invalid(field, &json!(hostname), &complaint));
        }
    }
    for hints in ["forZones", "forNodes"] {
        let named = endpoint.get("hints").and_then(|all| all.get(hints));
        repeated_names(&format!("{field}.hints.{hints}"), list(named), errors);
    }
}

fn address_errors(
    kind: &str,
    field: &str,
    position: usize,
    address: &Value,
    errors: &mut Vec<FieldError>,
) {
    let said = address.as_str().unwrap_or_default();
    let at = format!("{field}[{position}]");
    if kind == "FQDN" {
        let complaints = syntax::subdomain_errors(said.trim_end_matches('.'));
        let invalid = |complaint: &String| FieldError::invalid(&at, address, complaint);
        errors.extend(complaints.iter().map(invalid));
        return;
    }
    let Ok(parsed) = said.parse::<IpAddr>() else {
        errors.push(FieldError::invalid(at, address, NO_ADDRESS));
        return;
    };
    // Upstream reports this error for the list, not for the element.
    if kind == "IPv4" && parsed.is_ipv6() {
        let text = "must be an IPv4 address";
        errors.push(FieldError::invalid(field, address, text));
    } else if kind == "IPv6" && parsed.is_ipv4() {
        let text = "must be an IPv6 address";
        errors.push(FieldError::invalid(field, address, text));
    }
    errors.extend(destination_errors(&at, parsed));
}

fn repeated_names<'a>(
    field: &str,
    named: impl Iterator<Item = &'a Value>,
    errors: &mut Vec<FieldError>,
) {
    let mut seen = HashSet::new();
    for (position, entry) in named.enumerate() {
        let name = text(entry, "name");
        if !seen.insert(name) {
            let field = format!("{field}[{position}].name");
            errors.push(FieldError::duplicate(field, &json!(name)));
        }
    }
}

fn port_errors(object: &Object, errors: &mut Vec<FieldError>) {
    let mut names = HashSet::new();
    for (position, port) in list(object.get("ports")).enumerate() {
        let field = |name: &str| format!("ports[{position}].{name}");
        let name = text(port, "name");
        if !name.is_empty() {
            for complaint in syntax::dns_label_errors(name) {
                errors.push(FieldError::invalid(field("name"), &json!(name), &complaint));
            }
        }
        if !names.insert(name) {
            errors.push(FieldError::duplicate(field("name"), &json!(name)));
        }
        let known = ["SCTP", "TCP", "UDP"];
        let protocol = text(port, "protocol");
        if !known.contains(&protocol) {
            let protocol = json!(protocol);
            errors.push(FieldError::not_supported(
                field("protocol"),
                &protocol,
                &known,
            ));
        }
        let application = text(port, "appProtocol");
        errors.extend(super::app_protocol::errors(
            &field("appProtocol"),
            application,
        ));
    }
}
