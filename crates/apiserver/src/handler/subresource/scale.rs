//! The `scale` subresource of workloads and custom resources.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value, json};
use weft_model::LabelSelector;

use crate::{
    admission::{AdmissionRequest, Operation, admit},
    api::{Api, Context},
    decode::{self, BodyType},
    handler::{
        exclusive_write::ExclusiveWrite,
        patch::{Change, PatchType},
        read::find,
        write::{Update, UpdateMethod, update_object},
    },
    kind::{Origin, ResourceType, Subresource},
    meta::{Meta as _, object_mut},
    options::{FieldValidation, WriteOptions},
    reply::Reply,
    request::Verb,
    status::{ApiError, FieldError, Outcome},
    store::Object,
    view,
};

pub(super) fn handle(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
    verb: Verb,
) -> Outcome<Reply> {
    let info = &context.info;
    if verb == Verb::Get {
        let stored = find(api, kind, &info.namespace, &info.name)?;
        let scale = scale_of(kind, &view::object(kind, &stored));
        return Ok(Reply::value(StatusCode::OK, Value::Object(scale)));
    }
    let options_kind = if verb == Verb::Patch {
        "PatchOptions"
    } else {
        "UpdateOptions"
    };
    let options = WriteOptions::read(&context.query, options_kind)?;
    let exclusive = ExclusiveWrite::begin(api, context, kind, Some(Subresource::Scale));
    let stored = exclusive.find()?;
    let object = view::object(kind, &stored);
    let scale = match verb {
        Verb::Update => decode::object_as(
            context,
            kind,
            "autoscaling",
            "v1",
            "Scale",
            BodyType::of(context, Origin::Builtin)?,
            FieldValidation::Ignore,
        )?,
        Verb::Patch => match PatchType::of(context, kind)? {
            PatchType::Apply => return Err(ApiError::unsupported_patch()),
            PatchType::Strategic => Change::parse(PatchType::Merge, &context.body)?
                .apply(kind, scale_of(kind, &object))?,
            other => Change::parse(other, &context.body)?.apply(kind, scale_of(kind, &object))?,
        },
        _ => return Err(ApiError::method_not_allowed()),
    };
    let replicas = scale
        .at(&["spec", "replicas"])
        .and_then(Value::as_i64)
        .unwrap_or(0);
    if replicas < 0 {
        let text = "must be greater than or equal to 0";
        let error = FieldError::invalid("spec.replicas", &json!(replicas), text);
        let name = exclusive.target.name;
        return Err(ApiError::invalid_as("autoscaling", "Scale", name, &[error]));
    }
    let mut object = object;
    set_replicas(kind, &mut object, replicas);
    let version = scale.meta_text("resourceVersion").to_owned();
    if version.is_empty() {
        object.metadata_mut().remove("resourceVersion");
    } else {
        object
            .metadata_mut()
            .insert("resourceVersion".into(), version.into());
    }
    let update = Update {
        target: exclusive.target,
        options: &options,
        method: UpdateMethod::Patch,
    };
    let mut asked = scale_of(kind, &object);
    asked.insert("spec".into(), json!({"replicas": replicas}));
    let request = AdmissionRequest {
        operation: Operation::Update,
        subresource: exclusive.target.subresource,
        name: exclusive.target.name,
        object: Some(&asked),
        old: Some(&scale_of(kind, &view::object(kind, &stored))),
        dry_run: options.dry_run,
    };
    admit(&exclusive.scope(), &request)?;
    let stored = update_object(&exclusive.scope(), &update, &stored, object)?;
    let scale = scale_of(kind, &view::object(kind, &stored));
    Ok(Reply::value(StatusCode::OK, Value::Object(scale)))
}

/// Paths of replicas in spec and status, and of the selector; a custom resource declares its own.
fn paths(kind: &ResourceType) -> (Vec<&str>, Vec<&str>, Option<Vec<&str>>) {
    match kind
        .custom
        .as_ref()
        .and_then(|custom| custom.scale.as_ref())
    {
        Some(scale) => (
            scale.spec.iter().map(String::as_str).collect(),
            scale.status.iter().map(String::as_str).collect(),
            scale
                .selector
                .as_ref()
                .map(|path| path.iter().map(String::as_str).collect()),
        ),
        None => (vec!["spec", "replicas"], vec!["status", "replicas"], None),
    }
}

fn scale_of(kind: &ResourceType, object: &Object) -> Object {
    let (spec, status, selector) = paths(kind);
    let number = |path: &[&str]| object.at(path).and_then(Value::as_i64).unwrap_or(0);
    let selector = match selector {
        Some(path) => object
            .at(&path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned(),
        None => selector_text(object),
    };
    let mut metadata = Map::new();
    for name in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        if let Some(value) = object.at(&["metadata", name]) {
            metadata.insert(name.to_owned(), value.clone());
        }
    }
    let mut scale_status = json!({"replicas": number(&status)});
    if !selector.is_empty() {
        scale_status["selector"] = selector.into();
    }
    let mut scale = Map::new();
    scale.insert("kind".into(), "Scale".into());
    scale.insert("apiVersion".into(), "autoscaling/v1".into());
    scale.insert("metadata".into(), metadata.into());
    scale.insert("spec".into(), json!({"replicas": number(&spec)}));
    scale.insert("status".into(), scale_status);
    scale
}

fn selector_text(object: &Object) -> String {
    let labels = object
        .at(&["spec", "selector", "matchLabels"])
        .or_else(|| object.at(&["spec", "selector"]))
        .and_then(Value::as_object);
    let pairs = labels.into_iter().flatten();
    let pairs = pairs.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
    LabelSelector::equalities(pairs).to_string()
}

fn set_replicas(kind: &ResourceType, object: &mut Object, replicas: i64) {
    let (path, ..) = paths(kind);
    let Some((last, before)) = path.split_last() else {
        return;
    };
    let parent = before
        .iter()
        .fold(object, |parent, part| object_mut(parent, part));
    parent.insert((*last).to_owned(), replicas.into());
}
