//! Minimal OpenAPI documents that make kubectl leave validation to the server.
//!
//! Version 3 has one path per kind, with a `patch` operation that names the kind and the parameter
//! `fieldValidation`; without schemas, `kubectl explain` has nothing to show. Version 2 is an
//! empty document.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};

use super::discovery::version_path;
use crate::{
    api::{Api, Context},
    kind::{ResourceType, registry::Version},
    reply::{Payload, Reply},
    status::{ApiError, Outcome},
};

/// Media type of version 2 that kubectl accepts; it writes `@v1.0` for `.v1.0`.
const PROTOBUF_V2: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The empty document as protobuf: `swagger`, and `info` with `title` and `version`.
const FRAME_V2: &[u8] = b"\x0a\x032.0\x12\x12\x0a\x0aKubernetes\x12\x041.36";

/// Answers `/openapi/v2` without schemas. kubectl looks there for the kinds of a `List`'s items and,
/// where it finds none, skips its own validation and sends `fieldValidation`.
pub(super) fn v2(context: &Context) -> Reply {
    let accept = context.header(header::ACCEPT).unwrap_or_default();
    let (body, form) = if accept.replace('@', ".").contains(PROTOBUF_V2) {
        (Bytes::from_static(FRAME_V2), PROTOBUF_V2)
    } else {
        let info = json!({"title": "Kubernetes", "version": "1.36"});
        let frame = json!({"swagger": "2.0", "info": info, "paths": {}});
        (Bytes::from(frame.to_string()), "application/json")
    };
    let form = HeaderValue::from_static(form);
    Reply::new(StatusCode::OK, Payload::Raw(body, form)).header(header::VARY, "Accept")
}

/// Answers `/openapi/v3` and the documents under it.
pub(super) fn v3(api: &Api, context: &Context) -> Outcome<Reply> {
    let served = api.registry.served();
    let wanted = context
        .info
        .path
        .trim_start_matches("/openapi/v3")
        .trim_end_matches('/');
    let mut index = Map::new();
    for group in &served.groups {
        for version in &group.versions {
            let path = version_path(group, version);
            let document = document(&path, version);
            let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&document);
            let hash = format!("{hash:016X}");
            if path == wanted {
                return Ok(answer(context, &path, document, &hash));
            }
            let url = format!("/openapi/v3{path}?hash={hash}");
            index.insert(path[1..].to_owned(), json!({"serverRelativeURL": url}));
        }
    }
    if !wanted.is_empty() {
        return Err(ApiError::page_not_found());
    }
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    let text = json!({ "paths": index }).to_string();
    Ok(Reply::new(
        StatusCode::OK,
        Payload::Raw(Bytes::from(text), plain),
    ))
}

fn answer(context: &Context, path: &str, document: String, hash: &str) -> Reply {
    let json = HeaderValue::from_static("application/json");
    let asked = context.query.get("hash");
    if asked.is_some_and(|asked| asked != hash) {
        let location = format!("/openapi/v3{path}?hash={hash}");
        return Reply::text(StatusCode::MOVED_PERMANENTLY, "").header(header::LOCATION, &location);
    }
    let tag = format!("\"{hash}\"");
    let reply = Reply::new(StatusCode::OK, Payload::Raw(Bytes::from(document), json))
        .header(header::ETAG, &tag)
        .header(header::VARY, "Accept");
    match asked {
        Some(_) => reply.header(header::CACHE_CONTROL, "public, immutable"),
        None => reply,
    }
}

fn document(path: &str, version: &Version) -> String {
    let mut paths = Map::new();
    for kind in &version.resources {
        let scope = if kind.namespaced {
            "/namespaces/{namespace}"
        } else {
            ""
        };
        paths.insert(
            format!("{path}{scope}/{}/{{name}}", kind.plural),
            operations(kind),
        );
    }
    let document = json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "1.36"},
        "paths": paths,
    });
    document.to_string()
}

fn operations(kind: &ResourceType) -> Value {
    json!({"patch": {
        "x-kubernetes-group-version-kind":
            {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "parameters": [
            {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}},
            {"name": "dryRun", "in": "query", "schema": {"type": "string"}},
            {"name": "fieldManager", "in": "query", "schema": {"type": "string"}},
        ],
        "responses": {"200": {"description": "OK"}},
    }})
}

#[cfg(test)]
mod tests {
    use super::FRAME_V2;

    #[test]
    fn lengths_in_the_frame_are_those_of_what_follows() {
        let info = FRAME_V2.strip_prefix(b"\x0a\x032.0\x12\x12").unwrap();
        assert_eq!(info.len(), 0x12);
        assert_eq!((info[1], info[13]), (10, 4));
        assert_eq!(
            (&info[2..12], &info[14..]),
            (&b"Kubernetes"[..], &b"1.36"[..])
        );
    }
}
