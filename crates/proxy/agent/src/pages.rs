//! The HTTP pages of the proxy, and the servers for them.
//!
//! Health has an address of its own, which load balancers probe. Everything else is on the metrics
//! address, where the runtime's [`StatusServer`] serves the pages of every Weft process;
//! [`diagnostics`] adds those of kube-proxy.

use std::{
    fmt::Write,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use axum::{
    Router,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::any,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use weft_listener::{ConnectionPool, Limits, serve};
use weft_runtime::{
    Access, Component, ComponentRun, ComponentScope, Manager, PROMETHEUS_CONTENT_TYPE, Phase,
    StatusServer, check_host,
};

use crate::{
    health::{ClockReading, HealthMonitor},
    metrics::{HealthPage, ProxyMetrics},
};

/// The data of the diagnostic pages.
#[derive(Clone, Debug)]
pub struct Diagnostics {
    /// Health of the syncs.
    pub health: HealthMonitor,
    /// The effective configuration, for `/configz`.
    pub configuration: Value,
    /// All flags with their values, for `/flagz`.
    pub flags: Vec<(String, String)>,
    /// This program's version.
    pub version: String,
    /// Start time of the process.
    pub started: Timestamp,
}

/// The pages of the health address.
pub fn health(health: HealthMonitor, metrics: ProxyMetrics) -> Router {
    Router::new()
        .route("/healthz", any(healthz))
        .route("/livez", any(livez))
        .with_state((health, metrics))
}

type HealthPages = State<(HealthMonitor, ProxyMetrics)>;

async fn healthz(State((health, metrics)): HealthPages) -> Response {
    let (good, report) = health.with(|health| health.healthy(ClockReading::now()));
    metrics.health_answered(HealthPage::Healthz, good);
    health_answer(good, report.to_body())
}

async fn livez(State((health, metrics)): HealthPages) -> Response {
    let (good, report) = health.with(|health| health.live(ClockReading::now()));
    metrics.health_answered(HealthPage::Livez, good);
    health_answer(good, report.to_body())
}

pub(super) fn health_answer(good: bool, body: String) -> Response {
    let code = if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, typed("application/json", body)).into_response()
}

/// A response with a content type that browsers may not guess.
fn typed(content_type: &'static str, body: String) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    let content_type = HeaderValue::from_static(content_type);
    headers.insert(header::CONTENT_TYPE, content_type);
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

const PLAIN: &str = "text/plain; charset=utf-8";

/// Pages of the metrics address that kube-proxy has and other Weft processes do not, and the last
/// failures.
pub fn diagnostics(diagnostics: Diagnostics) -> Router {
    let pages = Arc::new(Pages {
        diagnostics,
        checks: Checks::default(),
    });
    Router::new()
        .route("/proxyMode", any(proxy_mode))
        .route("/configz", any(configz))
        .route("/flagz", any(flagz))
        .route("/statusz", any(statusz))
        .route("/metrics/slis", any(slis))
        .route("/debug/proxy/last-failure", any(last_failure))
        .route("/debug/proxy/syncs", any(syncs))
        .with_state(pages)
}

struct Pages {
    diagnostics: Diagnostics,
    checks: Checks,
}

type DiagnosticPages = State<Arc<Pages>>;

async fn proxy_mode(State(pages): DiagnosticPages) -> Response {
    let mode = pages.diagnostics.configuration["mode"].as_str();
    let mode = mode.filter(|mode| !mode.is_empty()).unwrap_or("iptables");
    typed(PLAIN, mode.to_owned())
}

async fn configz(State(pages): DiagnosticPages) -> Response {
    let configuration = &pages.diagnostics.configuration;
    let all = serde_json::json!({ "kubeproxy.config.k8s.io": configuration });
    typed("application/json", all.to_string())
}

/// The first lines of both pages. The name is the one that tools search for.
fn heading(page: &str) -> String {
    format!("\nkube-proxy {page}\nFor people to read; programs should not rely on its form.\n")
}

async fn flagz(State(pages): DiagnosticPages) -> Response {
    let mut text = heading("flagz");
    for (name, value) in &pages.diagnostics.flags {
        let _infallible = writeln!(text, "{name}={value}");
    }
    typed(PLAIN, text)
}

async fn statusz(State(pages): DiagnosticPages) -> Response {
    let Diagnostics {
        version, started, ..
    } = &pages.diagnostics;
    let up = Timestamp::now().duration_since(*started).as_secs().max(0);
    let (hours, minutes, seconds) = (up / 3600, up % 3600 / 60, up % 60);
    let text = format!(
        "{}\nStarted: {started}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\n\
         Binary version: {version}\n\
         Paths: /configz /debug/proxy/last-failure /debug/proxy/syncs /flagz /healthz /metrics /metrics/slis \
         /proxyMode /statusz\n",
        heading("statusz")
    );
    typed(PLAIN, text)
}

async fn last_failure(State(pages): DiagnosticPages) -> Response {
    let health = &pages.diagnostics.health;
    typed(PLAIN, health.with(|health| health.last_failures()))
}

async fn syncs(State(pages): DiagnosticPages) -> Response {
    let syncs = pages.diagnostics.health.syncs().read();
    match serde_json::to_string(&syncs) {
        Ok(text) => typed("application/json", text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Results of the health checks so far. A check is made for each request.
#[derive(Default)]
struct Checks {
    pings: AtomicU64,
    synced: AtomicU64,
    late: AtomicU64,
}

async fn slis(State(pages): DiagnosticPages) -> Response {
    let health = &pages.diagnostics.health;
    let healthy = health.with(|health| health.is_healthy(ClockReading::now()));
    typed(PROMETHEUS_CONTENT_TYPE, pages.checks.record(healthy))
}

impl Checks {
    fn record(&self, healthy: bool) -> String {
        let pings = self.pings.fetch_add(1, Relaxed) + 1;
        let result = if healthy { &self.synced } else { &self.late };
        result.fetch_add(1, Relaxed);
        let mut text = format!(
            "# HELP kubernetes_healthcheck The result of a check, 1 if it is good.\n\
             # TYPE kubernetes_healthcheck gauge\n\
             kubernetes_healthcheck{{name=\"ping\",type=\"healthz\"}} 1\n\
             kubernetes_healthcheck{{name=\"sync\",type=\"healthz\"}} {}\n\
             # HELP kubernetes_healthchecks_total How often a check had a result.\n\
             # TYPE kubernetes_healthchecks_total counter\n",
            u8::from(healthy)
        );
        for (name, status, count) in [
            ("ping", "success", pings),
            ("sync", "success", self.synced.load(Relaxed)),
            ("sync", "error", self.late.load(Relaxed)),
        ] {
            if count > 0 {
                let labels = format!("name=\"{name}\",status=\"{status}\",type=\"healthz\"");
                let _infallible =
                    writeln!(text, "kubernetes_healthchecks_total{{{labels}}} {count}");
            }
        }
        text
    }
}

/// Load balancers probe from many addresses, and the port is open to the whole network.
const LIMITS: Limits = Limits::PAGES;

/// Serves the pages of the health address.
pub struct HealthServer {
    listener: Mutex<Option<std::net::TcpListener>>,
    address: SocketAddr,
    router: Router,
}

impl HealthServer {
    /// Binds the address at once.
    pub fn bind(address: SocketAddr, router: Router) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            address: listener.local_addr()?,
            listener: Mutex::new(Some(listener)),
            router,
        })
    }

    /// The address it is bound to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Component for HealthServer {
    fn name(&self) -> &'static str {
        "health-server"
    }

    fn phase(&self) -> Phase {
        Phase::Server
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun {
        Box::pin(async move {
            let bound = self.listener.lock().take();
            let listener = match bound {
                Some(listener) => TcpListener::from_std(listener)?,
                None => TcpListener::bind(self.address).await?,
            };
            scope.ready();
            let pool = ConnectionPool::new("health", LIMITS);
            let router = check_host(self.router.clone(), self.address);
            serve(listener, &pool, router, scope.stopped()).await;
            Ok(())
        })
    }
}

/// Binds the metrics address. Pages under `/debug/` show internals of the cluster, so clients from
/// other hosts need a token.
pub fn bind_metrics(
    manager: &Manager,
    address: SocketAddr,
    diagnostics: Router,
    beyond_loopback: Access,
) -> io::Result<StatusServer> {
    let access = if address.ip().is_loopback() {
        Access::Open
    } else {
        beyond_loopback
    };
    let server = StatusServer::bind(manager, address)?;
    Ok(server.access(access).routes(diagnostics))
}
