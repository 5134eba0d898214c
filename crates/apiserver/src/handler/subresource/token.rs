//! TokenRequests: POST of `serviceaccounts/NAME/token`.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::{admit_creation, body};
use crate::{
    api::{Api, Context},
    auth::{BoundKind, TokenRequest},
    clock::seconds_text,
    handler::exclusive_write::ExclusiveWrite,
    kind::{ResourceType, Subresource},
    meta::{Meta as _, default_to, object_mut},
    options::DryRun,
    reply::Reply,
    status::{ApiError, FieldError, Outcome},
    store::{Object, object_key},
};

const DEFAULT_SECONDS: i64 = 3600;
const LEAST_SECONDS: i64 = 600;
const MOST_SECONDS: i64 = 1 << 32;

/// Issues a token of a ServiceAccount.
pub(super) fn create(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
) -> Outcome<Reply> {
    let mut request = body(context, kind, Subresource::Token)?;
    let exclusive = ExclusiveWrite::begin(api, context, kind, Some(Subresource::Token));
    let account = exclusive.find()?;
    admit_creation(&exclusive, request.clone(), DryRun::No)?;
    drop(exclusive);
    let spec = object_mut(&mut request, "spec");
    let seconds = lifetime(spec)?;
    spec.insert("expirationSeconds".into(), seconds.into());
    default_to(spec, "boundObjectRef", Value::Null);
    let bound = bound_object(api, &account.namespace, &account.name, spec)?;
    let named = spec.get("audiences").and_then(Value::as_array);
    let named = named.into_iter().flatten().filter_map(Value::as_str);
    let mut audiences: Vec<String> = named.map(str::to_owned).collect();
    if audiences.is_empty() {
        audiences = api.authenticator.accounts.audiences();
    }
    spec.insert("audiences".into(), json!(audiences));
    let expires = api
        .clock
        .now()
        .checked_add(jiff::SignedDuration::from_secs(seconds))
        .map_err(|error| ApiError::internal(&error.to_string()))?;
    let contents = TokenRequest {
        account: &account,
        bound,
        audiences,
        expires,
    };
    let token = api.authenticator.accounts.issue(api, contents)?;
    request.insert("kind".into(), "TokenRequest".into());
    request.insert("apiVersion".into(), "authentication.k8s.io/v1".into());
    let metadata = request.metadata_mut();
    metadata.insert("name".into(), account.name.as_str().into());
    metadata.insert("namespace".into(), account.namespace.as_str().into());
    metadata.insert("uid".into(), account.uid.as_str().into());
    metadata.insert("creationTimestamp".into(), api.clock.now_text().into());
    let status = json!({"token": token, "expirationTimestamp": seconds_text(expires)});
    request.insert("status".into(), status);
    Ok(Reply::value(StatusCode::CREATED, Value::Object(request)))
}

fn lifetime(spec: &Object) -> Outcome<i64> {
    let seconds = match spec.get("expirationSeconds") {
        None | Some(Value::Null) => DEFAULT_SECONDS,
        Some(asked) => asked.as_i64().ok_or_else(|| {
            let text = format!("spec.expirationSeconds: {asked} is not a 64-bit integer");
            ApiError::bad_request(text)
        })?,
    };
    let text = match seconds {
        ..LEAST_SECONDS => "may not specify a duration less than 10 minutes",
        LEAST_SECONDS..=MOST_SECONDS => return Ok(seconds),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let error = FieldError::invalid("spec.expirationSeconds", &json!(seconds), text);
    let group = "authentication.k8s.io";
    Err(ApiError::invalid_as(group, "TokenRequest", "", &[error]))
}

/// The object that the token is bound to, which must exist.
fn bound_object(
    api: &Api,
    namespace: &str,
    account: &str,
    spec: &Object,
) -> Outcome<Option<(BoundKind, Object)>> {
    let Some(Value::Object(reference)) = spec.get("boundObjectRef") else {
        return Ok(None);
    };
    let (version, kind) = (reference.text("apiVersion"), reference.text("kind"));
    let (bound, resource, namespace) = match (version, kind) {
        ("" | "v1", "Pod") => (BoundKind::Pod, "pods", namespace),
        ("" | "v1", "Secret") => (BoundKind::Secret, "secrets", namespace),
        ("" | "v1", "Node") => (BoundKind::Node, "nodes", ""),
        _ => {
            // As Go prints a group, version and kind.
            let core = if version.contains('/') { "" } else { "/" };
            let text = format!("cannot bind token to object of type {core}{version}, Kind={kind}");
            return Err(ApiError::bad_request(text));
        }
    };
    let served = api.registry.served();
    let Some(found) = served.find("", "v1", resource) else {
        return Err(ApiError::resource_not_found());
    };
    let name = reference.text("name");
    let Some(stored) = api.store.get(&found.storage, &object_key(namespace, name)) else {
        return Err(ApiError::not_found(found, name));
    };
    let object = stored.decode();
    if bound == BoundKind::Pod {
        let runs_as = object.at(&["spec", "serviceAccountName"]);
        let runs_as = runs_as.and_then(Value::as_str).unwrap_or_default();
        if runs_as != account {
            return Err(ApiError::bad_request(format!(
                "cannot bind token for serviceaccount {account:?} to pod running with different \
                 serviceaccount name."
            )));
        }
    }
    let uid = reference.text("uid");
    if !uid.is_empty() && *stored.uid != *uid {
        let detail = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The \
             object might have been deleted and then recreated"
        );
        return Err(ApiError::precondition(found, name, &detail));
    }
    Ok(Some((bound, object)))
}
