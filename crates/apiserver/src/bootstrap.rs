//! Objects a real server makes by itself.

use serde_json::{Value, json};

use crate::{
    api::Api,
    handler::write,
    managed::Operation,
    options::{FieldValidation, WriteOptions},
    store::Object,
};

/// Creates what is not there yet.
pub(crate) fn create(api: &Api) {
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        ensure(
            api,
            "",
            "Namespace",
            "",
            json!({"metadata": {"name": name}}),
        );
    }
}

/// Creates an object unless it exists.
pub(crate) fn ensure(api: &Api, group: &str, kind: &str, namespace: &str, object: Value) {
    let served = api.registry.served();
    let (Some(kind), Value::Object(mut object)) = (served.of_kind(group, kind), object) else {
        return;
    };
    object.insert("kind".into(), kind.kind.clone().into());
    object.insert("apiVersion".into(), kind.api_version().into());
    let object: Object = object;
    let options = WriteOptions {
        dry_run: false,
        validation: FieldValidation::Ignore,
        manager: Some("kube-apiserver".to_owned()),
        force: false,
    };
    let writer = api.store.write();
    let scene = write::scene(api, &writer, kind);
    let outcome = write::create_object(&scene, namespace, object, &options, Operation::Update);
    if let Err(error) = outcome {
        tracing::debug!(?error, "a bootstrap object was there already");
    }
}
