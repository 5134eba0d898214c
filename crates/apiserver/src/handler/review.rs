//! TokenReviews, SubjectAccessReviews and their kin: answered, never stored.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    api::{Api, Context},
    auth::{Attributes, Rejection, User, Verified},
    decode,
    kind::ResourceType,
    meta::Meta as _,
    options::FieldValidation,
    reply::Reply,
    status::{ApiError, FieldError, Outcome},
    store::Object,
};

/// POST of a review.
pub(crate) fn create(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
) -> Outcome<Reply> {
    let mut review = decode::object(context, kind, FieldValidation::Ignore)?;
    if kind.kind.ends_with("AccessReview") {
        check_question(&review)?;
    }
    let status = match kind.kind.as_str() {
        "SelfSubjectReview" => json!({"userInfo": context.user.to_info()}),
        "TokenReview" => token_review(api, &review)?,
        "SelfSubjectRulesReview" => api.authorizer.rules_for(api, &context.user, &review),
        "SelfSubjectAccessReview" => access_review(api, &context.user, &review),
        _ => {
            let spec = |name: &str| review.at(&["spec", name]);
            let name = spec("user").and_then(Value::as_str).unwrap_or_default();
            let groups = spec("groups").and_then(Value::as_array);
            let groups = groups.into_iter().flatten().filter_map(Value::as_str);
            let uid = spec("uid").and_then(Value::as_str).unwrap_or_default();
            let user = User {
                name: name.to_owned(),
                uid: uid.to_owned(),
                groups: groups.map(str::to_owned).collect(),
                extra: std::collections::BTreeMap::new(),
            };
            if user.name.is_empty() && user.groups.is_empty() {
                let text = "at least one of user or group must be specified";
                let error = FieldError::invalid("spec.user", &json!(""), text);
                return Err(ApiError::invalid(kind, "", &[error]));
            }
            access_review(api, &user, &review)
        }
    };
    review.metadata_mut();
    review.insert("status".into(), status);
    Ok(Reply::value(StatusCode::CREATED, Value::Object(review)))
}

/// Requires either resource or non-resource attributes.
fn check_question(review: &Object) -> Outcome<()> {
    let asks = |name: &str| review.at(&["spec", name]).is_some_and(Value::is_object);
    if asks("resourceAttributes") != asks("nonResourceAttributes") {
        return Ok(());
    }
    let said = review.at(&["spec", "resourceAttributes"]);
    let text = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
    let value = said.cloned().unwrap_or_default();
    let error = FieldError::invalid("spec.resourceAttributes", &value, text);
    // Upstream's message has the group but no kind.
    let group = "authorization.k8s.io";
    Err(ApiError::invalid_as(group, "", "", &[error]))
}

fn token_review(api: &Api, review: &Object) -> Outcome<Value> {
    let token = review.at(&["spec", "token"]).and_then(Value::as_str);
    let named = review.at(&["spec", "audiences"]).and_then(Value::as_array);
    let named = named.into_iter().flatten().filter_map(Value::as_str);
    let mut audiences: Vec<String> = named.map(str::to_owned).collect();
    if audiences.is_empty() {
        audiences = api.authenticator.accounts.audiences();
    }
    let Some(token) = token.filter(|token| !token.is_empty()) else {
        let text = "token is required for TokenReview in authentication";
        return Err(ApiError::bad_request(text));
    };
    Ok(match api.authenticator.verify(api, token, &audiences) {
        Ok(Verified { user, audiences }) => json!({
            "authenticated": true, "user": user.to_info(), "audiences": audiences,
        }),
        Err(rejection) => {
            let unknown = "invalid bearer token";
            let error = match rejection {
                Rejection::Foreign => unknown.to_owned(),
                Rejection::Invalid(cause) => format!("[{unknown}, {cause}]"),
            };
            json!({"user": {}, "error": error})
        }
    })
}

fn access_review(api: &Api, user: &User, review: &Object) -> Value {
    let attributes = Attributes::of_review(review);
    match api.authorizer.decide(api, user, &attributes) {
        Some(reason) if reason.is_empty() => json!({"allowed": true}),
        Some(reason) => json!({"allowed": true, "reason": reason}),
        None => json!({"allowed": false}),
    }
}
