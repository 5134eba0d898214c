//! An API server with our definitions.

use http::{Method, Request};
use kube::Client;
use serde_json::Value;
use weft_apiserver::ApiServer;

pub(crate) const GROUP: &str = "/apis/ipam.weft.dev/v1alpha1";
const DEFINITIONS: [&str; 4] = [
    include_str!("../../../../../deploy/crds/nodenetworkconfigs.yaml"),
    include_str!("../../../../../deploy/crds/ippools.yaml"),
    include_str!("../../../../../deploy/crds/ippoolshards.yaml"),
    include_str!("../../../../../deploy/crds/clustersubnetstates.yaml"),
];

/// The path of an object or, without a name, of all of a kind.
pub(crate) fn path(plural: &str, name: &str) -> String {
    let scope = match plural {
        "nodenetworkconfigs" | "clustersubnetstates" => "namespaces/kube-system/",
        _ => "",
    };
    let name = if name.is_empty() {
        String::new()
    } else {
        format!("/{name}")
    };
    format!("{GROUP}/{scope}{plural}{name}")
}

pub(crate) async fn call(
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
        .unwrap();
    client.request(request).await
}

/// Installs what `deploy/crds` holds and waits until it is served.
pub(crate) async fn install(client: &Client) {
    for text in DEFINITIONS {
        let definition: Value = serde_saphyr::from_str(text).unwrap();
        let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        call(client, Method::POST, all, &definition).await.unwrap();
        let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
        let served = path(plural, "");
        while call(client, Method::GET, &served, &Value::Null)
            .await
            .is_err()
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

pub(crate) async fn server() -> ApiServer {
    let server = ApiServer::builder().build();
    install(&server.client()).await;
    server
}
