//! Routing of classified requests to their handlers.

pub(crate) mod delete;
pub(crate) mod discovery;
pub(crate) mod exclusive_write;
#[cfg(feature = "fault-endpoint")]
mod fault_endpoint;
mod health;
mod openapi;
mod openid;
mod patch;
mod proxy;
mod read;
mod review;
mod subresource;
pub(crate) mod table;
mod watch;
pub(crate) mod write;

use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::json;

use crate::{
    api::{Api, Context},
    kind::{ResourceType, Subresource, Verbs},
    reply::Reply,
    request::Verb,
    status::{ApiError, Outcome},
};

/// Answers an authorised request.
pub(crate) async fn handle(api: &Arc<Api>, context: &Context) -> Outcome<Reply> {
    let info = &context.info;
    if !info.is_resource() {
        return non_resource(api, context);
    }
    let served = api.registry.served();
    if served.version(&info.group, &info.version).is_none() {
        // As upstream: an unknown version of a built-in group is a Status, of another group a plain
        // 404 page.
        let own = served.group(&info.group).is_some_and(|group| {
            group
                .versions
                .iter()
                .flat_map(|version| &version.resources)
                .all(|k| !k.is_custom())
        });
        return Err(if own {
            ApiError::resource_not_found()
        } else {
            ApiError::page_not_found()
        });
    }
    let kind = served.find(&info.group, &info.version, &info.resource);
    let Some(kind) = kind.cloned() else {
        return Err(not_in_group(&served, context));
    };
    if matches!(context.method, Method::HEAD | Method::OPTIONS) {
        return Err(ApiError::method_not_allowed());
    }
    let misplaced = kind.namespaced == info.namespace.is_empty();
    if misplaced && !(kind.namespaced && matches!(info.verb, Verb::List | Verb::Watch)) {
        // `namespaces/x` itself is cluster scoped and read as such; anything else is not there.
        let named = !info.name.is_empty();
        return Err(if kind.is_custom() && !kind.namespaced {
            ApiError::page_not_found()
        } else if named || !kind.namespaced {
            ApiError::resource_not_found()
        } else {
            ApiError::method_not_allowed()
        });
    }
    if kind.rules.verbs == Verbs::CreateOnly {
        return match info.verb {
            Verb::Create if info.name.is_empty() => review::create(api, context, &kind),
            _ => Err(ApiError::method_not_allowed()),
        };
    }
    if subresource_of(&kind, &info.subresource) == Some(Subresource::Proxy) {
        return proxy::forward(api, context, &kind).await;
    }
    if !info.subresource.is_empty() {
        return subresource::handle(api, context, &kind);
    }
    match info.verb {
        Verb::Get => read::get(api, context, &kind).await,
        Verb::List => read::list(api, context, &kind).await,
        Verb::Watch => watch::watch(api, context, &kind).await,
        Verb::Create if info.name.is_empty() => write::create(api, context, &kind),
        Verb::Update if !info.name.is_empty() => write::update(api, context, &kind, None),
        Verb::Patch if !info.name.is_empty() => patch::patch(api, context, &kind, None),
        Verb::Delete => delete::delete(api, context, &kind),
        Verb::DeleteCollection if kind.rules.verbs == Verbs::All => {
            delete::delete_collection(api, context, &kind)
        }
        _ => Err(ApiError::method_not_allowed()),
    }
}

/// 404 for a resource that the group version does not have.
fn not_in_group(served: &crate::kind::registry::Served, context: &Context) -> ApiError {
    let info = &context.info;
    debug_assert!(
        served
            .find(&info.group, &info.version, &info.resource)
            .is_none()
    );
    ApiError::resource_not_found()
}

/// Path prefix of the fault endpoint.
const FAULT_PATH: &str = "/weft/faults";

/// True for paths of the enabled fault endpoint, which is exempt from injected faults.
pub(crate) fn is_fault_endpoint(api: &Api, path: &str) -> bool {
    cfg!(feature = "fault-endpoint") && api.fault_endpoint && path.starts_with(FAULT_PATH)
}

fn non_resource(api: &Arc<Api>, context: &Context) -> Outcome<Reply> {
    let path = context.info.path.as_str();
    #[cfg(feature = "fault-endpoint")]
    if is_fault_endpoint(api, path) {
        return fault_endpoint::answer(api, context);
    }
    if context.method != Method::GET && context.method != Method::HEAD {
        let known = matches!(path, "/" | "/api" | "/apis" | "/version")
            || path.starts_with("/healthz")
            || discovery::is_group_version(api, path);
        return Err(if known {
            ApiError::method_not_allowed()
        } else {
            ApiError::page_not_found()
        });
    }
    match path {
        "/" => Ok(discovery::root(api)),
        "/version" | "/version/" => Ok(Reply::value(StatusCode::OK, version())),
        "/metrics" => Ok(health::metrics(api)),
        "/.well-known/openid-configuration" => Ok(openid::configuration(api)),
        "/openid/v1/jwks" => Ok(openid::keys(api)),
        "/openapi/v2" => Ok(openapi::v2(context)),
        _ if path.starts_with("/openapi/v3") => openapi::v3(api, context),
        _ if ["/healthz", "/livez", "/readyz"]
            .iter()
            .any(|probe| path.starts_with(probe)) =>
        {
            health::probe(api, context)
        }
        _ => discovery::answer(api, context),
    }
}

/// The Kubernetes release that this server follows, with `weft` in the build metadata.
fn version() -> serde_json::Value {
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": "v1.36.4+weft",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, platform()),
    })
}

fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The subresource of this name, if the kind has it.
pub(crate) fn subresource_of(kind: &ResourceType, name: &str) -> Option<Subresource> {
    Subresource::parse(name).filter(|subresource| kind.has(*subresource))
}
