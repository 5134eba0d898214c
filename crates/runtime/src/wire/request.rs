//! URLs of lists and watches, and the GET that sends them.

use std::{fmt::Write, time::Duration};

use http::{Request, Response, header};
use http_body_util::{BodyExt, Limited};
use kube::{
    Client,
    client::Body,
    core::{Status, response::StatusDetails},
};

use weft_model::error_text;

use super::WatchError;
use crate::Kind;

/// Path and selectors of a collection.
#[derive(Clone, Debug)]
pub(crate) struct Collection {
    path: String,
    selectors: String,
}

/// Start of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListStart<'a> {
    /// The newest state: the server asks its storage.
    Newest,
    /// The state in the server's cache, however old.
    AnyCached,
    /// The server's cache, once it has reached a version.
    NotOlderThan(&'a str),
    /// The next page of a list.
    Continue(&'a str),
}

impl Collection {
    pub(crate) fn new(
        kind: &Kind,
        namespace: Option<&str>,
        labels: Option<&str>,
        fields: Option<&str>,
    ) -> Self {
        let mut selectors = String::new();
        for (name, value) in [("labelSelector", labels), ("fieldSelector", fields)] {
            if let Some(value) = value {
                push_pair(&mut selectors, name, value);
            }
        }
        Self {
            path: kind.collection_path(namespace),
            selectors,
        }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn list(&self, start: ListStart<'_>, limit: Option<u32>) -> String {
        let mut query = self.selectors.clone();
        match start {
            ListStart::Newest => {}
            ListStart::AnyCached => push_pair(&mut query, "resourceVersion", "0"),
            ListStart::NotOlderThan(version) => {
                push_pair(&mut query, "resourceVersion", version);
                push_pair(&mut query, "resourceVersionMatch", "NotOlderThan");
            }
            ListStart::Continue(token) => push_pair(&mut query, "continue", token),
        }
        if let Some(limit) = limit {
            push_pair(&mut query, "limit", &limit.to_string());
        }
        self.uri(&query)
    }

    pub(crate) fn watch(&self, version: &str, timeout: Duration) -> String {
        let mut query = self.watch_query(timeout);
        push_pair(&mut query, "resourceVersion", version);
        self.uri(&query)
    }

    /// A watch that first sends the state, then goes on with changes on the same connection.
    pub(crate) fn streaming_list(&self, start: ListStart<'_>, timeout: Duration) -> String {
        let mut query = self.watch_query(timeout);
        push_pair(&mut query, "sendInitialEvents", "true");
        push_pair(&mut query, "resourceVersionMatch", "NotOlderThan");
        match start {
            ListStart::NotOlderThan(version) => push_pair(&mut query, "resourceVersion", version),
            ListStart::AnyCached => push_pair(&mut query, "resourceVersion", "0"),
            ListStart::Newest | ListStart::Continue(_) => {}
        }
        self.uri(&query)
    }

    fn watch_query(&self, timeout: Duration) -> String {
        let mut query = self.selectors.clone();
        push_pair(&mut query, "watch", "true");
        push_pair(&mut query, "allowWatchBookmarks", "true");
        push_pair(&mut query, "timeoutSeconds", &timeout.as_secs().to_string());
        query
    }

    fn uri(&self, query: &str) -> String {
        if query.is_empty() {
            self.path.clone()
        } else {
            format!("{}?{query}", self.path)
        }
    }
}

/// Appends `name=value`, percent-encoded.
fn push_pair(query: &mut String, name: &str, value: &str) {
    if !query.is_empty() {
        query.push('&');
    }
    query.push_str(name);
    query.push('=');
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                query.push(char::from(byte));
            }
            _ => {
                let _infallible = write!(query, "%{byte:02X}");
            }
        }
    }
}

/// Sends a GET and returns the body of a successful answer.
pub(crate) async fn open(
    client: &Client,
    method: &'static str,
    uri: &str,
    accept: Option<&str>,
) -> Result<Body, WatchError> {
    // Kubernetes 1.37 compresses watches one gzip member per event; no decoder layer reads that.
    let mut request = Request::get(uri).header(header::ACCEPT_ENCODING, "identity");
    if let Some(accept) = accept {
        request = request.header(header::ACCEPT, accept);
    }
    let request = request.body(Body::empty()).map_err(|error| {
        WatchError::Protocol(format!("cannot build request for {uri}: {error}"))
    })?;
    let response = client
        .send(request)
        .await
        .map_err(|error| WatchError::Connection(error_text(&error)))?;
    if response.status().is_success() {
        return Ok(response.into_body());
    }
    Err(failure(method, uri, response).await)
}

/// Bodies of failures are small; a longer one is not a Status.
const FAILURE_LIMIT: usize = 256 << 10;

async fn failure(method: &'static str, uri: &str, response: Response<Body>) -> WatchError {
    let code = response.status();
    let header = response.headers().get(header::RETRY_AFTER);
    let seconds = header.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let body = Limited::new(response.into_body(), FAILURE_LIMIT)
        .collect()
        .await;
    let bytes = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let status = serde_json::from_slice::<Status>(&bytes)
        .ok()
        .filter(|status| status.code != 0);
    let status = status.unwrap_or_else(|| Status {
        code: code.as_u16(),
        message: String::from_utf8_lossy(&bytes)
            .trim()
            .chars()
            .take(512)
            .collect(),
        reason: code.canonical_reason().unwrap_or_default().to_owned(),
        ..Status::default()
    });
    let retry_after = seconds.or_else(|| retry_seconds(status.details.as_ref()));
    let path = uri.split('?').next().unwrap_or(uri).to_owned();
    WatchError::Api {
        method,
        path,
        status: Box::new(status),
        retry_after: retry_after.map(Duration::from_secs),
    }
}

pub(super) fn retry_seconds(details: Option<&StatusDetails>) -> Option<u64> {
    details
        .map(|details| u64::from(details.retry_after_seconds))
        .filter(|seconds| *seconds > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods() -> Collection {
        Collection::new(
            &Kind::new("", "v1", "pods", "Pod"),
            None,
            Some("a in (b,c)"),
            Some("spec.nodeName=n1"),
        )
    }

    #[test]
    fn selectors_are_escaped() {
        assert_eq!(
            pods().list(ListStart::Newest, Some(500)),
            "/api/v1/pods?labelSelector=a%20in%20%28b%2Cc%29&fieldSelector=spec.nodeName%3Dn1&limit=500"
        );
    }

    #[test]
    fn a_streaming_list_asks_for_initial_events_and_bookmarks() {
        let all = Collection::new(&Kind::new("", "v1", "nodes", "Node"), None, None, None);
        let timeout = Duration::from_secs(300);
        assert_eq!(
            all.streaming_list(ListStart::Newest, timeout),
            "/api/v1/nodes?watch=true&allowWatchBookmarks=true&timeoutSeconds=300\
             &sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        );
        assert!(
            all.streaming_list(ListStart::NotOlderThan("7"), timeout)
                .ends_with("&resourceVersionMatch=NotOlderThan&resourceVersion=7")
        );
        assert_eq!(all.list(ListStart::Newest, None), "/api/v1/nodes");
        assert!(
            all.list(ListStart::AnyCached, None)
                .ends_with("?resourceVersion=0")
        );
    }
}
