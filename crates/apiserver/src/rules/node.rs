//! Rules of Nodes: pod CIDRs are immutable once set, and a new Node has the not-ready taint.

use std::{collections::HashSet, net::IpAddr};

use serde_json::{Value, json};
use weft_model::selector::syntax;

use super::address::NO_NETWORK;
use crate::{
    meta::{Meta as _, object_mut},
    status::FieldError,
    store::Object,
};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub(super) fn prepare_create(object: &mut Object) {
    let spec = object_mut(object, "spec");
    mirror_cidrs(spec);
    let taints = spec.entry("taints").or_insert_with(|| json!([]));
    if let Value::Array(taints) = taints
        && !taints
            .iter()
            .any(|taint| taint.get("key") == Some(&json!(NOT_READY)))
    {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
    default_allocatable(object);
}

pub(super) fn prepare_update(object: &mut Object) {
    mirror_cidrs(object_mut(object, "spec"));
    default_allocatable(object);
}

fn default_allocatable(object: &mut Object) {
    let status = object_mut(object, "status");
    if let Some(capacity) = status.get("capacity").cloned() {
        crate::meta::default_to(status, "allocatable", capacity);
    }
}

/// Makes `podCIDR` the first of `podCIDRs` and vice versa; the older field wins.
fn mirror_cidrs(spec: &mut Object) {
    let single = spec
        .get("podCIDR")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let first = spec.pointer_text("podCIDRs");
    match (single.as_str(), first.as_str()) {
        ("", "") => {}
        ("", first) => drop(spec.insert("podCIDR".into(), first.into())),
        (single, first) if single != first => drop(spec.insert("podCIDRs".into(), json!([single]))),
        _ => {}
    }
}

trait FirstText {
    fn pointer_text(&self, list: &str) -> String;
}

impl FirstText for Object {
    fn pointer_text(&self, list: &str) -> String {
        let first = self
            .get(list)
            .and_then(Value::as_array)
            .and_then(|list| list.first());
        first.and_then(Value::as_str).unwrap_or_default().to_owned()
    }
}

pub(super) fn validate(object: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    taint_errors(object, errors);
    let list = |object: &Object| {
        object
            .at(&["spec", "podCIDRs"])
            .cloned()
            .unwrap_or_default()
    };
    let cidrs = list(object);
    let mut families = Vec::new();
    for (position, cidr) in cidrs.as_array().into_iter().flatten().enumerate() {
        let text = cidr.as_str().unwrap_or_default();
        match family(text) {
            Some(family) => families.push(family),
            None => errors.push(FieldError::invalid(
                format!("spec.podCIDRs[{position}]"),
                cidr,
                NO_NETWORK,
            )),
        }
    }
    let repeated = families.iter().filter(|family| **family).count() > 1
        || families.iter().filter(|family| !**family).count() > 1;
    if repeated {
        let text = "may specify no more than one CIDR for each IP family";
        errors.push(FieldError::invalid("spec.podCIDRs", &cidrs, text));
    }
    let Some(old) = old else { return };
    if !list(old).is_null() && list(old) != cidrs {
        let text = "node updates may not change podCIDR except from \"\" to valid";
        errors.push(FieldError::forbidden("spec.podCIDRs", text));
    }
    let provider = |object: &Object| object.at(&["spec", "providerID"]).cloned();
    if provider(old).is_some() && provider(old) != provider(object) {
        let text = "node updates may not change providerID except from \"\" to valid";
        errors.push(FieldError::forbidden("spec.providerID", text));
    }
}

/// Errors of taints. As upstream's, they name a field of the metadata.
fn taint_errors(object: &Object, errors: &mut Vec<FieldError>) {
    let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let taints = object.at(&["spec", "taints"]).and_then(Value::as_array);
    let mut seen = HashSet::new();
    for (position, taint) in taints.into_iter().flatten().enumerate() {
        let text = |name: &str| taint.get(name).and_then(Value::as_str).unwrap_or_default();
        let field = |name: &str| format!("metadata.taints[{position}].{name}");
        let (key, value, effect) = (text("key"), text("value"), text("effect"));
        for complaint in syntax::qualified_name_errors(key) {
            errors.push(FieldError::invalid(field("key"), &json!(key), &complaint));
        }
        for complaint in syntax::label_value_errors(value) {
            errors.push(FieldError::invalid(
                field("value"),
                &json!(value),
                &complaint,
            ));
        }
        if effect.is_empty() {
            errors.push(FieldError::required(field("effect"), ""));
        } else if !known.contains(&effect) {
            let error = FieldError::not_supported(field("effect"), &json!(effect), &known);
            errors.push(error);
        }
        if !seen.insert((key, effect)) {
            let added = taint.get("timeAdded").cloned().unwrap_or_default();
            errors.push(FieldError {
                field: format!("metadata.taints[{position}]"),
                reason: "FieldValueDuplicate",
                message: format!(
                    "Duplicate value: {{\"Key\":{key:?},\"Value\":{value:?},\
                     \"Effect\":{effect:?},\"TimeAdded\":{added}}}: taints must be unique by key \
                     and effect pair"
                ),
            });
        }
    }
}

/// The family of a CIDR, true for IPv6; `None` for an invalid one.
fn family(text: &str) -> Option<bool> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let length: u8 = length.parse().ok()?;
    (length <= if address.is_ipv6() { 128 } else { 32 }).then_some(address.is_ipv6())
}
