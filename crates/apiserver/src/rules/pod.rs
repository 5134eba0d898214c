//! Pods.

use serde_json::{Value, json};

use crate::{meta::Meta as _, status::FieldError, store::Object};

/// A new Pod waits to be placed, whatever its body says.
pub(super) fn prepare_create(object: &mut Object) {
    object.insert("status".into(), json!({"phase": "Pending"}));
}

pub(super) fn validate(object: &Object, errors: &mut Vec<FieldError>) {
    let containers = object.at(&["spec", "containers"]).and_then(Value::as_array);
    if containers.is_none_or(Vec::is_empty) {
        errors.push(FieldError::required("spec.containers", ""));
    }
}
