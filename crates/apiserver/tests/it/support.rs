//! Helpers for in-process requests.

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::Service as _;
use weft_apiserver::{ApiServer, Body, User};

/// A complete answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The value at a JSON pointer; null when absent.
    pub(crate) fn at(&self, pointer: &str) -> Value {
        self.json().pointer(pointer).cloned().unwrap_or_default()
    }

    pub(crate) fn message(&self) -> String {
        self.at("/message").as_str().unwrap_or_default().to_owned()
    }
}

/// Sends a request in process and returns the open response.
pub(crate) async fn open(server: &ApiServer, request: Request<String>) -> Response<Body> {
    server.service(User::admin()).call(request).await.unwrap()
}

pub(crate) async fn send(server: &ApiServer, request: Request<String>) -> Answer {
    let response = open(server, request).await;
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer {
        status: parts.status,
        headers: parts.headers,
        text: String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

pub(crate) fn request(method: Method, path: &str, body: &str) -> Request<String> {
    Request::builder()
        .method(method)
        .uri(path)
        .body(body.to_owned())
        .unwrap()
}

pub(crate) async fn get(server: &ApiServer, path: &str) -> Answer {
    send(server, request(Method::GET, path, "")).await
}

pub(crate) async fn post(server: &ApiServer, path: &str, body: &Value) -> Answer {
    send(server, request(Method::POST, path, &body.to_string())).await
}

pub(crate) async fn put(server: &ApiServer, path: &str, body: &Value) -> Answer {
    send(server, request(Method::PUT, path, &body.to_string())).await
}

pub(crate) async fn delete(server: &ApiServer, path: &str) -> Answer {
    send(server, request(Method::DELETE, path, "")).await
}

pub(crate) async fn patch(server: &ApiServer, path: &str, kind: &str, body: &Value) -> Answer {
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(path)
        .header("content-type", format!("application/{kind}"))
        .body(body.to_string())
        .unwrap();
    send(server, request).await
}

pub(crate) fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Reads the lines of a watch one by one.
pub(crate) struct Lines {
    body: Body,
    buffer: Vec<u8>,
}

impl Lines {
    pub(crate) async fn open(server: &ApiServer, path: &str) -> Self {
        let response = open(server, request(Method::GET, path, "")).await;
        assert_eq!(response.status(), StatusCode::OK);
        Self {
            body: response.into_body(),
            buffer: Vec::new(),
        }
    }

    /// The next event; `None` at a clean end, an error when the stream broke.
    pub(crate) async fn try_next(&mut self) -> Result<Option<Value>, String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line).unwrap()));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(error.to_string()),
                Some(Ok(frame)) => self.buffer.extend_from_slice(frame.data_ref().unwrap()),
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Option<Value> {
        self.try_next().await.unwrap()
    }

    /// The next event as `TYPE name`.
    pub(crate) async fn event(&mut self) -> String {
        let event = self.next().await.expect("the watch ended");
        let name = event
            .pointer("/object/metadata/name")
            .and_then(Value::as_str);
        format!(
            "{} {}",
            event["type"].as_str().unwrap(),
            name.unwrap_or_default()
        )
    }
}
