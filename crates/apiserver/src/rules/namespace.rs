//! Rules of Namespaces: the name label, and the finalizer that keeps them until they are empty.

use serde_json::{Value, json};

use crate::{
    meta::{Meta as _, copy_member, default_to, object_mut},
    store::Object,
};

const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub(super) fn prepare_create(object: &mut Object) {
    let name = object.name().to_owned();
    let labels = object_mut(object.metadata_mut(), "labels");
    labels.insert(NAME_LABEL.into(), name.into());
    let spec = object_mut(object, "spec");
    let finalizers = spec
        .get("finalizers")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    if !finalizers.contains(&json!("kubernetes")) {
        let finalizers: Vec<Value> = finalizers
            .into_iter()
            .chain([json!("kubernetes")])
            .collect();
        spec.insert("finalizers".into(), finalizers.into());
    }
    object.insert("status".into(), json!({"phase": "Active"}));
}

/// Restores the spec: its finalizers change only through the subresource `finalize`.
pub(super) fn prepare_update(object: &mut Object, old: &Object) {
    copy_member(old, object, "spec");
    let name = object.name().to_owned();
    let labels = object_mut(object.metadata_mut(), "labels");
    default_to(labels, NAME_LABEL, name);
}
