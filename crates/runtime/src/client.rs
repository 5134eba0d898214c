//! The HTTP client of the runtime.
//!
//! kube's default client repeats throttled requests up to fifteen times by itself, inside the
//! transport, where neither an informer's state nor a reconcile's deadline can see it. Here every
//! answer reaches the caller, which decides how long to wait, and every request is counted.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, header};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioExecutor};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service, ServiceBuilder};

const USER_AGENT: &str = concat!("weft/", env!("CARGO_PKG_VERSION"));

type Labels<const N: usize> = [(&'static str, String); N];

/// client-go's `rest_client_*` metrics.
#[derive(Clone, Debug)]
pub struct ClientMetrics {
    requests: Family<Labels<3>, Counter>,
    duration: Family<Labels<2>, Histogram, fn() -> Histogram>,
}

fn duration_histogram() -> Histogram {
    Histogram::new([
        0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
    ])
}

impl ClientMetrics {
    /// Metrics registered with a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            duration: Family::new_with_constructor(duration_histogram),
        };
        registry.register(
            "rest_client_requests",
            "Number of HTTP requests, by status code, method and host",
            metrics.requests.clone(),
        );
        registry.register(
            "rest_client_request_duration_seconds",
            "Time until a request was answered, by verb and host",
            metrics.duration.clone(),
        );
        metrics
    }

    fn note(&self, method: &str, host: &str, code: &str, began: Instant) {
        let labels = [
            ("code", code.to_owned()),
            ("host", host.to_owned()),
            ("method", method.to_owned()),
        ];
        self.requests.get_or_create(&labels).inc();
        let labels = [("host", host.to_owned()), ("verb", method.to_owned())];
        self.duration
            .get_or_create(&labels)
            .observe(began.elapsed().as_secs_f64());
    }
}

/// A client for a cluster, without hidden retries. Fails if the configuration names an HTTP proxy,
/// which is not supported.
pub fn connect(config: &Config, metrics: Option<&ClientMetrics>) -> kube::Result<Client> {
    if let Some(proxy_url) = &config.proxy_url {
        let proxy_url = Box::new(proxy_url.clone());
        return Err(kube::Error::ProxyProtocolUnsupported { proxy_url });
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    let http: hyper_util::client::legacy::Client<_, Body> =
        hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(CountLayer {
            metrics: metrics.cloned().map(Arc::new),
        })
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_request(|mut request: Request<Body>| {
            let agent = HeaderValue::from_static(USER_AGENT);
            request
                .headers_mut()
                .entry(header::USER_AGENT)
                .or_insert(agent);
            request
        })
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, &config.default_namespace))
}

#[derive(Clone)]
struct CountLayer {
    metrics: Option<Arc<ClientMetrics>>,
}

impl<S> Layer<S> for CountLayer {
    type Service = Count<S>;
    fn layer(&self, inner: S) -> Count<S> {
        Count {
            inner,
            metrics: self.metrics.clone(),
        }
    }
}

#[derive(Clone)]
struct Count<S> {
    inner: S,
    metrics: Option<Arc<ClientMetrics>>,
}

impl<S, B> Service<Request<Body>> for Count<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.method().to_string();
        let host = request
            .uri()
            .authority()
            .map(ToString::to_string)
            .unwrap_or_default();
        let began = Instant::now();
        let answer = self.inner.call(request);
        let metrics = self.metrics.clone();
        Box::pin(async move {
            let answer = answer.await;
            if let Some(metrics) = metrics {
                let code = match &answer {
                    Ok(response) => response.status().as_str().to_owned(),
                    Err(_) => "<error>".to_owned(),
                };
                metrics.note(&method, &host, &code, began);
            }
            answer
        })
    }
}
