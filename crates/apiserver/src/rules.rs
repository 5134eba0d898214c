//! What is particular about single kinds: defaults, admission, validation.

pub(crate) mod event;
mod metadata;
mod namespace;
mod pod;
pub(crate) mod service;

use serde_json::Value;

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
#[expect(clippy::unnecessary_wraps, reason = "addresses run out")]
pub(crate) fn prepare_create(scene: &Scene<'_>, object: &mut Object) -> Outcome<()> {
    match (scene.kind.group.as_str(), scene.kind.kind.as_str()) {
        _ if scene.kind.is_custom() => {}
        ("", "Namespace") => namespace::prepare_create(object),
        ("", "Pod") => pod::prepare_create(object),
        ("", "Secret") => crate::meta::default_to(object, "type", "Opaque"),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            crate::custom::definition::prepare(object);
        }
        _ => {}
    }
    Ok(())
}

/// Claims what an object needs of others, right before it is stored.
#[expect(clippy::unnecessary_wraps, reason = "addresses run out")]
pub(crate) fn commit(
    _scene: &Scene<'_>,
    _old: Option<&Object>,
    _object: &mut Object,
    _dry_run: bool,
) -> Outcome<()> {
    Ok(())
}

/// Defaults and admission of an object about to replace another.
#[expect(clippy::unnecessary_wraps, reason = "addresses run out")]
pub(crate) fn prepare_update(scene: &Scene<'_>, object: &mut Object, old: &Object) -> Outcome<()> {
    match (scene.kind.group.as_str(), scene.kind.kind.as_str()) {
        _ if scene.kind.is_custom() => {}
        ("", "Namespace") => namespace::prepare_update(object, old),
        ("", "Secret") => crate::meta::default_to(object, "type", "Opaque"),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            crate::custom::definition::prepare(object);
        }
        _ => {}
    }
    Ok(())
}

/// Complaints about an object, new or changed.
pub(crate) fn validate(
    scene: &Scene<'_>,
    object: &Object,
    old: Option<&Object>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(custom) = &scene.kind.custom {
        errors.extend(custom.validate(object, old));
        return errors;
    }
    match (scene.kind.group.as_str(), scene.kind.kind.as_str()) {
        ("", "Pod") => pod::validate(object, &mut errors),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            crate::custom::definition::validate(object, &mut errors);
        }
        _ => {}
    }
    errors
}

/// A text inside an object; empty when absent.
pub(crate) fn text<'a>(value: Option<&'a Value>, name: &str) -> &'a str {
    value
        .and_then(|value| value.get(name))
        .and_then(Value::as_str)
        .unwrap_or_default()
}
