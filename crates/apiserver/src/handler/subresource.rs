//! Handlers of subresources: status, scale, finalize, binding, eviction, token.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    admission::{AdmissionRequest, Operation, admit},
    api::{Api, Context},
    decode::{self, BodyType},
    handler::{
        delete::delete_object,
        exclusive_write::{ExclusiveWrite, Target},
        patch,
        read::get_sync,
        subresource_of, write,
    },
    kind::{Origin, ResourceType, Subresource, group_version},
    meta::{Meta as _, object_mut},
    options::{DeleteOptions, DryRun, FieldValidation, WriteOptions},
    reply::Reply,
    request::Verb,
    status::{ApiError, Outcome},
    store::Object,
    view,
};

mod scale;
mod token;

/// Answers a request for a subresource.
pub(crate) fn handle(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
) -> Outcome<Reply> {
    let info = &context.info;
    let Some(subresource) = subresource_of(kind, &info.subresource) else {
        return Err(if kind.is_custom() {
            ApiError::not_found(kind, &info.name)
        } else {
            ApiError::resource_not_found()
        });
    };
    match (subresource, info.verb) {
        (Subresource::Scale, verb) => scale::handle(api, context, kind, verb),
        (Subresource::Status | Subresource::EphemeralContainers, Verb::Get) => {
            get_sync(api, context, kind)
        }
        (
            Subresource::Status | Subresource::EphemeralContainers | Subresource::Finalize,
            Verb::Update,
        ) => update(api, context, kind, subresource),
        (Subresource::Status | Subresource::EphemeralContainers, Verb::Patch) => {
            patch::patch(api, context, kind, Some(subresource))
        }
        (Subresource::Binding, Verb::Create) => bind(api, context, kind),
        (Subresource::Eviction, Verb::Create) => evict(api, context, kind),
        (Subresource::Token, Verb::Create) => token::create(api, context, kind),
        _ => Err(ApiError::method_not_allowed()),
    }
}

fn update(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
    subresource: Subresource,
) -> Outcome<Reply> {
    let reply = write::update(api, context, kind, Some(subresource))?;
    if subresource == Subresource::Finalize {
        remove_finalized_namespace(api, context, kind);
    }
    Ok(reply)
}

/// Removes a Namespace that is being deleted and has no finalizers left.
fn remove_finalized_namespace(api: &Api, context: &Context, kind: &ResourceType) {
    let writer = api.store.write();
    let scope = write::scope(api, &writer, kind);
    let Some(stored) = writer.get(&kind.storage, &context.info.name) else {
        return;
    };
    let object = view::object(kind, &stored);
    let spec = object.at(&["spec", "finalizers"]).and_then(Value::as_array);
    if object.is_deleting() && spec.is_none_or(Vec::is_empty) && object.finalizers().is_empty() {
        write::finish_deletion(&scope, &stored, object, DryRun::No);
    }
}

/// Decodes the body of a POST to a subresource, which has a kind of its own.
fn body(context: &Context, kind: &ResourceType, subresource: Subresource) -> Outcome<Object> {
    let Some((group, version, name)) = subresource.kind() else {
        return Ok(Object::new());
    };
    let body_type = BodyType::of(context, Origin::Builtin)?;
    if context.body.is_empty() {
        return Ok(Object::new());
    }
    decode::object_as(
        context,
        kind,
        group,
        version,
        name,
        body_type,
        FieldValidation::Ignore,
    )
}

/// Evaluates admission policies for an object that exists only in a subresource request.
fn admit_creation(
    exclusive: &ExclusiveWrite<'_>,
    mut object: Object,
    dry_run: DryRun,
) -> Outcome<()> {
    let Target {
        namespace,
        name,
        subresource,
    } = exclusive.target;
    if let Some((group, version, kind)) = subresource.and_then(Subresource::kind) {
        object.insert("kind".into(), kind.into());
        object.insert("apiVersion".into(), group_version(group, version).into());
    }
    let metadata = object.metadata_mut();
    metadata.insert("name".into(), name.into());
    metadata.insert("namespace".into(), namespace.into());
    let request = AdmissionRequest {
        operation: Operation::Create,
        subresource,
        name,
        object: Some(&object),
        old: None,
        dry_run,
    };
    admit(&exclusive.scope(), &request)
}

/// Binds a Pod to a node.
fn bind(api: &Arc<Api>, context: &Context, kind: &Arc<ResourceType>) -> Outcome<Reply> {
    let binding = body(context, kind, Subresource::Binding)?;
    let options = WriteOptions::read(&context.query, "CreateOptions")?;
    let node = binding
        .at(&["target", "name"])
        .and_then(Value::as_str)
        .unwrap_or_default();
    if node.is_empty() {
        return Err(ApiError::untyped("target.name: Required value"));
    }
    let exclusive = ExclusiveWrite::begin(api, context, kind, Some(Subresource::Binding));
    let stored = exclusive.find()?;
    let mut pod = view::object(kind, &stored);
    if pod.is_deleting() {
        let detail = format!(
            "pod {} is being deleted, cannot be assigned to a host",
            stored.name
        );
        return Err(ApiError::conflict(kind, &stored.name, &detail));
    }
    let current = pod
        .at(&["spec", "nodeName"])
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !current.is_empty() {
        let detail = format!(
            "pod {} is already assigned to node {current:?}",
            stored.name
        );
        return Err(ApiError::binding_conflict(&stored.name, &detail));
    }
    admit_creation(&exclusive, binding.clone(), options.dry_run)?;
    object_mut(&mut pod, "spec").insert("nodeName".into(), node.into());
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": api.clock.now_text(),
    });
    let conditions = object_mut(&mut pod, "status")
        .entry("conditions")
        .or_insert_with(|| json!([]));
    if let Value::Array(conditions) = conditions {
        conditions.retain(|known| known.get("type") != Some(&json!("PodScheduled")));
        conditions.push(condition);
    }
    write::store(&exclusive.scope(), pod, options.dry_run);
    Ok(success(StatusCode::CREATED))
}

/// Deletes a Pod by eviction; PodDisruptionBudgets are not considered.
fn evict(api: &Arc<Api>, context: &Context, kind: &Arc<ResourceType>) -> Outcome<Reply> {
    let eviction = body(context, kind, Subresource::Eviction)?;
    let asked = eviction.get("deleteOptions");
    let options = DeleteOptions::read(&context.query, asked)?;
    let exclusive = ExclusiveWrite::begin(api, context, kind, Some(Subresource::Eviction));
    let stored = exclusive.find()?;
    admit_creation(&exclusive, eviction, options.dry_run)?;
    delete_object(&exclusive.scope(), &stored, &options)?;
    Ok(success(StatusCode::CREATED))
}

fn success(code: StatusCode) -> Reply {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "code": code.as_u16(),
    });
    Reply::value(code, status)
}
