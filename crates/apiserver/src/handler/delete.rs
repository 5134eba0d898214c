//! DELETE of objects and collections: immediate, after finalizers, or after a grace period.

use std::sync::Arc;

use http::StatusCode;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::{
    admission::{AdmissionRequest, Operation, admit},
    api::{Api, Context},
    clock::seconds_text,
    decode::BodyType,
    encoding::{json as json_body, yaml},
    handler::{
        exclusive_write::ExclusiveWrite,
        read::{list_reply, object_reply},
        write,
    },
    kind::{GenerationRule, Origin, ResourceType},
    meta::{Meta as _, object_mut},
    options::{DeleteOptions, ListOptions, Propagation, ReadVerb},
    reply::Reply,
    request::Verb,
    rules::WriteScope,
    status::{ApiError, Outcome, details},
    store::{Object, PageRequest, Stored},
    view,
};

/// Limit of the grace period: 100 years, so that its end stays a valid timestamp.
const LONGEST_GRACE: i64 = 100 * 365 * 24 * 3600;

/// The result of a deletion.
pub(crate) enum Deleted {
    /// The object was removed; its last state.
    Gone(Arc<Stored>),
    /// The object has a `deletionTimestamp` and waits for finalizers or its grace period.
    Marked(Arc<Stored>),
}

/// DELETE of one object.
pub(crate) fn delete(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
) -> Outcome<Reply> {
    let negotiated = context.negotiated(kind)?;
    let options = options(context)?;
    let exclusive = ExclusiveWrite::begin(api, context, kind, None);
    let outcome = delete_object(&exclusive.scope(), &exclusive.find()?, &options)?;
    drop(exclusive);
    match outcome {
        Deleted::Marked(stored) => {
            object_reply(api, context, kind, negotiated, StatusCode::OK, &stored)
        }
        Deleted::Gone(stored) if kind.rules.returns_deleted => {
            object_reply(api, context, kind, negotiated, StatusCode::OK, &stored)
        }
        Deleted::Gone(stored) => {
            let mut details = details(&kind.group, &kind.plural, &stored.name);
            details["uid"] = stored.uid.as_str().into();
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Success", "details": details,
            });
            Ok(Reply::value(StatusCode::OK, status))
        }
    }
}

/// DELETE of a collection: the answer lists what was deleted.
pub(crate) fn delete_collection(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
) -> Outcome<Reply> {
    let negotiated = context.negotiated(kind)?;
    let options = options(context)?;
    let list = ListOptions::read(
        &context.query,
        kind,
        &context.info.namespace,
        ReadVerb::List,
    )?;
    let request = PageRequest {
        filter: Some(&list.filter),
        limit: list.limit,
        ..PageRequest::default()
    };
    let page = api
        .store
        .page(&kind.storage, &request)
        .map_err(|_| ApiError::too_old_list())?;
    for stored in &page.items {
        let exclusive = ExclusiveWrite::begin(api, context, kind, None);
        // Another request may have deleted it since the list.
        if let Some(stored) = exclusive.get(&stored.key) {
            delete_object(&exclusive.scope(), &stored, &options)?;
        }
    }
    let metadata = json!({"resourceVersion": page.version.to_string()});
    list_reply(api, context, kind, negotiated, &metadata, page.items)
}

/// Reads DeleteOptions from the body if there is one, else from the query.
fn options(context: &Context) -> Outcome<DeleteOptions> {
    if context.body.is_empty() {
        return DeleteOptions::read(&context.query, None);
    }
    let refused = |error: String| ApiError::bad_request(error);
    let document = match BodyType::of(context, Origin::Builtin)? {
        BodyType::Json => json_body::parse(&context.body).map_err(|error| {
            let error = json_body::go_error(&error, &context.body);
            refused(format!(
                "couldn't get version/kind; json parse error: {error}"
            ))
        })?,
        BodyType::Yaml => yaml::parse(&context.body).map_err(|error| refused(error.to_string()))?,
        BodyType::Protobuf => {
            crate::schema::protobuf::decode(&context.body, "", "v1", "DeleteOptions")?
        }
    };
    let text = |name: &str| {
        let text = document.value.get(name).and_then(Value::as_str);
        text.unwrap_or_default()
    };
    if !["", "DeleteOptions"].contains(&text("kind")) {
        return Err(refused(format!(
            "no kind {:?} is registered for version {:?}",
            text("kind"),
            text("apiVersion")
        )));
    }
    DeleteOptions::read(&context.query, Some(&document.value))
}

/// Deletes an object, or marks it, as its kind, its finalizers and the options require.
pub(crate) fn delete_object(
    scope: &WriteScope<'_>,
    stored: &Arc<Stored>,
    options: &DeleteOptions,
) -> Outcome<Deleted> {
    let WriteScope { api, kind, .. } = *scope;
    check_preconditions(kind, stored, options)?;
    if kind.is("", "Namespace")
        && ["default", "kube-system", "kube-public"].contains(&&*stored.name)
    {
        return Err(ApiError::forbidden(
            kind,
            &stored.name,
            "this namespace may not be deleted",
        ));
    }
    let mut object = view::object(kind, stored);
    add_finalizers(scope, options, &mut object);
    let grace = grace(kind, &object, options);
    let waits = grace > 0
        || !object.finalizers().is_empty()
        || (kind.is("", "Namespace") && !spec_finalizers(&object).is_empty());
    let remaining = object
        .at(&["metadata", "deletionGracePeriodSeconds"])
        .and_then(Value::as_i64);
    let shorter = remaining.is_some_and(|remaining| grace < remaining);
    let begun = object.is_deleting() && !shorter;
    // As upstream: admission is not asked again while a grace period runs.
    if !(begun && grace > 0) {
        admit_deletion(scope, stored, options)?;
    }
    if begun && waits && same_finalizers(stored, &object) {
        return Ok(Deleted::Marked(stored.clone()));
    }
    mark(api, kind, grace, &mut object);
    if waits {
        return Ok(Deleted::Marked(write::store(
            scope,
            object,
            options.dry_run,
        )));
    }
    if kind.is("", "Pod") {
        // As upstream: a Pod is marked before it is removed, so watchers see both events.
        let marked = write::store(scope, object.clone(), options.dry_run);
        return Ok(Deleted::Gone(write::finish_deletion(
            scope,
            &marked,
            object,
            options.dry_run,
        )));
    }
    let last = view::object(kind, stored);
    Ok(Deleted::Gone(write::finish_deletion(
        scope,
        stored,
        last,
        options.dry_run,
    )))
}

/// Evaluates admission policies for deletions by clients; those of controllers skip them.
fn admit_deletion(scope: &WriteScope<'_>, stored: &Stored, options: &DeleteOptions) -> Outcome<()> {
    let Some(info) = scope.context.map(|context| &context.info) else {
        return Ok(());
    };
    if !matches!(info.verb, Verb::Delete | Verb::DeleteCollection) {
        return Ok(());
    }
    let request = AdmissionRequest {
        operation: Operation::Delete,
        subresource: None,
        name: &info.name,
        object: None,
        old: Some(&view::object(scope.kind, stored)),
        dry_run: options.dry_run,
    };
    admit(scope, &request)
}

fn same_finalizers(stored: &Stored, object: &Object) -> bool {
    stored.decode().finalizers() == object.finalizers()
}

fn spec_finalizers(object: &Object) -> &[Value] {
    object
        .at(&["spec", "finalizers"])
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn check_preconditions(
    kind: &ResourceType,
    stored: &Stored,
    options: &DeleteOptions,
) -> Outcome<()> {
    if let Some(uid) = options
        .uid
        .as_deref()
        .filter(|uid| *uid != stored.uid.as_str())
    {
        let detail = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object \
             might have been deleted and then recreated",
            stored.uid
        );
        return Err(ApiError::precondition(kind, &stored.name, &detail));
    }
    let actual = stored.version.to_string();
    if let Some(version) = options
        .version
        .as_deref()
        .filter(|version| **version != actual)
    {
        let detail = format!(
            "the ResourceVersion in the precondition ({version}) does not match the \
             ResourceVersion in record ({actual}). The object might have been modified"
        );
        return Err(ApiError::precondition(kind, &stored.name, &detail));
    }
    Ok(())
}

/// Adds the finalizers of the propagation policy and, to a definition, that of its cleanup.
fn add_finalizers(scope: &WriteScope<'_>, options: &DeleteOptions, object: &mut Object) {
    let collector = match options.propagation {
        Some(Propagation::Foreground) => Some("foregroundDeletion"),
        Some(Propagation::Orphan) => Some("orphan"),
        Some(Propagation::Background) | None => None,
    };
    let definition = scope
        .kind
        .is("apiextensions.k8s.io", "CustomResourceDefinition");
    let clean_up = definition.then_some(crate::custom::CLEANUP_FINALIZER);
    if object.is_deleting() {
        return;
    }
    let mut finalizers: Vec<Value> = object.finalizers().into_iter().map(Value::from).collect();
    for finalizer in collector.into_iter().chain(clean_up) {
        if !finalizers.iter().any(|known| known == finalizer) {
            finalizers.push(finalizer.into());
        }
    }
    if !finalizers.is_empty() {
        object
            .metadata_mut()
            .insert("finalizers".into(), finalizers.into());
    }
}

/// Grace period in seconds; 0 except for Pods that are bound to a node and not finished.
fn grace(kind: &ResourceType, object: &Object, options: &DeleteOptions) -> i64 {
    if !kind.is("", "Pod") {
        return 0;
    }
    let node = object
        .at(&["spec", "nodeName"])
        .and_then(Value::as_str)
        .unwrap_or_default();
    let phase = object
        .at(&["status", "phase"])
        .and_then(Value::as_str)
        .unwrap_or_default();
    if node.is_empty() || matches!(phase, "Succeeded" | "Failed") {
        return 0;
    }
    let own = object
        .at(&["spec", "terminationGracePeriodSeconds"])
        .and_then(Value::as_i64);
    options.grace.or(own).unwrap_or(30).clamp(0, LONGEST_GRACE)
}

fn mark(api: &Api, kind: &ResourceType, grace: i64, object: &mut Object) {
    let when = api
        .clock
        .now()
        .checked_add(SignedDuration::from_secs(grace));
    let already = object.is_deleting();
    let namespace = kind.is("", "Namespace");
    let metadata = object.metadata_mut();
    if let Ok(when) = when {
        metadata.insert("deletionTimestamp".into(), seconds_text(when).into());
    }
    let definition = kind.is("apiextensions.k8s.io", "CustomResourceDefinition");
    if !namespace && !definition {
        metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
    }
    if !already && kind.rules.generation != GenerationRule::Untouched && !definition {
        let generation = metadata
            .get("generation")
            .and_then(Value::as_i64)
            .unwrap_or(0);
        metadata.insert("generation".into(), (generation + 1).into());
    }
    if namespace {
        object_mut(object, "status").insert("phase".into(), "Terminating".into());
    }
}
