//! API calls of a check.

use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

use crate::{
    objects::{self, is_ours, port_of},
    question::{Attempts, Question},
};

/// A cluster and the check's namespace in it.
pub(crate) struct Cluster<'a> {
    pub(crate) client: &'a Client,
    pub(crate) namespace: &'a str,
}

impl Cluster<'_> {
    fn inside(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}{rest}", self.namespace)
    }

    async fn call(&self, method: Method, path: &str, body: &Value) -> Result<Value, kube::Error> {
        let body = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(body)
            .map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }

    async fn list(&self, path: &str) -> Result<Vec<Value>, kube::Error> {
        let mut list = self.call(Method::GET, path, &Value::Null).await?;
        Ok(match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        })
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<Value>, kube::Error> {
        self.list("/api/v1/nodes").await
    }

    pub(crate) async fn pods(&self) -> Result<Vec<Value>, kube::Error> {
        self.list(&self.inside("/pods")).await
    }

    /// The namespace, if it exists.
    pub(crate) async fn found(&self) -> Result<Option<Value>, kube::Error> {
        match self.call(Method::GET, &self.inside(""), &Value::Null).await {
            Ok(namespace) => Ok(Some(namespace)),
            Err(error) if code(&error) == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn make_namespace(&self) -> Result<(), kube::Error> {
        let namespace = objects::namespace(self.namespace);
        self.call(Method::POST, "/api/v1/namespaces", &namespace)
            .await
            .map(drop)
    }

    /// Creates an object in the namespace and returns it as the API stored it.
    pub(crate) async fn make(&self, resource: &str, object: &Value) -> Result<Value, kube::Error> {
        let path = self.inside(&format!("/{resource}"));
        self.call(Method::POST, &path, object).await
    }

    /// Deletes the namespace if a check created it. Returns whether nothing is left of it.
    pub(crate) async fn remove(&self) -> Result<bool, kube::Error> {
        let Some(namespace) = self.found().await?.filter(is_ours) else {
            return Ok(true);
        };
        if namespace["metadata"]["deletionTimestamp"].is_null() {
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions",
                "preconditions": {"uid": namespace["metadata"]["uid"]},
            });
            match self.call(Method::DELETE, &self.inside(""), &options).await {
                Err(error) if !matches!(code(&error), Some(404 | 409)) => return Err(error),
                _ => {}
            }
        }
        Ok(false)
    }

    /// Sends a question to a probe through the API server's pod proxy.
    pub(crate) async fn ask(
        &self,
        pod: &str,
        question: &Question,
    ) -> Result<Attempts, kube::Error> {
        self.get_from_probe(pod, &question.path()).await
    }

    /// Requests the identity of a probe.
    pub(crate) async fn identify(&self, pod: &str) -> Result<crate::EchoAnswer, kube::Error> {
        self.get_from_probe(pod, "/").await
    }

    async fn get_from_probe<T: serde::de::DeserializeOwned>(
        &self,
        pod: &str,
        path: &str,
    ) -> Result<T, kube::Error> {
        let path = self.inside(&format!("/pods/{pod}:{}/proxy{path}", port_of(pod)));
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(kube::Error::HttpError)?;
        let text = self.client.request_text(request).await?;
        serde_json::from_str(&text).map_err(kube::Error::SerdeError)
    }
}

fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
