//! HTTP client of all cloud providers.
//!
//! It uses the client that kube brings along (hyper-util and hyper-rustls) instead of a second
//! stack: the `hcloud` crate would bring reqwest, and it drops the response headers that report the
//! rate limit. It follows no redirects and retries nothing.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use weft_routes::ProviderError;

/// Upper bound of a response body: more than any real answer, less than harms.
const LARGEST_BODY: usize = 32 << 20;

/// Idle timeout of connections. Shorter than that of servers, so that a call seldom meets a
/// connection that is just being closed.
const IDLE: Duration = Duration::from_secs(20);

const CONNECT: Duration = Duration::from_secs(5);

/// Sends requests and reads whole responses.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    timeout: Duration,
}

/// A whole response.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A request without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HttpError {
    /// The connection failed, so nothing was sent.
    #[error("cannot connect")]
    NotSent,
    /// The request was or may have been sent, and no whole response came in time.
    #[error("no answer")]
    Lost,
}

/// Effect of a call on the provider's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Read,
    Change,
}

impl Effect {
    /// The error for a call on which the server failed: a change may have happened.
    pub(crate) fn broken(self, reason: &str) -> ProviderError {
        match self {
            Self::Read => ProviderError::Retry(reason.into()),
            Self::Change => ProviderError::Uncertain,
        }
    }
}

impl HttpError {
    pub(crate) fn classify(self, effect: Effect) -> ProviderError {
        match self {
            Self::NotSent => ProviderError::Retry("cannot connect".into()),
            Self::Lost => effect.broken("no answer"),
        }
    }
}

impl HttpClient {
    /// A client for an endpoint. The system's root certificates are read only for `https`.
    pub(crate) fn new(endpoint: &Uri, timeout: Duration) -> io::Result<Self> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let config = match endpoint.scheme_str() {
            Some("https") => config.with_native_roots()?,
            _ => config.with_root_certificates(RootCertStore::empty()),
        };
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config.with_no_client_auth())
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(Self { client, timeout })
    }

    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<HttpAnswer, HttpError> {
        let exchange = tokio::time::timeout(self.timeout, self.exchange(request));
        exchange.await.unwrap_or(Err(HttpError::Lost))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<HttpAnswer, HttpError> {
        let response = self.client.request(request).await.map_err(|error| {
            if error.is_connect() {
                HttpError::NotSent
            } else {
                HttpError::Lost
            }
        })?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, LARGEST_BODY).collect().await;
        Ok(HttpAnswer {
            status: head.status,
            headers: head.headers,
            body: body.map_err(|_| HttpError::Lost)?.to_bytes(),
        })
    }
}

/// Text from outside without control characters, cut to a length for logs.
pub(crate) fn shortened(text: &str) -> String {
    const LONGEST: usize = 200;
    text.chars()
        .filter(|c| !c.is_control())
        .take(LONGEST)
        .collect()
}
