//! Raw API requests, and creation of objects from manifests.

use http::{Method, Request};
use kube::Client;
use serde_json::Value;

/// Creates an object; one that exists already is not an error.
pub async fn create(client: &Client, object: &Value) -> Result<(), kube::Error> {
    match call(client, Method::POST, &collection(object), object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

/// The path of the collection that an object belongs to.
pub fn collection(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let root = if version.contains('/') {
        "/apis"
    } else {
        "/api"
    };
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    };
    let scope = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("namespaces/{namespace}/"),
        None => String::new(),
    };
    format!("{root}/{version}/{scope}{plural}")
}

/// Sends a request to the API. PATCH is a merge patch; a null `body` sends an empty one.
pub async fn call(
    client: &Client,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<Value, kube::Error> {
    let kind = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let body = match body {
        Value::Null => Vec::new(),
        body => body.to_string().into_bytes(),
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind)
        .body(body)
        .map_err(kube::Error::HttpError)?;
    client.request(request).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_collection_of_an_object_follows_from_version_kind_and_namespace() {
        let of = |version, kind, namespace: Option<&str>| {
            let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {}});
            if let Some(namespace) = namespace {
                object["metadata"]["namespace"] = namespace.into();
            }
            collection(&object)
        };
        assert_eq!(of("v1", "Node", None), "/api/v1/nodes");
        assert_eq!(
            of("apps/v1", "Deployment", Some("web")),
            "/apis/apps/v1/namespaces/web/deployments"
        );
        assert_eq!(
            of(
                "admissionregistration.k8s.io/v1",
                "ValidatingAdmissionPolicy",
                None
            ),
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
        );
    }
}
