//! `pods/proxy`: forwards a GET to a port of a pod.
//!
//! Covers what connectivity checks need: plain HTTP/1.1, no upgrades, responses of a limited size.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;

use super::read::find;
use crate::{
    api::{Api, Context},
    kind::ResourceType,
    meta::Meta as _,
    pod_dialer::PodPort,
    reply::{Payload, Reply},
    request::Verb,
    status::{ApiError, Outcome},
    store::Object,
    view,
};

/// Limit of a pod's response in bytes.
const MAX_RESPONSE: usize = 4 * 1024 * 1024;
/// Limit of the whole exchange, from dialling to the last byte.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Port of a pod whose containers declare none.
const DEFAULT_PORT: u16 = 80;

/// Forwards a GET; other verbs are answered 405.
pub(crate) async fn forward(api: &Api, context: &Context, kind: &ResourceType) -> Outcome<Reply> {
    if context.info.verb != Verb::Get {
        return Err(ApiError::method_not_allowed());
    }
    let target = ProxyTarget::read(&context.info.name)?;
    let pod = find(api, kind, &context.info.namespace, target.pod)?;
    let target = PodPort {
        namespace: context.info.namespace.clone(),
        name: target.pod.to_owned(),
        port: match target.port {
            Some(port) => port,
            None => first_port(&view::object(kind, &pod)),
        },
    };
    let Some(dialer) = &api.pod_dialer else {
        return Err(unavailable("this server has no pod dialer"));
    };
    let exchanged = async {
        let stream = dialer.dial(target.clone()).await;
        let stream = stream.map_err(|error| unreachable(&error))?;
        exchange(TokioIo::new(stream), &target, &path_of(context)).await
    };
    match tokio::time::timeout(TIMEOUT, exchanged).await {
        Ok(outcome) => outcome,
        Err(_) => Err(unavailable(&format!("no response within {TIMEOUT:?}"))),
    }
}

/// The name segment of the path: a pod and an optional port.
#[derive(Debug, PartialEq, Eq)]
struct ProxyTarget<'a> {
    pod: &'a str,
    port: Option<u16>,
}

impl<'a> ProxyTarget<'a> {
    /// Parses `NAME` or `NAME:PORT`.
    fn read(text: &'a str) -> Outcome<Self> {
        let Some((pod, port)) = text.split_once(':') else {
            return Ok(Self {
                pod: text,
                port: None,
            });
        };
        match port.parse() {
            Ok(port) if port > 0 => Ok(Self {
                pod,
                port: Some(port),
            }),
            _ => Err(ApiError::bad_request(format!(
                "{text:?} is not a pod: expected NAME or NAME:PORT"
            ))),
        }
    }
}

/// The first container port of a pod, else [`DEFAULT_PORT`].
fn first_port(pod: &Object) -> u16 {
    let containers = pod.at(&["spec", "containers"]).and_then(Value::as_array);
    let ports = containers
        .into_iter()
        .flatten()
        .filter_map(|container| container["ports"].as_array())
        .flatten();
    ports
        .filter_map(|port| port["containerPort"].as_u64())
        .find_map(|port| u16::try_from(port).ok())
        .unwrap_or(DEFAULT_PORT)
}

/// The request target for the pod, undecoded: everything after `…/pods/NAME/proxy`.
fn path_of(context: &Context) -> String {
    // "", api, v1, namespaces, NAMESPACE, pods, NAME, proxy
    const BEFORE: usize = 8;
    let rest = context.info.path.splitn(BEFORE + 1, '/').nth(BEFORE);
    let rest = rest.unwrap_or_default();
    match context.info.query.as_str() {
        "" => format!("/{rest}"),
        query => format!("/{rest}?{query}"),
    }
}

async fn exchange<S>(stream: S, target: &PodPort, path: &str) -> Outcome<Reply>
where
    S: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(stream)
        .await
        .map_err(|error| unreachable(&error))?;
    let request = Request::get(path)
        .header(header::HOST, format!("{}:{}", target.name, target.port))
        .body(Empty::<Bytes>::new())
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    let response = async {
        let answer = sender.send_request(request).await;
        let (parts, body) = answer.map_err(|error| unreachable(&error))?.into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await;
        let body = body.map_err(|error| match error.downcast::<LengthLimitError>() {
            Ok(_) => unavailable(&format!("the response is larger than {MAX_RESPONSE} bytes")),
            Err(error) => unreachable(&*error),
        })?;
        let unnamed = HeaderValue::from_static("application/octet-stream");
        let kind = parts.headers.get(header::CONTENT_TYPE).cloned();
        let payload = Payload::Raw(body.to_bytes(), kind.unwrap_or(unnamed));
        Ok(Reply::new(parts.status, payload))
    };
    // Drives the connection until the response is complete. It never finishes by itself: an error of
    // the connection also fails the request, which reports it.
    let served = async {
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        outcome = response => outcome,
        () = served => Err(unavailable("the connection closed before the response")),
    }
}

/// 503 with kube-apiserver's message and the whole chain of causes.
fn unreachable(error: &dyn std::error::Error) -> ApiError {
    unavailable(&weft_model::error_text(error))
}

fn unavailable(why: &str) -> ApiError {
    let message = format!("error trying to reach service: {why}");
    ApiError::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "ServiceUnavailable",
        message,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_named_with_or_without_a_port() {
        let read =
            |text| ProxyTarget::read(text).map(|target| (target.pod.to_owned(), target.port));
        assert_eq!(read("web"), Ok(("web".to_owned(), None)));
        assert_eq!(read("web:8080"), Ok(("web".to_owned(), Some(8080))));
        for text in ["web:", "web:0", "web:http", "web:65536", "https:web:443"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_default_port_is_the_first_one_of_a_container() {
        let pod = |value: Value| first_port(value.as_object().unwrap());
        let named = json!({"spec": {"containers": [
            {"name": "a"}, {"name": "b", "ports": [{"containerPort": 81}, {"containerPort": 82}]},
        ]}});
        assert_eq!(pod(named), 81);
        assert_eq!(pod(json!({"spec": {"containers": [{"name": "a"}]}})), 80);
    }
}
