//! PATCH: JSON patch, merge patch, strategic merge patch, and dispatch to server-side apply.

use std::sync::Arc;

use http::{StatusCode, header};
use serde_json::Value;

use crate::{
    api::{Api, BODY_LIMIT, Context},
    decode,
    encoding::json,
    handler::{
        exclusive_write::ExclusiveWrite,
        read::object_reply,
        write::{Update, UpdateMethod, update_object},
    },
    kind::{ResourceType, Subresource},
    meta::Meta as _,
    options::WriteOptions,
    patch,
    reply::Reply,
    status::{ApiError, FieldError, Outcome},
    store::Object,
    view,
};

/// Type of a patch, by its Content-Type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchType {
    pub(crate) fn of(context: &Context, kind: &ResourceType) -> Outcome<Self> {
        let full = context.header(header::CONTENT_TYPE).unwrap_or_default();
        match full.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" if !kind.is_custom() => Ok(Self::Strategic),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            "application/strategic-merge-patch+json" => Err(ApiError::unsupported_media(
                "application/json-patch+json, application/merge-patch+json, \
                 application/apply-patch+yaml",
            )),
            _ => Err(ApiError::unsupported_patch()),
        }
    }
}

/// PATCH of an object or of one of its subresources.
pub(crate) fn patch(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
    subresource: Option<Subresource>,
) -> Outcome<Reply> {
    let negotiated = context.negotiated(kind)?;
    let patch_type = PatchType::of(context, kind)?;
    let options = WriteOptions::read(&context.query, "PatchOptions")?;
    if patch_type == PatchType::Apply {
        let (code, stored) = crate::apply::apply(api, context, kind, subresource, &options)?;
        return object_reply(api, context, kind, negotiated, code, &stored);
    }
    if options.force {
        let error = FieldError::forbidden("force", "may not be specified for non-apply patch");
        return Err(ApiError::invalid_options("PatchOptions", error));
    }
    let change = Change::parse(patch_type, &context.body)?;
    let exclusive = ExclusiveWrite::begin(api, context, kind, subresource);
    let stored = exclusive.find()?;
    let mut object = change.apply(kind, view::object(kind, &stored))?;
    read(context, kind, &options, &mut object)?;
    let update = Update {
        target: exclusive.target,
        options: &options,
        method: UpdateMethod::Patch,
    };
    let stored = update_object(&exclusive.scope(), &update, &stored, object)?;
    drop(exclusive);
    object_reply(api, context, kind, negotiated, StatusCode::OK, &stored)
}

/// Decodes the patched object as a body would be; errors name the patch.
fn read(
    context: &Context,
    kind: &ResourceType,
    options: &WriteOptions,
    object: &mut Object,
) -> Outcome<()> {
    let mut shown = object.clone();
    let read = (|| {
        if !kind.is_custom() {
            decode::check_type(kind, &kind.group, &kind.version, &kind.kind, object, &[])?;
        }
        let unknown = crate::schema::check(kind, &kind.group, &kind.version, &kind.kind, object)?;
        decode::report(
            context,
            &kind.kind,
            &kind.version,
            options.validation,
            Vec::new(),
            unknown,
        )
    })();
    read.map_err(|error: ApiError| {
        shown.metadata_mut().remove("managedFields");
        error.of_patch(&Value::Object(shown).to_string())
    })
}

/// A parsed patch, except server-side apply.
pub(crate) enum Change {
    Json(Vec<patch::json::Operation>),
    Merge(Value),
    Strategic(Object),
}

impl Change {
    pub(crate) fn parse(patch_type: PatchType, body: &[u8]) -> Outcome<Self> {
        if patch_type == PatchType::Json {
            return patch::json::parse(body).map(Self::Json);
        }
        let document = json::parse(body).map_err(|error| {
            let complaint = json::go_error(&error, body);
            ApiError::bad_request(format!("error decoding patch: {complaint}"))
        })?;
        match (patch_type, document.value) {
            (PatchType::Strategic, Value::Object(patch)) => Ok(Self::Strategic(patch)),
            (_, value @ Value::Object(_)) => Ok(Self::Merge(value)),
            (_, other) => Err(ApiError::bad_request(format!(
                "error decoding patch: json: cannot unmarshal {} into Go value of type \
                 map[string]interface {{}}",
                crate::decode::json_type(&other)
            ))),
        }
    }

    /// Applies the patch to an object.
    pub(crate) fn apply(&self, kind: &ResourceType, object: Object) -> Outcome<Object> {
        let mut value = Value::Object(object);
        match self {
            Self::Json(operations) => {
                patch::json::apply(&mut value, operations).map_err(|error| match error {
                    patch::json::StepError::TooMuch => ApiError::too_large(BODY_LIMIT),
                    _ => ApiError::unprocessable(),
                })?;
            }
            Self::Merge(patch) => patch::merge::apply(&mut value, patch),
            Self::Strategic(patch) => patch::strategic::apply(kind, &mut value, patch)?,
        }
        match value {
            Value::Object(object) => Ok(object),
            _ => Err(ApiError::unprocessable()),
        }
    }
}
