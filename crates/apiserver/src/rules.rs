//! What is particular about single kinds: defaults, admission, validation.

mod address;
mod data;
pub(crate) mod event;
mod metadata;
mod namespace;
mod node;
mod pod;
pub(crate) mod service;
mod slice;
mod small;
mod workload;

pub(crate) use metadata::metadata_errors;

use crate::{
    api::{Api, Context},
    kind::ResourceType,
    status::{FieldError, Outcome},
    store::{Object, Writer},
};

/// What rules may look at besides the object.
pub(crate) struct Scene<'a> {
    pub(crate) api: &'a Api,
    pub(crate) context: Option<&'a Context>,
    pub(crate) writer: &'a Writer<'a>,
    pub(crate) kind: &'a ResourceType,
}

/// Defaults and admission of an object about to be created.
pub(crate) fn prepare_create(scene: &Scene<'_>, object: &mut Object) {
    let (group, kind) = (scene.kind.group.as_str(), scene.kind.kind.as_str());
    match (group, kind) {
        _ if scene.kind.is_custom() => {}
        ("", "Namespace") => namespace::prepare_create(object),
        ("", "Pod") => pod::prepare_create(object),
        ("", "Node") => node::prepare_create(object),
        ("", "Service") => service::prepare(scene, object, None),
        ("", "Endpoints") => {
            if let Some(context) = scene.context {
                let text =
                    "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";
                context.warn(text);
            }
            small::prepare(group, kind, object);
        }
        ("apps", kind) => workload::prepare(kind, object),
        ("", "ReplicationController") => workload::prepare(kind, object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            crate::custom::definition::prepare(object);
        }
        _ => small::prepare(group, kind, object),
    }
}

/// Claims what an object needs of others, right before it is stored.
pub(crate) fn commit(
    scene: &Scene<'_>,
    old: Option<&Object>,
    object: &mut Object,
    dry_run: bool,
) -> Outcome<()> {
    if scene.kind.is("", "Service") {
        return service::commit(scene, old, object, dry_run);
    }
    Ok(())
}

/// Defaults and admission of an object about to replace another.
pub(crate) fn prepare_update(scene: &Scene<'_>, object: &mut Object, old: &Object) {
    let (group, kind) = (scene.kind.group.as_str(), scene.kind.kind.as_str());
    match (group, kind) {
        _ if scene.kind.is_custom() => {}
        ("", "Namespace") => namespace::prepare_update(object, old),
        ("", "Pod") => pod::prepare_update(object),
        ("", "Node") => node::prepare_update(object),
        ("", "Service") => service::prepare(scene, object, Some(old)),
        ("apps", kind) => workload::prepare(kind, object),
        ("", "ReplicationController") => workload::prepare(kind, object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            crate::custom::definition::prepare(object);
        }
        _ => small::prepare(group, kind, object),
    }
}

/// Complaints about an object, new or changed.
pub(crate) fn validate(
    scene: &Scene<'_>,
    object: &Object,
    old: Option<&Object>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(custom) = &scene.kind.custom {
        return custom.validate(object, old);
    }
    let (group, kind) = (scene.kind.group.as_str(), scene.kind.kind.as_str());
    match (group, kind) {
        ("", "Pod") => pod::validate(object, old, &mut errors),
        ("", "Node") => node::validate(object, old, &mut errors),
        ("", "Service") => service::validate(scene, object, old, &mut errors),
        ("apps", _) => workload::validate(object, old, &mut errors),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            crate::custom::definition::validate(object, old, &mut errors);
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => {
            crate::admission::validate(object, &mut errors);
        }
        _ => small::validate(group, kind, object, old, &mut errors),
    }
    errors
}
