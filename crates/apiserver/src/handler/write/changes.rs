//! Update rules of metadata and subresources: preconditions, immutable fields, generation.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{Update, UpdateMethod};
use crate::{
    handler::exclusive_write::Target,
    kind::{GenerationRule, ResourceType, StatusRule, Subresource},
    meta::{Meta as _, copy_member},
    options::version_syntax,
    status::{ApiError, FieldError, Outcome},
    store::{Object, Stored},
};

pub(super) fn check_names(
    kind: &ResourceType,
    object: &Object,
    target: &Target<'_>,
) -> Outcome<()> {
    let name = object.name();
    if name.is_empty() {
        return Err(ApiError::bad_request("name must be provided"));
    }
    if name != target.name {
        let wanted = target.name;
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({wanted})"
        )));
    }
    let namespace = object.namespace();
    if kind.namespaced && !namespace.is_empty() && namespace != target.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Optimistic concurrency: a resource version in the body must be the stored one.
pub(super) fn check_version(
    kind: &ResourceType,
    update: &Update<'_>,
    stored: &Stored,
    object: &Object,
) -> Outcome<()> {
    let said = object.meta_text("resourceVersion");
    let version = match said {
        "" => 0,
        text => text
            .parse::<u64>()
            .map_err(|_| ApiError::untyped(version_syntax(text)))?,
    };
    if version == 0 {
        if update.method == UpdateMethod::Put && !kind.rules.unconditional_update {
            let text = "must be specified for an update";
            let error = FieldError::invalid("metadata.resourceVersion", &json!(0), text);
            let group = &kind.group;
            return Err(ApiError::invalid_as(
                group,
                &kind.plural,
                update.target.name,
                &[error],
            ));
        }
        return Ok(());
    }
    if version != stored.version {
        return Err(ApiError::modified(kind, update.target.name));
    }
    Ok(())
}

/// Restores metadata that clients cannot change; refuses another UID or `deletionTimestamp`.
pub(super) fn keep_identity(
    kind: &ResourceType,
    update: &Update<'_>,
    old: &Object,
    object: &mut Object,
) -> Outcome<()> {
    let (said, actual) = (object.meta_text("uid"), old.meta_text("uid"));
    if !said.is_empty() && said != actual {
        if update.method == UpdateMethod::Put {
            let group = if kind.is_custom() {
                format!("{}/", kind.group)
            } else {
                String::new()
            };
            let key = format!("/registry/{group}{}/{}", kind.plural, update.target.key());
            return Err(ApiError::conflict(
                kind,
                update.target.name,
                &format!(
                    "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, \
                     AdditionalErrorMsg: Precondition failed: UID in precondition: {said}, UID in \
                     object meta: {actual}"
                ),
            ));
        }
        // Upstream checks twice: for all kinds and for this one.
        let error = FieldError::invalid("metadata.uid", &json!(said), "field is immutable");
        return Err(ApiError::invalid(
            kind,
            update.target.name,
            &[error.clone(), error],
        ));
    }
    let said = object.meta_text("deletionTimestamp");
    if !said.is_empty() && said != old.meta_text("deletionTimestamp") {
        let value = json!(said);
        let error = FieldError::invalid("metadata.deletionTimestamp", &value, "field is immutable");
        return Err(ApiError::invalid(
            kind,
            update.target.name,
            &[error.clone(), error],
        ));
    }
    let Some(old_metadata) = old.metadata() else {
        return Ok(());
    };
    let metadata = object.metadata_mut();
    for name in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "namespace",
        "generateName",
        "resourceVersion",
    ] {
        copy_member(old_metadata, metadata, name);
    }
    metadata.remove("selfLink");
    if kind.rules.generation != GenerationRule::Untouched {
        copy_member(old_metadata, metadata, "generation");
    }
    Ok(())
}

/// Restores the part that this path does not write: `status` for the object, the rest for `status`.
pub(super) fn separate(
    kind: &ResourceType,
    subresource: Option<Subresource>,
    old: &Object,
    object: &mut Object,
) {
    match subresource {
        None
        | Some(Subresource::Scale | Subresource::Binding | Subresource::EphemeralContainers) => {
            if kind.rules.status.is_separate() && subresource.is_none() {
                copy_member(old, object, "status");
            }
        }
        Some(Subresource::Status) => {
            let status = object.remove("status");
            let metadata = object.remove("metadata");
            object.clone_from(old);
            match status {
                Some(status) => object.insert("status".into(), status),
                None => object.remove("status"),
            };
            let Some(Value::Object(metadata)) = metadata else {
                return;
            };
            copy_member(&metadata, object.metadata_mut(), "managedFields");
            let metadata_too = matches!(
                kind.rules.status,
                StatusRule::SeparateWithMetadata | StatusRule::KeptOnCreate
            );
            if metadata_too {
                for name in ["labels", "annotations", "finalizers", "ownerReferences"] {
                    copy_member(&metadata, object.metadata_mut(), name);
                }
            }
        }
        Some(Subresource::Finalize) => {
            let spec = object.remove("spec");
            object.clone_from(old);
            if let Some(spec) = spec {
                object.insert("spec".into(), spec);
            }
        }
        Some(Subresource::Eviction | Subresource::Token | Subresource::Proxy) => {}
    }
}

pub(super) fn grow_generation(kind: &ResourceType, old: &Object, object: &mut Object) {
    let changed = match kind.rules.generation {
        GenerationRule::Untouched => false,
        GenerationRule::Content => content_differs(kind, old, object),
        GenerationRule::ContentAndAnnotations => {
            let annotations = ["metadata", "annotations"];
            content_differs(kind, old, object) || old.at(&annotations) != object.at(&annotations)
        }
        GenerationRule::ContentAndLabels => {
            differs(old, object, |name| name != "metadata")
                || ["labels", "annotations", "ownerReferences", "finalizers"]
                    .iter()
                    .any(|name| old.at(&["metadata", name]) != object.at(&["metadata", name]))
        }
    };
    if changed {
        let generation = old
            .at(&["metadata", "generation"])
            .and_then(Value::as_i64)
            .unwrap_or(0);
        object
            .metadata_mut()
            .insert("generation".into(), (generation + 1).into());
    }
}

fn content_differs(kind: &ResourceType, old: &Object, object: &Object) -> bool {
    let plain_status = kind.rules.status == StatusRule::Plain;
    let counts = |name: &str| name != "metadata" && (plain_status || name != "status");
    differs(old, object, counts)
}

fn differs(old: &Object, new: &Object, counts: impl Fn(&str) -> bool) -> bool {
    let names = old.keys().chain(new.keys());
    names
        .filter(|name| counts(name))
        .any(|name| old.get(name) != new.get(name))
}

/// True when two objects are equal except for `managedFields`.
pub(crate) fn same_content(old: &Object, new: &Object) -> bool {
    let metadata_same = match (old.metadata(), new.metadata()) {
        (Some(old), Some(new)) => !differs(old, new, |name| name != "managedFields"),
        _ => false,
    };
    metadata_same && !differs(old, new, |name| name != "metadata")
}

/// Errors of finalizers added after the deletion has begun.
pub(super) fn finalizer_errors(old: &Object, object: &Object) -> Vec<FieldError> {
    if !old.is_deleting() {
        return Vec::new();
    }
    let before: HashSet<&str> = old.finalizers().into_iter().collect();
    let added: Vec<String> = object
        .finalizers()
        .into_iter()
        .filter(|finalizer| !before.contains(finalizer))
        .map(|finalizer| format!("{finalizer:?}"))
        .collect();
    if added.is_empty() {
        return Vec::new();
    }
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers \
         []string{{{}}}",
        added.join(", ")
    );
    let error = FieldError::forbidden("metadata.finalizers", &detail);
    vec![error.clone(), error]
}
