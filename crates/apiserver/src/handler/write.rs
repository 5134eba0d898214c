//! Create and update, and the steps of every write: defaulting, validation, admission, storage.

mod changes;

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

pub(crate) use changes::same_content;
use changes::{
    check_names, check_version, finalizer_errors, grow_generation, keep_identity, separate,
};

use crate::{
    admission::{AdmissionRequest, Operation, admit},
    api::{Api, Context},
    auth::check_escalation,
    decode,
    encoding::{json, size},
    handler::{
        exclusive_write::{ExclusiveWrite, Target},
        read::object_reply,
    },
    kind::{GenerationRule, ResourceType, StatusRule, Subresource},
    managed,
    meta::Meta as _,
    options::{DryRun, WriteOptions},
    reply::Reply,
    rules::{self, WriteScope},
    status::{ApiError, FieldError, Outcome},
    store::{Object, Stored, Writer, object_key},
    view,
};

/// Generated names tried before a create fails with 409.
const NAME_ATTEMPTS: usize = 8;
/// Limit of a `generateName` prefix in characters; the rest is cut.
const GENERATE_NAME_MAX: usize = 58;

/// POST of a collection.
pub(crate) fn create(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
) -> Outcome<Reply> {
    let negotiated = context.negotiated(kind)?;
    let options = WriteOptions::read(&context.query, "CreateOptions")?;
    let object = decode::object(context, kind, options.validation)?;
    let exclusive = ExclusiveWrite::begin(api, context, kind, None);
    let operation = managed::Operation::Update;
    let stored = create_object(
        &exclusive.scope(),
        exclusive.target.namespace,
        object,
        &options,
        operation,
    )?;
    drop(exclusive);
    object_reply(api, context, kind, negotiated, StatusCode::CREATED, &stored)
}

/// PUT of an object or of one of its subresources.
pub(crate) fn update(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
    subresource: Option<Subresource>,
) -> Outcome<Reply> {
    let negotiated = context.negotiated(kind)?;
    let options = WriteOptions::read(&context.query, "UpdateOptions")?;
    let object = decode::object(context, kind, options.validation)?;
    let exclusive = ExclusiveWrite::begin(api, context, kind, subresource);
    let (scope, target) = (exclusive.scope(), exclusive.target);
    let (code, stored) = match exclusive.found() {
        Some(old) => {
            let update = Update {
                target,
                options: &options,
                method: UpdateMethod::Put,
            };
            (
                StatusCode::OK,
                update_object(&scope, &update, &old, object)?,
            )
        }
        None if kind.rules.create_on_update && subresource.is_none() => {
            api.authorizer.authorize_creation(api, context)?;
            check_names(kind, &object, &target)?;
            let operation = managed::Operation::Update;
            let stored = create_object(&scope, target.namespace, object, &options, operation)?;
            (StatusCode::CREATED, stored)
        }
        None => return Err(ApiError::not_found(kind, target.name)),
    };
    drop(exclusive);
    object_reply(api, context, kind, negotiated, code, &stored)
}

/// The kind of request that updates an object; preconditions and `managedFields` differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpdateMethod {
    Put,
    Patch,
    Apply,
}

/// An update of an existing object.
pub(crate) struct Update<'a> {
    pub(crate) target: Target<'a>,
    pub(crate) options: &'a WriteOptions,
    pub(crate) method: UpdateMethod,
}

/// Creates an object: defaulting, validation, admission, storage.
pub(crate) fn create_object(
    scope: &WriteScope<'_>,
    namespace: &str,
    mut object: Object,
    options: &WriteOptions,
    operation: managed::Operation,
) -> Outcome<Arc<Stored>> {
    let WriteScope {
        api, writer, kind, ..
    } = *scope;
    place(kind, namespace, &mut object)?;
    if !object.meta_text("resourceVersion").is_empty() {
        let text = "resourceVersion should not be set on objects to be created";
        return Err(ApiError::untyped(text));
    }
    check_namespace(scope, namespace, object.name())?;
    check_kind(kind, &object)?;
    check_escalation(scope, namespace, &object, None)?;
    stamp(api, kind, &mut object);
    if kind.rules.status.is_separate() && kind.rules.status != StatusRule::KeptOnCreate {
        object.remove("status");
    }
    rules::prepare_create(scope, &mut object);
    crate::schema::reshape(kind, &mut object);
    let mut errors = rules::metadata_errors(kind, &object);
    errors.extend(rules::validate(scope, &object, None));
    if !errors.is_empty() {
        return Err(ApiError::invalid(kind, object.name(), &errors));
    }
    let request = AdmissionRequest {
        operation: Operation::Create,
        subresource: None,
        name: object.name(),
        object: Some(&object),
        old: None,
        dry_run: options.dry_run,
    };
    admit(scope, &request)?;
    for attempt in 1.. {
        if writer
            .get(&kind.storage, &object_key(namespace, object.name()))
            .is_none()
        {
            break;
        }
        let prefix = object.meta_text("generateName").to_owned();
        if prefix.is_empty() || attempt == NAME_ATTEMPTS {
            return Err(ApiError::already_exists(kind, object.name()));
        }
        let name = generated(api, &prefix);
        object.metadata_mut().insert("name".into(), name.into());
    }
    managed::record(scope, None, &mut object, options, operation, None);
    check_depth(&object)?;
    check_size(&object)?;
    rules::commit(scope, None, &mut object, options.dry_run)?;
    Ok(store(scope, object, options.dry_run))
}

/// Sets the namespace of the path; refuses another one in the object.
fn place(kind: &ResourceType, namespace: &str, object: &mut Object) -> Outcome<()> {
    let said = object.namespace();
    if kind.namespaced && !said.is_empty() && said != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let metadata = object.metadata_mut();
    if kind.namespaced {
        metadata.insert("namespace".into(), namespace.into());
    } else {
        metadata.remove("namespace");
    }
    Ok(())
}

/// Refuses a create in a namespace that does not exist or is terminating.
fn check_namespace(scope: &WriteScope<'_>, namespace: &str, name: &str) -> Outcome<()> {
    if !scope.kind.namespaced {
        return Ok(());
    }
    let served = scope.api.registry.served();
    let Some(namespaces) = served.find("", "v1", "namespaces") else {
        return Ok(());
    };
    let Some(stored) = scope.writer.get(&namespaces.storage, namespace) else {
        return Err(ApiError::not_found(namespaces, namespace));
    };
    if stored.decode().is_deleting() {
        let detail = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        return Err(ApiError::forbidden(scope.kind, name, &detail).with_cause(
            "NamespaceTerminating",
            &format!("namespace {namespace} is being terminated"),
            "metadata.namespace",
        ));
    }
    Ok(())
}

/// Refuses a custom resource with another kind; upstream reports that as a validation error.
fn check_kind(kind: &ResourceType, object: &Object) -> Outcome<()> {
    let said = object.text("kind");
    if kind.is_custom() && said != kind.kind {
        let text = format!("must be {}", kind.kind);
        let error = FieldError::invalid("kind", &json!(said), &text);
        return Err(ApiError::invalid_as(
            &kind.group,
            said,
            object.name(),
            &[error],
        ));
    }
    Ok(())
}

/// Refuses an object that etcd would not store.
fn check_size(object: &Object) -> Outcome<()> {
    if size::is_storable(object) {
        Ok(())
    } else {
        Err(ApiError::too_large_to_store())
    }
}

/// Refuses an object that decoders, here or of clients, could not read again.
fn check_depth(object: &Object) -> Outcome<()> {
    let fits = |value: &Value| json::fits(value, json::MAX_DEPTH - 1);
    if object.values().all(fits) {
        return Ok(());
    }
    let limit = json::MAX_DEPTH;
    Err(ApiError::bad_request(format!(
        "the object has more than {limit} levels"
    )))
}

/// Sets the metadata that only the server sets.
fn stamp(api: &Api, kind: &ResourceType, object: &mut Object) {
    let metadata = object.metadata_mut();
    for name in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "resourceVersion",
    ] {
        metadata.remove(name);
    }
    metadata.insert("uid".into(), api.random.uuid().into());
    metadata.insert("creationTimestamp".into(), api.clock.now_text().into());
    if kind.rules.generation != GenerationRule::Untouched {
        metadata.insert("generation".into(), 1.into());
    }
    let named = metadata
        .get("name")
        .and_then(Value::as_str)
        .is_some_and(|name| !name.is_empty());
    let prefix = metadata
        .get("generateName")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !named && !prefix.is_empty() {
        let name = generated(api, prefix);
        metadata.insert("name".into(), name.into());
    }
}

fn generated(api: &Api, prefix: &str) -> String {
    let cut = prefix
        .char_indices()
        .nth(GENERATE_NAME_MAX)
        .map_or(prefix.len(), |(at, _)| at);
    format!("{}{}", &prefix[..cut], api.random.name_suffix())
}

/// Stores an object at the next resource version; a dry run only returns it.
pub(crate) fn store(scope: &WriteScope<'_>, mut object: Object, dry_run: DryRun) -> Arc<Stored> {
    view::to_storage(scope.kind, &mut object);
    if dry_run == DryRun::Yes {
        return Arc::new(Stored::new(scope.kind, object));
    }
    let version = scope.writer.next_version();
    object
        .metadata_mut()
        .insert("resourceVersion".into(), version.to_string().into());
    let stored = Arc::new(Stored::new(scope.kind, object));
    scope.writer.put(&scope.kind.storage, stored.clone());
    if scope.kind.kind == "Event" && !scope.kind.is_custom() {
        rules::event::expire(scope);
    }
    scope.api.after_write(scope.kind, &stored);
    stored
}

/// Updates an object: preconditions, defaulting, validation, admission, storage.
pub(crate) fn update_object(
    scope: &WriteScope<'_>,
    update: &Update<'_>,
    stored: &Arc<Stored>,
    mut object: Object,
) -> Outcome<Arc<Stored>> {
    let kind = scope.kind;
    let old = view::object(kind, stored);
    let target = &update.target;
    check_names(kind, &object, target)?;
    check_kind(kind, &object)?;
    check_escalation(scope, target.namespace, &object, Some(&old))?;
    check_version(kind, update, stored, &object)?;
    keep_identity(kind, update, &old, &mut object)?;
    separate(kind, target.subresource, &old, &mut object);
    rules::prepare_update(scope, &mut object, &old);
    crate::schema::reshape(kind, &mut object);
    grow_generation(kind, &old, &mut object);
    let mut errors = rules::metadata_errors(kind, &object);
    errors.extend(finalizer_errors(&old, &object));
    errors.extend(rules::validate(scope, &object, Some(&old)));
    if !errors.is_empty() {
        return Err(ApiError::invalid(kind, target.name, &errors));
    }
    // For a scale the handler passes the Scale object to admission instead.
    if target.subresource != Some(Subresource::Scale) {
        let request = AdmissionRequest {
            operation: Operation::Update,
            subresource: target.subresource,
            name: target.name,
            object: Some(&object),
            old: Some(&old),
            dry_run: update.options.dry_run,
        };
        admit(scope, &request)?;
    }
    let operation = match update.method {
        UpdateMethod::Apply => managed::Operation::Apply,
        UpdateMethod::Put | UpdateMethod::Patch => managed::Operation::Update,
    };
    managed::record(
        scope,
        Some(&old),
        &mut object,
        update.options,
        operation,
        target.subresource,
    );
    check_depth(&object)?;
    if same_content(&old, &object) && managed::same(&old, &object) {
        return Ok(stored.clone());
    }
    if is_gone(kind, &object) {
        return Ok(finish_deletion(
            scope,
            stored,
            object,
            update.options.dry_run,
        ));
    }
    check_size(&object)?;
    rules::commit(scope, Some(&old), &mut object, update.options.dry_run)?;
    Ok(store(scope, object, update.options.dry_run))
}

/// True when a deleted object can be removed: no finalizers and no grace period left. Namespaces
/// are removed by the controller once they are empty.
pub(crate) fn is_gone(kind: &ResourceType, object: &Object) -> bool {
    object.is_deleting()
        && object.finalizers().is_empty()
        && object
            .at(&["metadata", "deletionGracePeriodSeconds"])
            .is_none_or(|grace| grace == &json!(0))
        && !kind.is("", "Namespace")
}

/// Removes an object; returns its last state at its old resource version.
pub(crate) fn finish_deletion(
    scope: &WriteScope<'_>,
    stored: &Arc<Stored>,
    mut object: Object,
    dry_run: DryRun,
) -> Arc<Stored> {
    let version = stored.version.to_string();
    object
        .metadata_mut()
        .insert("resourceVersion".into(), version.into());
    view::to_storage(scope.kind, &mut object);
    if dry_run == DryRun::No {
        scope.writer.remove(&scope.kind.storage, &stored.key);
        if scope.kind.is("", "Service") {
            rules::service::release(scope.api, scope.writer, stored);
        }
        scope.api.after_delete(scope.kind, stored);
    }
    Arc::new(Stored::new(scope.kind, object))
}

/// The scope of a write by the server itself, without a request.
pub(crate) fn scope<'a>(
    api: &'a Api,
    writer: &'a Writer<'a>,
    kind: &'a ResourceType,
) -> WriteScope<'a> {
    WriteScope {
        api,
        context: None,
        writer,
        kind,
    }
}
