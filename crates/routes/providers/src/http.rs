//! The one HTTP client of all clouds.
//!
//! It is the client that kube brings along (hyper-util's and hyper-rustls), not a second stack: the
//! `hcloud` crate would bring reqwest and throws the response's headers away, in which the rate
//! limit is told. It follows no redirects and repeats nothing.

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

/// More than any answer has, and less than harms.
const LARGEST_BODY: usize = 32 << 20;

/// Less than servers keep idle connections, so that a call seldom meets one that is just closed
/// and ends without an answer.
const IDLE: Duration = Duration::from_secs(20);

const CONNECT: Duration = Duration::from_secs(5);

/// Sends requests and reads answers to their end.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    timeout: Duration,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HttpError {
    /// Nothing was sent.
    #[error("no connection")]
    NotSent,
    /// It was sent, or may have been, and no answer came in time or no whole one.
    #[error("no answer")]
    Lost,
}

/// True if a call changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Read,
    Change,
}

impl Effect {
    /// What it means that a server broke down on a call: a change may have happened.
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
            Self::NotSent => ProviderError::Retry("no connection".into()),
            Self::Lost => effect.broken("no answer"),
        }
    }
}

impl HttpClient {
    /// For an endpoint; the system's certificates are only needed, and only read, for `https`.
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

/// A sentence of somebody else, short enough for a log.
pub(crate) fn shortened(text: &str) -> String {
    const LONGEST: usize = 200;
    text.chars()
        .filter(|c| !c.is_control())
        .take(LONGEST)
        .collect()
}
