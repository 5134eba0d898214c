//! Decoding of request bodies into objects of the kind of the path.

use std::fmt::Write as _;

use http::header;
use serde_json::Value;

use crate::{
    api::Context,
    encoding::{json, yaml},
    kind::{Origin, ResourceType},
    meta::Meta as _,
    options::FieldValidation,
    status::{ApiError, Outcome},
    store::Object,
};

/// Encoding of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyType {
    Json,
    Yaml,
    Protobuf,
}

impl BodyType {
    /// Reads the Content-Type; an absent one counts as JSON.
    pub(crate) fn of(context: &Context, origin: Origin) -> Outcome<Self> {
        let full = context.header(header::CONTENT_TYPE).unwrap_or_default();
        match full.split(';').next().unwrap_or_default().trim() {
            "" | "application/json" => Ok(Self::Json),
            "application/yaml" => Ok(Self::Yaml),
            "application/vnd.kubernetes.protobuf" if origin == Origin::Builtin => {
                Ok(Self::Protobuf)
            }
            _ if origin == Origin::Custom => Err(ApiError::unsupported_media(
                "application/json, application/yaml",
            )),
            _ => Err(ApiError::unsupported_media(
                "application/json, application/yaml, application/vnd.kubernetes.protobuf",
            )),
        }
    }
}

/// Decodes the body of a create or update.
pub(crate) fn object(
    context: &Context,
    kind: &ResourceType,
    validation: FieldValidation,
) -> Outcome<Object> {
    let body_type = BodyType::of(context, kind.origin())?;
    object_as(
        context,
        kind,
        &kind.group,
        &kind.version,
        &kind.kind,
        body_type,
        validation,
    )
}

/// Decodes a body of the given kind, which can differ from the resource's (a Scale).
pub(crate) fn object_as(
    context: &Context,
    resource: &ResourceType,
    group: &str,
    version: &str,
    kind: &str,
    body_type: BodyType,
    validation: FieldValidation,
) -> Outcome<Object> {
    let body = &context.body;
    let document = match body_type {
        BodyType::Json => json::parse(body).map_err(|error| {
            unrecognized(
                kind,
                &format!(
                    "couldn't get version/kind; json parse error: {}",
                    json::go_error(&error, body)
                ),
                body,
            )
        })?,
        BodyType::Yaml => yaml::parse(body)
            .map_err(|error| unrecognized(kind, &format!("yaml: {error}"), body))?,
        BodyType::Protobuf => crate::schema::protobuf::decode(body, group, version, kind)?,
    };
    let Value::Object(mut object) = document.value else {
        let shown = json_type(&document.value);
        let complaint = format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {shown} into Go \
             value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind \
             string \"json:\\\"kind,omitempty\\\"\" }}"
        );
        return Err(unrecognized(kind, &complaint, body));
    };
    check_type(resource, group, version, kind, &mut object, body)?;
    if body_type != BodyType::Protobuf {
        let unknown = crate::schema::check(resource, group, version, kind, &mut object)?;
        report(
            context,
            kind,
            version,
            validation,
            document.duplicates,
            unknown,
        )?;
    }
    Ok(object)
}

/// Handles unknown and duplicate fields as `fieldValidation` says: error, warning or ignored.
pub(crate) fn report(
    context: &Context,
    kind: &str,
    version: &str,
    validation: FieldValidation,
    duplicates: Vec<String>,
    unknown: Vec<String>,
) -> Outcome<()> {
    let complaints: Vec<String> = unknown
        .into_iter()
        .map(|field| format!("unknown field {field:?}"))
        .chain(
            duplicates
                .into_iter()
                .map(|field| format!("duplicate field {field:?}")),
        )
        .collect();
    match validation {
        _ if complaints.is_empty() => Ok(()),
        FieldValidation::Ignore => Ok(()),
        FieldValidation::Warn => {
            for text in complaints {
                context.warn(text);
            }
            Ok(())
        }
        FieldValidation::Strict => Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
            complaints.join(", ")
        ))),
    }
}

/// Go's name for the type of a JSON value.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Checks that kind and version of a body are absent or those of the path.
pub(crate) fn check_type(
    resource: &ResourceType,
    group: &str,
    version: &str,
    kind: &str,
    object: &mut Object,
    body: &[u8],
) -> Outcome<()> {
    let api_version = crate::kind::group_version(group, version);
    let (said_version, said_kind) = (object.text("apiVersion"), object.text("kind"));
    if resource.is_custom() && kind == resource.kind {
        for (what, said) in [("Kind", said_kind), ("apiVersion", said_version)] {
            if said.is_empty() {
                let text = String::from_utf8_lossy(body);
                let complaint = format!("Object '{what}' is missing in '{text}'");
                return Err(unrecognized(kind, &complaint, body));
            }
        }
        // For custom resources a wrong kind is a validation error, a wrong version is not.
        if said_version != api_version {
            return Err(ApiError::bad_request(format!(
                "the API version in the data ({said_version}) does not match the expected API \
                 version ({api_version})"
            )));
        }
        return Ok(());
    }
    let wrong_version = !said_version.is_empty() && said_version != api_version;
    let wrong_kind = !said_kind.is_empty() && said_kind != kind;
    if wrong_version || wrong_kind {
        let said_version = if said_version.is_empty() {
            &api_version
        } else {
            said_version
        };
        let said_kind = if said_kind.is_empty() {
            kind
        } else {
            said_kind
        };
        let known = crate::schema::message_of(group, version, said_kind).is_some();
        let why = if wrong_version || !known {
            format!(
                "no kind {said_kind:?} is registered for version {said_version:?} in scheme \
                 \"pkg/api/legacyscheme/scheme.go:30\""
            )
        } else {
            let package = match group.split('.').next().unwrap_or_default() {
                "" => "core",
                group => group,
            };
            format!("converting ({version}.{said_kind}) to ({package}.{kind}): unknown conversion")
        };
        return Err(ApiError::bad_request(format!(
            "{said_kind} in version {said_version:?} cannot be handled as a {kind}: {why}"
        )));
    }
    object.insert("kind".into(), kind.into());
    object.insert("apiVersion".into(), api_version.into());
    Ok(())
}

fn unrecognized(kind: &str, complaint: &str, body: &[u8]) -> ApiError {
    ApiError::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): {complaint} ({})",
        summary(body)
    ))
}

/// The first bytes of a body as upstream shows them: text for JSON, hexadecimal otherwise.
pub(crate) fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let more = if body.len() > SHOWN { " ..." } else { "" };
    let shown = &body[..body.len().min(SHOWN)];
    match shown.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(shown)),
        Some(_) => {
            let mut hex = String::new();
            for byte in shown {
                let _ = write!(hex, "{byte:02x}");
            }
            format!("{hex}{more}")
        }
    }
}
