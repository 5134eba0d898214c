//! Status server: health, metrics and diagnostics over HTTP or HTTPS.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper_util::service::TowerToHyperService;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use serde::Serialize;
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};
use weft_listener::{ConnectionPool, HostCheck, Limits, MISDIRECTED, Protocols, accept, serve};

use super::{
    Component, ComponentRun, ComponentScope, Manager, Phase,
    health::Verdict,
    process,
    tls::{Certificate, TlsFiles},
};
use crate::{PROMETHEUS_CONTENT_TYPE, prometheus_text};

/// Serves `/livez`, `/readyz`, `/metrics` and `/debug/…`.
pub struct StatusServer {
    manager: Manager,
    listener: parking_lot::Mutex<Option<std::net::TcpListener>>,
    address: SocketAddr,
    tls: Option<Certificate>,
    access: Access,
    extra: Router,
}

/// Access to `/debug/…`. Health and metrics are open to every client that can reach the port.
#[derive(Clone)]
pub enum Access {
    /// Every client that can reach the port: for ports bound to loopback.
    Open,
    /// Bearer tokens that pass a TokenReview and whose user may `get` the path.
    Review(Client),
}

impl StatusServer {
    /// Binds at once, so that a port in use is a startup error.
    pub fn bind(manager: &Manager, address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            manager: manager.clone(),
            address: listener.local_addr()?,
            listener: parking_lot::Mutex::new(Some(listener)),
            tls: None,
            access: Access::Open,
            extra: Router::new(),
        })
    }

    /// Serves HTTPS.
    #[must_use]
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(Certificate::Files(files));
        self
    }

    /// Serves HTTPS with a certificate generated for this process.
    #[must_use]
    pub fn self_signed(mut self) -> Self {
        self.tls = Some(Certificate::SelfSigned);
        self
    }

    /// Sets the access to `/debug/…`.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Adds routes; those under `/debug/` get the same access check.
    #[must_use]
    pub fn routes(mut self, routes: Router) -> Self {
        self.extra = self.extra.merge(routes);
        self
    }

    /// Bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn router(&self) -> Router {
        let guarding = Guarding {
            access: self.access.clone(),
            reviews: Arc::new(Semaphore::new(REVIEWS)),
        };
        let router = pages()
            .with_state(self.manager.clone())
            .merge(self.extra.clone())
            .layer(middleware::from_fn_with_state(guarding, guard));
        check_host(router, self.address)
    }
}

/// Lets pages on loopback answer only requests that name loopback, so that no web site can read
/// them through a browser (DNS rebinding). Pages at other addresses accept any host name.
pub fn check_host(router: Router, address: SocketAddr) -> Router {
    match HostCheck::for_address(address) {
        None => router,
        Some(check) => router.layer(middleware::from_fn_with_state(check, refuse_other_hosts)),
    }
}

/// Refuses requests whose host the check does not accept; for a layer of a router.
pub async fn refuse_other_hosts(
    State(check): State<HostCheck>,
    request: Request,
    next: Next,
) -> Response {
    if check.accepts_request(request.uri(), request.headers()) {
        return next.run(request).await;
    }
    (StatusCode::MISDIRECTED_REQUEST, MISDIRECTED).into_response()
}

/// Routes of the status pages, the same in every process.
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

    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun {
        Box::pin(async move {
            let taken = self.listener.lock().take();
            let listener = match taken {
                Some(listener) => TcpListener::from_std(listener)?,
                None => TcpListener::bind(self.address).await?,
            };
            let pool = ConnectionPool::new("status", Limits::PAGES);
            let router = self.router();
            let Some(certificate) = &self.tls else {
                scope.ready();
                serve(listener, &pool, router, scope.stopped()).await;
                return Ok(());
            };
            let acceptor = certificate.acceptor(self.address)?;
            let service = TowerToHyperService::new(router);
            scope.ready();
            accept(listener, &pool, scope.stopped(), |stream, connection| {
                let (acceptor, service) = (acceptor.clone(), service.clone());
                async move {
                    if let Some(stream) = connection.handshake(acceptor.accept(stream)).await {
                        connection
                            .serve_http(stream, Protocols::Http1, service)
                            .await;
                    }
                }
            })
            .await;
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

#[derive(Clone)]
struct Guarding {
    access: Access,
    /// Room for reviews. Each needs nothing but a connection and any token, and takes as long as the
    /// API server does: without a limit they would fill the pool, and probes would have to wait.
    reviews: Arc<Semaphore>,
}

async fn guard(State(guarding): State<Guarding>, request: Request, next: Next) -> Response {
    let Access::Review(client) = guarding.access else {
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
        return (StatusCode::UNAUTHORIZED, "bearer token required\n").into_response();
    };
    let Ok(_room) = guarding.reviews.try_acquire() else {
        let busy = "cannot review the token: too many are being reviewed\n";
        return (StatusCode::SERVICE_UNAVAILABLE, busy).into_response();
    };
    let Ok(reviewed) = timeout(REVIEW_LIMIT, review(&client, token, &path)).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "cannot review the token\n").into_response();
    };
    match reviewed {
        Ok(Allowed::Yes) => next.run(request).await,
        Ok(Allowed::No) => (StatusCode::FORBIDDEN, "not allowed\n").into_response(),
        Ok(Allowed::Unknown) => (StatusCode::UNAUTHORIZED, "unknown token\n").into_response(),
        Err(error) => {
            // The error does not contain the token.
            tracing::warn!(%error, "token review failed");
            (StatusCode::SERVICE_UNAVAILABLE, "cannot review the token\n").into_response()
        }
    }
}

/// Reviews at the same time: a fraction of the connections that the pool has room for.
const REVIEWS: usize = 16;

/// Time limit of a TokenReview together with its SubjectAccessReview.
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
