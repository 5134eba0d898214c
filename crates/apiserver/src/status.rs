//! API errors as Kubernetes `Status` objects, with upstream's reasons, codes and messages.

use std::{collections::HashSet, fmt::Write as _};

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::{kind::ResourceType, negotiate::ResponseKind};

/// Limit of causes in one answer; further errors are only counted. Upstream has no such limit, and
/// answers a request of 3 MB with 60 MB.
pub(crate) const MAX_CAUSES: usize = 1000;

/// A validation error of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub(crate) field: String,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl FieldError {
    fn new(field: impl Into<String>, reason: &'static str, message: String) -> Self {
        Self {
            field: field.into(),
            reason,
            message,
        }
    }

    pub(crate) fn required(field: impl Into<String>, detail: &str) -> Self {
        let message = match detail {
            "" => "Required value".to_owned(),
            detail => format!("Required value: {detail}"),
        };
        Self::new(field, "FieldValueRequired", message)
    }

    pub(crate) fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::new(
            field,
            "FieldValueInvalid",
            format!("Invalid value: {value}: {detail}"),
        )
    }

    /// An invalid value that is not shown: CEL rules only have a message.
    pub(crate) fn rule(field: impl Into<String>, detail: &str) -> Self {
        Self::new(
            field,
            "FieldValueInvalid",
            format!("Invalid value: {detail}"),
        )
    }

    pub(crate) fn type_invalid(field: impl Into<String>, value: &str, detail: &str) -> Self {
        let message = format!("Invalid value: {value:?}: {detail}");
        Self::new(field, "FieldValueTypeInvalid", message)
    }

    pub(crate) fn not_supported(field: impl Into<String>, value: &Value, known: &[&str]) -> Self {
        let known: Vec<_> = known.iter().map(|text| format!("{text:?}")).collect();
        let message = format!(
            "Unsupported value: {value}: supported values: {}",
            known.join(", ")
        );
        Self::new(field, "FieldValueNotSupported", message)
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "FieldValueForbidden", format!("Forbidden: {detail}"))
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::new(
            field,
            "FieldValueDuplicate",
            format!("Duplicate value: {value}"),
        )
    }

    pub(crate) fn not_found(field: impl Into<String>, value: &Value) -> Self {
        Self::new(field, "FieldValueNotFound", format!("Not found: {value}"))
    }

    pub(crate) fn too_long(field: impl Into<String>, limit: usize) -> Self {
        let message = format!("Too long: may not be more than {limit} bytes");
        Self::new(field, "FieldValueTooLong", message)
    }

    pub(crate) fn too_many(field: impl Into<String>, actual: usize, limit: usize) -> Self {
        let message = format!("Too many: {actual}: must have at most {limit} items");
        Self::new(field, "FieldValueTooMany", message)
    }

    fn cause(&self) -> Value {
        json!({"reason": self.reason, "message": self.message, "field": self.field})
    }
}

/// The error of a request, with everything that its answer needs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Box<Value>>,
    /// A new continue token for a list whose token expired.
    continue_token: Option<String>,
    pub(crate) retry_after: Option<u64>,
    /// Text to answer as `text/plain` instead of a `Status`.
    pub(crate) plain: Option<&'static str>,
}

/// The result of a handler.
pub(crate) type Outcome<T> = Result<T, ApiError>;

impl ApiError {
    /// An error without details.
    pub(crate) fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            continue_token: None,
            retry_after: None,
            plain: None,
        }
    }

    fn with_details(mut self, details: Value) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// Upstream's plain 404 page for a path that is not served.
    pub(crate) fn page_not_found() -> Self {
        let mut error = Self::new(StatusCode::NOT_FOUND, "NotFound", "404 page not found");
        error.plain = Some("404 page not found\n");
        error
    }

    pub(crate) fn resource_not_found() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).with_details(json!({}))
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
            .with_details(json!({}))
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// An error that upstream returns untyped: code 500, no reason.
    pub(crate) fn untyped(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    pub(crate) fn internal(message: &str) -> Self {
        let message = format!("Internal error occurred: {message}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    pub(crate) fn not_found(resource: &ResourceType, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified_resource());
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
            .with_details(resource_details(resource, name))
    }

    pub(crate) fn already_exists(resource: &ResourceType, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified_resource());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message)
            .with_details(resource_details(resource, name))
    }

    pub(crate) fn conflict(resource: &ResourceType, name: &str, detail: &str) -> Self {
        let what = resource.qualified_resource();
        let message = format!("Operation cannot be fulfilled on {what} {name:?}: {detail}");
        Self::new(StatusCode::CONFLICT, "Conflict", message)
            .with_details(resource_details(resource, name))
    }

    /// A Pod that is bound already: the only conflict that names the subresource.
    pub(crate) fn binding_conflict(name: &str, detail: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on pods/binding {name:?}: {detail}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).with_details(details(
            "",
            "pods/binding",
            name,
        ))
    }

    /// A failed precondition of a delete or a bound token; upstream names the kind here, not the
    /// resource.
    pub(crate) fn precondition(resource: &ResourceType, name: &str, detail: &str) -> Self {
        let what = resource.qualified_kind();
        let message = format!("Operation cannot be fulfilled on {what} {name:?}: {detail}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).with_details(details(
            &resource.group,
            &resource.kind,
            name,
        ))
    }

    pub(crate) fn modified(resource: &ResourceType, name: &str) -> Self {
        let detail = "the object has been modified; please apply your changes to the latest \
            version and try again";
        Self::conflict(resource, name, detail)
    }

    pub(crate) fn apply_conflict(message: String, causes: &[Value]) -> Self {
        Self::new(StatusCode::CONFLICT, "Conflict", message)
            .with_details(json!({ "causes": causes }))
    }

    /// An object with validation errors.
    pub(crate) fn invalid(resource: &ResourceType, name: &str, errors: &[FieldError]) -> Self {
        Self::invalid_as(&resource.group, &resource.kind, name, errors)
    }

    /// Validation errors of a kind that is not a resource, such as `ListOptions.meta.k8s.io`.
    pub(crate) fn invalid_as(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let qualified = if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{group}")
        };
        let mut message = format!("{qualified} {name:?} is invalid: ");
        // As upstream: duplicates are once in the message but all among the causes.
        let (named, more) = errors.split_at(errors.len().min(MAX_CAUSES));
        let mut known = HashSet::with_capacity(named.len());
        let mut texts: Vec<String> = Vec::new();
        for error in named {
            if known.insert((&error.field, &error.message)) {
                texts.push(format!("{}: {}", error.field, error.message));
            }
        }
        if !more.is_empty() {
            texts.push(format!("and {} more errors", more.len()));
        }
        match &texts[..] {
            [one] => message.push_str(one),
            many => {
                let _ = write!(message, "[{}]", many.join(", "));
            }
        }
        let mut details = details(group, kind, name);
        details["causes"] = named.iter().map(FieldError::cause).collect();
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).with_details(details)
    }

    /// A validation error of the request's options.
    pub(crate) fn invalid_options(kind: &str, error: FieldError) -> Self {
        Self::invalid_as("meta.k8s.io", kind, "", &[error])
    }

    /// Rewords a decoding error for an object that a patch produced.
    pub(crate) fn of_patch(self, patched: &str) -> Self {
        if self.code != StatusCode::BAD_REQUEST {
            return self;
        }
        let detail = match self.message.split_once(" cannot be handled as a ") {
            Some((_, rest)) => rest.split_once(": ").map_or(rest, |(_, detail)| detail),
            None => &self.message,
        };
        let error = FieldError::invalid("patch", &json!(patched), detail);
        Self::invalid_as("", "", "", &[error])
    }

    pub(crate) fn unprocessable() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).with_details(json!({}))
    }

    pub(crate) fn forbidden(resource: &ResourceType, name: &str, detail: &str) -> Self {
        let what = resource.qualified_resource();
        let message = match name {
            "" => format!("{what} is forbidden: {detail}"),
            name => format!("{what} {name:?} is forbidden: {detail}"),
        };
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
            .with_details(resource_details(resource, name))
    }

    /// Refused by an admission policy: 422, the default reason of policies.
    pub(crate) fn denied(resource: &ResourceType, name: &str, detail: &str) -> Self {
        let what = resource.qualified_resource();
        let message = format!("{what} {name:?} is forbidden: {detail}");
        let mut details = resource_details(resource, name);
        details["causes"] = json!([{"message": detail}]);
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).with_details(details)
    }

    pub(crate) fn forbidden_path(message: String) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).with_details(json!({}))
    }

    pub(crate) fn with_cause(mut self, reason: &str, message: &str, field: &str) -> Self {
        let cause = json!({"reason": reason, "message": message, "field": field});
        self.details.get_or_insert_with(|| Box::new(json!({})))["causes"] = json!([cause]);
        self
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn unsupported_media(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: \
             {accepted}"
        );
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
        )
    }

    pub(crate) fn unsupported_patch() -> Self {
        let message = "415: Unsupported Media Type";
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
        )
        .with_details(json!({}))
    }

    pub(crate) fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// 406 of upstream's router, which lists the media types of the path.
    pub(crate) fn not_acceptable_representation(kind: ResponseKind) -> Self {
        let streams = if kind == ResponseKind::Object {
            ""
        } else {
            ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
        };
        Self::not_acceptable(format!(
            "406: Not Acceptable

Available representations: application/json, \
             application/yaml, application/vnd.kubernetes.protobuf{streams}"
        ))
        .with_details(json!({}))
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            message,
        )
    }

    /// An object over etcd's size limit, with etcd's message as upstream returns it.
    pub(crate) fn too_large_to_store() -> Self {
        Self::untyped("etcdserver: request is too large")
    }

    /// 504: the request exceeded its deadline.
    pub(crate) fn took_too_long() -> Self {
        let message = "Timeout: request did not complete within the allotted timeout";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message).with_details(json!({}))
    }

    /// A resource version in the future.
    pub(crate) fn future_version(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let cause =
            json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        let mut error = Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
            .with_details(json!({"causes": [cause], "retryAfterSeconds": 1}));
        error.retry_after = Some(1);
        error
    }

    pub(crate) fn too_old_watch(asked: u64, oldest: u64) -> Self {
        Self::expired(format!("too old resource version: {asked} ({oldest})"))
    }

    pub(crate) fn too_old_list() -> Self {
        Self::expired("The resourceVersion for the provided list is too old.")
    }

    pub(crate) fn expired_token(fresh: String) -> Self {
        let mut error = Self::expired(
            "The provided continue parameter is too old to display a consistent list result. You \
             can start a new list without the continue parameter, or use the continue token in \
             this response to retrieve the remainder of the results. Continuing with the provided \
             token results in an inconsistent list - objects that were created, modified, or \
             deleted between the time the first chunk was returned and now may show up in the \
             list.",
        );
        error.continue_token = Some(fresh);
        error
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// An error of any code, for fault injection.
    pub(crate) fn injected(code: StatusCode, message: &str, retry_after: Option<u64>) -> Self {
        let mut error = Self::new(code, reason_of(code), message);
        if let Some(seconds) = retry_after {
            error.details = Some(Box::new(json!({ "retryAfterSeconds": seconds })));
            error.retry_after = Some(seconds);
        }
        error
    }

    /// The `Status` object of the answer.
    pub(crate) fn status(&self) -> Value {
        let mut status = Map::new();
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".into(), token.clone().into());
        }
        status.insert("kind".into(), "Status".into());
        status.insert("apiVersion".into(), "v1".into());
        status.insert("metadata".into(), metadata.into());
        status.insert("status".into(), "Failure".into());
        status.insert("message".into(), self.message.clone().into());
        if !self.reason.is_empty() {
            status.insert("reason".into(), self.reason.into());
        }
        if let Some(details) = &self.details {
            status.insert("details".into(), (**details).clone());
        }
        status.insert("code".into(), self.code.as_u16().into());
        status.into()
    }
}

/// The `details` of a Status about one object.
pub(crate) fn details(group: &str, kind: &str, name: &str) -> Value {
    let mut details = Map::new();
    if !name.is_empty() {
        details.insert("name".into(), name.into());
    }
    if !group.is_empty() {
        details.insert("group".into(), group.into());
    }
    details.insert("kind".into(), kind.into());
    details.into()
}

fn resource_details(resource: &ResourceType, name: &str) -> Value {
    details(&resource.group, &resource.plural, name)
}

/// The default reason of a code.
fn reason_of(code: StatusCode) -> &'static str {
    match code.as_u16() {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        406 => "NotAcceptable",
        409 => "Conflict",
        410 => "Expired",
        413 => "RequestEntityTooLarge",
        415 => "UnsupportedMediaType",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    }
}
