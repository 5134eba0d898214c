//! Defaulting, built-in admission and validation of each kind.

mod address;
mod app_protocol;
mod data;
mod endpoint_slice;
pub(crate) mod event;
mod metadata;
mod namespace;
mod node;
mod pod;
pub(crate) mod service;
mod simple_kinds;
mod workload;

pub(crate) use metadata::metadata_errors;

use crate::{
    api::{Api, Context},
    kind::ResourceType,
    options::DryRun,
    status::{FieldError, Outcome},
    store::{Object, Writer},
};

/// The server, request, writer and kind of one write.
pub(crate) struct WriteScope<'a> {
    pub(crate) api: &'a Api,
    pub(crate) context: Option<&'a Context>,
    pub(crate) writer: &'a Writer<'a>,
    pub(crate) kind: &'a ResourceType,
}

/// Defaulting and built-in admission of a new object.
pub(crate) fn prepare_create(scope: &WriteScope<'_>, object: &mut Object) {
    let (group, kind) = (scope.kind.group.as_str(), scope.kind.kind.as_str());
    match (group, kind) {
        _ if scope.kind.is_custom() => {}
        ("", "Namespace") => namespace::prepare_create(object),
        ("", "Pod") => pod::prepare_create(object),
        ("", "Node") => node::prepare_create(object),
        ("", "Service") => service::prepare(scope, object, None),
        ("", "Endpoints") => {
            if let Some(context) = scope.context {
                let text =
                    "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";
                context.warn(text);
            }
            simple_kinds::prepare(group, kind, object);
        }
        ("apps", kind) => workload::prepare(kind, object),
        ("", "ReplicationController") => workload::prepare(kind, object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            crate::custom::definition::prepare(object);
        }
        _ => simple_kinds::prepare(group, kind, object),
    }
}

/// Allocates what an object needs (cluster IPs, node ports), right before it is stored.
pub(crate) fn commit(
    scope: &WriteScope<'_>,
    old: Option<&Object>,
    object: &mut Object,
    dry_run: DryRun,
) -> Outcome<()> {
    if scope.kind.is("", "Service") {
        return service::commit(scope, old, object, dry_run);
    }
    Ok(())
}

/// Defaulting and built-in admission of a changed object.
pub(crate) fn prepare_update(scope: &WriteScope<'_>, object: &mut Object, old: &Object) {
    let (group, kind) = (scope.kind.group.as_str(), scope.kind.kind.as_str());
    match (group, kind) {
        _ if scope.kind.is_custom() => {}
        ("", "Namespace") => namespace::prepare_update(object, old),
        ("", "Pod") => pod::prepare_update(object),
        ("", "Node") => node::prepare_update(object),
        ("", "Service") => service::prepare(scope, object, Some(old)),
        ("apps", kind) => workload::prepare(kind, object),
        ("", "ReplicationController") => workload::prepare(kind, object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            crate::custom::definition::prepare(object);
        }
        _ => simple_kinds::prepare(group, kind, object),
    }
}

/// Validation errors of a new or changed object.
pub(crate) fn validate(
    scope: &WriteScope<'_>,
    object: &Object,
    old: Option<&Object>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(custom) = &scope.kind.custom {
        return custom.validate(object, old);
    }
    let (group, kind) = (scope.kind.group.as_str(), scope.kind.kind.as_str());
    match (group, kind) {
        ("", "Pod") => pod::validate(object, old, &mut errors),
        ("", "Node") => node::validate(object, old, &mut errors),
        ("", "Service") => service::validate(scope, object, old, &mut errors),
        ("apps", _) => workload::validate(object, old, &mut errors),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            crate::custom::definition::validate(object, old, &mut errors);
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => {
            crate::admission::validate(object, &mut errors);
        }
        _ => simple_kinds::validate(group, kind, object, old, &mut errors),
    }
    errors
}
