//! OpenID Connect discovery of ServiceAccount tokens: their issuer and verification keys.

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};

use crate::{
    api::Api,
    reply::{Payload, Reply},
};

/// The host name in the document while the server does not listen.
const UNBOUND: &str = "kubernetes.default.svc";

/// Answers `/.well-known/openid-configuration`.
pub(super) fn configuration(api: &Api) -> Reply {
    let address = api.address.get().map(ToString::to_string);
    let host = address.as_deref().unwrap_or(UNBOUND);
    let document = api.authenticator.accounts.discovery(host);
    reply(&document, "application/json")
}

/// Answers `/openid/v1/jwks`.
pub(super) fn keys(api: &Api) -> Reply {
    let document = api.authenticator.accounts.key_set();
    reply(&document, "application/jwk-set+json")
}

/// Unlike every other answer, both documents may be cached.
fn reply(document: &serde_json::Value, kind: &'static str) -> Reply {
    let body = Bytes::from(document.to_string());
    let payload = Payload::Raw(body, HeaderValue::from_static(kind));
    Reply::new(StatusCode::OK, payload).header(header::CACHE_CONTROL, "public, max-age=3600")
}
