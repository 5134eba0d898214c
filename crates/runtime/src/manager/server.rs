//! The process's own pages: health, metrics, diagnostics.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
    serve::Listener,
};
use futures::future::BoxFuture;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use serde::Serialize;
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
    server::TlsStream,
};

use super::{Component, ComponentScope, Manager, Phase, health::Verdict, process};
use crate::{PROMETHEUS_CONTENT_TYPE, prometheus_text};

/// Serves `/livez`, `/readyz`, `/metrics` and `/debug/…`.
pub struct StatusServer {
    manager: Manager,
    listener: std::sync::Mutex<Option<std::net::TcpListener>>,
    address: SocketAddr,
    tls: Option<Tls>,
    access: Access,
    extra: Router,
}

/// Certificate and key in PEM form.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

enum Tls {
    Files(TlsFiles),
    SelfSigned,
}

/// Who may see `/debug/…`. Health and metrics are open to whoever can reach the port.
#[derive(Clone)]
pub enum Access {
    /// Whoever can reach the port: for ports bound to loopback.
    Open,
    /// Bearers of a token that the cluster knows and whose user may `get` the path.
    Review(Client),
}

impl StatusServer {
    /// Binds at once, so that a port in use is an error of the start.
    pub fn bind(manager: &Manager, address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            manager: manager.clone(),
            address: listener.local_addr()?,
            listener: std::sync::Mutex::new(Some(listener)),
            tls: None,
            access: Access::Open,
            extra: Router::new(),
        })
    }

    /// Serves HTTPS.
    #[must_use]
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(Tls::Files(files));
        self
    }

    /// Serves HTTPS with a certificate made up for this process.
    #[must_use]
    pub fn self_signed(mut self) -> Self {
        self.tls = Some(Tls::SelfSigned);
        self
    }

    /// Guards `/debug/…`.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Further pages; those under `/debug/` are guarded as well.
    #[must_use]
    pub fn routes(mut self, routes: Router) -> Self {
        self.extra = self.extra.merge(routes);
        self
    }

    /// The address it is bound to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn router(&self) -> Router {
        pages()
            .with_state(self.manager.clone())
            .merge(self.extra.clone())
            .layer(middleware::from_fn_with_state(self.access.clone(), guard))
    }
}

/// What every process shows of itself.
pub(super) fn pages() -> Router<Manager> {
    Router::new()
        .route("/livez", get(livez))
        .route("/healthz", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/debug/informers", get(informers))
        .route("/debug/controllers", get(controllers))
        .route("/debug/leader", get(leader))
        .route("/debug/heap", get(heap))
}

impl Component for StatusServer {
    fn name(&self) -> &'static str {
        "status-server"
    }

    fn phase(&self) -> Phase {
        Phase::Server
    }

    fn run(
        self: Arc<Self>,
        scope: ComponentScope,
    ) -> BoxFuture<'static, Result<(), Box<dyn std::error::Error + Send + Sync>>> {
        Box::pin(async move {
            let taken = self
                .listener
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .take();
            let listener = match taken {
                Some(listener) => TcpListener::from_std(listener)?,
                None => TcpListener::bind(self.address).await?,
            };
            let router = self.router();
            let stopped = scope.clone();
            let shutdown = async move { stopped.stopped().await };
            match &self.tls {
                None => {
                    scope.ready();
                    axum::serve(listener, router)
                        .with_graceful_shutdown(shutdown)
                        .await?;
                }
                Some(tls) => {
                    let listener = TlsListener::new(listener, tls)?;
                    scope.ready();
                    axum::serve(listener, router)
                        .with_graceful_shutdown(shutdown)
                        .await?;
                }
            }
            Ok(())
        })
    }
}

async fn livez(State(manager): State<Manager>, request: Request) -> Response {
    verdict(&manager.inner.health.live(&manager), &request)
}

async fn readyz(State(manager): State<Manager>, request: Request) -> Response {
    verdict(&manager.inner.health.ready(&manager), &request)
}

fn verdict(verdict: &Verdict, request: &Request) -> Response {
    let verbose = request.uri().query().is_some_and(|query| {
        query
            .split('&')
            .any(|pair| pair == "verbose" || pair.starts_with("verbose="))
    });
    let code = if verdict.is_healthy() {
        StatusCode::OK
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    (code, verdict.render(verbose)).into_response()
}

async fn metrics(State(manager): State<Manager>) -> Response {
    let text = prometheus_text(&manager.inner.registry);
    ([(header::CONTENT_TYPE, PROMETHEUS_CONTENT_TYPE)], text).into_response()
}

async fn informers(State(manager): State<Manager>) -> Response {
    let clusters = manager.inner.clusters.list();
    json(
        &clusters
            .iter()
            .flat_map(|cluster| cluster.cache().snapshot())
            .collect::<Vec<_>>(),
    )
}

async fn controllers(State(manager): State<Manager>) -> Response {
    json(
        &manager
            .controllers()
            .iter()
            .map(crate::ControllerHandle::info)
            .collect::<Vec<_>>(),
    )
}

async fn leader(State(manager): State<Manager>) -> Response {
    json(&manager.leadership().map(|status| status.borrow().clone()))
}

async fn heap(State(manager): State<Manager>) -> Response {
    json(&process::info(manager.inner.heap))
}

pub(super) fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string_pretty(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text + "\n").into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    let Access::Review(client) = access else {
        return next.run(request).await;
    };
    let path = request.uri().path().to_owned();
    if !path.starts_with("/debug") {
        return next.run(request).await;
    }
    let value = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let Some(token) = value.and_then(|value| value.strip_prefix("Bearer ")) else {
        return (StatusCode::UNAUTHORIZED, "a bearer token is needed\n").into_response();
    };
    let Ok(reviewed) = timeout(REVIEW_LIMIT, review(&client, token, &path)).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "cannot review the token\n").into_response();
    };
    match reviewed {
        Ok(Allowed::Yes) => next.run(request).await,
        Ok(Allowed::No) => (StatusCode::FORBIDDEN, "not allowed\n").into_response(),
        Ok(Allowed::Unknown) => (StatusCode::UNAUTHORIZED, "unknown token\n").into_response(),
        Err(error) => {
            // The error never contains the token: reviews fail before or after it is judged.
            tracing::warn!(%error, "cannot review a token");
            (StatusCode::SERVICE_UNAVAILABLE, "cannot review the token\n").into_response()
        }
    }
}

/// How long a review may take.
const REVIEW_LIMIT: Duration = Duration::from_secs(10);

enum Allowed {
    Yes,
    No,
    Unknown,
}

async fn review(client: &Client, token: &str, path: &str) -> kube::Result<Allowed> {
    let tokens: Api<TokenReview> = Api::all(client.clone());
    let spec = TokenReviewSpec {
        token: token.to_owned(),
        ..TokenReviewSpec::default()
    };
    let review = TokenReview {
        spec,
        ..TokenReview::default()
    };
    let answer = tokens.create(&PostParams::default(), &review).await?;
    let status = answer.status.unwrap_or_default();
    let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
        return Ok(Allowed::Unknown);
    };
    let accesses: Api<SubjectAccessReview> = Api::all(client.clone());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username,
            groups: user.groups,
            uid: user.uid,
            extra: user.extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some("get".to_owned()),
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = accesses.create(&PostParams::default(), &review).await?;
    let allowed = answer.status.is_some_and(|status| status.allowed);
    Ok(if allowed { Allowed::Yes } else { Allowed::No })
}

/// Accepts TLS connections; a failed handshake costs its own connection only.
struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
    handshakes: tokio::task::JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

/// A client that never finishes its handshake must not hold a place for ever.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

impl TlsListener {
    fn new(tcp: TcpListener, tls: &Tls) -> io::Result<Self> {
        let config = match tls {
            Tls::Files(files) => from_files(files)?,
            Tls::SelfSigned => self_signed(tcp.local_addr()?)?,
        };
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self {
            tcp,
            acceptor,
            handshakes: tokio::task::JoinSet::new(),
        })
    }
}

fn from_files(files: &TlsFiles) -> io::Result<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(&files.certificate, error))?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unreadable(&files.key, error))?;
    ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| unreadable(&files.certificate, error))
}

fn self_signed(address: SocketAddr) -> io::Result<ServerConfig> {
    let names = vec!["localhost".to_owned(), address.ip().to_string()];
    let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
    let key =
        PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(io::Error::other)?;
    ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.into()], key)
        .map_err(io::Error::other)
}

fn unreadable(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                (stream, address) = Listener::accept(&mut self.tcp) => {
                    let handshake = self.acceptor.accept(stream);
                    self.handshakes.spawn(async move {
                        let stream = timeout(HANDSHAKE_LIMIT, handshake).await;
                        stream.ok()?.ok().map(|stream| (stream, address))
                    });
                }
                Some(Ok(Some(accepted))) = self.handshakes.join_next() => return accepted,
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}
