//! Pages of the health and metrics addresses.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use weft_model::IpFamily;
use weft_proxy::{
    SyncError,
    config::{KubeProxyConfiguration, Mode},
};
use weft_proxy_agent::{
    health::{ClockReading, Health, HealthMonitor, Outcome},
    metrics::ProxyMetrics,
    pages::{self, Diagnostics, HealthServer},
};
use weft_runtime::{Access, prometheus_text};

use crate::web::{get, manager};

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Both servers, until the token is cancelled.
struct Servers {
    health: HealthMonitor,
    health_address: SocketAddr,
    metrics_address: SocketAddr,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

impl Servers {
    fn start(timeout: Duration) -> Self {
        let mut registry = Registry::default();
        let metrics = ProxyMetrics::register(&mut registry, Mode::Iptables, Arc::new(()));
        let manager = manager(registry);
        let health = HealthMonitor::new(Health::new(timeout));
        let pages = pages::health(health.clone(), metrics);
        let health_server = HealthServer::bind(anywhere(), pages).unwrap();
        let health_address = health_server.address();
        let diagnostics = pages::diagnostics(Diagnostics {
            health: health.clone(),
            configuration: KubeProxyConfiguration::default().to_json(),
            flags: vec![("proxy-mode".to_owned(), "iptables".to_owned())],
            version: "1.2.3".to_owned(),
            started: Timestamp::now(),
        });
        let status = pages::bind_metrics(&manager, anywhere(), diagnostics, Access::Open).unwrap();
        let metrics_address = status.address();
        manager.add_component(health_server).unwrap();
        manager.add_component(status).unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let running = tokio::spawn(async move {
            manager.run(stopped).await.unwrap();
        });
        Self {
            health,
            health_address,
            metrics_address,
            stop,
            running,
        }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}

#[tokio::test]
async fn health_is_answered_with_kube_proxys_codes_and_headers() {
    let servers = Servers::start(Duration::ZERO);
    let address = servers.health_address;
    let unknown = get(address, "/healthz").await;
    assert_eq!(unknown.code, 503, "the node is not known yet");
    servers.health.with(|health| {
        health.set_node_eligible(true);
        health.updated(IpFamily::V4, ClockReading::now());
    });
    for path in ["/healthz", "/livez"] {
        let answer = get(address, path).await;
        assert_eq!(answer.code, 200);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        let eligible = answer.body.contains("\"nodeEligible\":true");
        assert_eq!(eligible, path == "/healthz", "{}", answer.body);
        assert!(answer.body.starts_with("{\"lastUpdated\":\""), "{answer:?}");
        assert!(answer.body.ends_with("\"healthy\":true}}}"), "{answer:?}");
    }
    // With a timeout of zero, any pending sync is late.
    servers
        .health
        .with(|health| health.queued(IpFamily::V4, ClockReading::now()));
    assert_eq!(get(address, "/livez").await.code, 503);
    assert_eq!(get(address, "/").await.code, 404);

    let metrics = get(servers.metrics_address, "/metrics").await.body;
    for series in [
        "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
        "kubeproxy_proxy_livez_total{code=\"200\"} 1",
        "kubeproxy_proxy_livez_total{code=\"503\"} 1",
    ] {
        assert!(metrics.contains(series), "no {series} in\n{metrics}");
    }
    servers.stop().await;
}

#[tokio::test]
async fn the_metrics_address_has_kube_proxys_pages() {
    let servers = Servers::start(Duration::from_secs(60));
    let address = servers.metrics_address;
    let healthz = get(address, "/healthz").await;
    assert_eq!((healthz.code, healthz.body.as_str()), (200, "ok"));
    let mode = get(address, "/proxyMode").await;
    assert_eq!((mode.code, mode.body.as_str()), (200, "iptables"));
    let plain = Some("text/plain; charset=utf-8");
    assert_eq!(mode.header("content-type"), plain);
    assert_eq!(mode.header("x-content-type-options"), Some("nosniff"));
    let configz = get(address, "/configz").await.body;
    let configz: serde_json::Value = serde_json::from_str(&configz).unwrap();
    let configuration = &configz["kubeproxy.config.k8s.io"];
    assert_eq!(configuration["kind"], "KubeProxyConfiguration");
    assert_eq!(configuration["iptables"]["syncPeriod"], "30s");
    let flagz = get(address, "/flagz").await.body;
    assert!(flagz.starts_with("\nkube-proxy flagz\n"), "{flagz}");
    assert!(flagz.ends_with("\nproxy-mode=iptables\n"), "{flagz}");
    let statusz = get(address, "/statusz").await.body;
    assert!(statusz.starts_with("\nkube-proxy statusz\n"), "{statusz}");
    assert!(statusz.contains("\nBinary version: 1.2.3\n"), "{statusz}");
    assert_eq!(get(address, "/").await.code, 404);
    servers.stop().await;
}

#[tokio::test]
async fn service_level_indicators_count_the_checks() {
    let servers = Servers::start(Duration::ZERO);
    let address = servers.metrics_address;
    get(address, "/metrics/slis").await;
    servers.health.with(|health| {
        health.updated(IpFamily::V4, ClockReading::now());
        health.queued(IpFamily::V4, ClockReading::now());
    });
    let text = get(address, "/metrics/slis").await.body;
    let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        series,
        [
            "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1",
            "kubernetes_healthcheck{name=\"sync\",type=\"healthz\"} 0",
            "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 2",
            "kubernetes_healthchecks_total{name=\"sync\",status=\"success\",type=\"healthz\"} 1",
            "kubernetes_healthchecks_total{name=\"sync\",status=\"error\",type=\"healthz\"} 1",
        ]
    );
    servers.stop().await;
}

#[tokio::test]
async fn the_input_that_failed_can_be_looked_at() {
    let servers = Servers::start(Duration::from_secs(60));
    let page = "/debug/proxy/last-failure";
    let before = get(servers.metrics_address, page).await;
    assert_eq!(
        (before.code, before.body.as_str()),
        (200, "no sync has failed\n")
    );
    let input = "*nat\n-A KUBE-SVC-X -j Y\nCOMMIT\n";
    let error = SyncError::unavailable("line 2 failed", input);
    servers.health.with(|health| {
        health.failed(
            IpFamily::V6,
            ClockReading::now(),
            error,
            Outcome::Unresolved,
        );
    });
    let after = get(servers.metrics_address, page).await.body;
    for part in [
        "IPv6: a sync failed at ",
        "line 2 failed\n",
        "\n-A KUBE-SVC-X -j Y\n",
    ] {
        assert!(after.contains(part), "no {part:?} in {after}");
    }
    servers.stop().await;
}

#[tokio::test]
async fn beyond_loopback_debug_pages_need_a_token() {
    let mut registry = Registry::default();
    let metrics = ProxyMetrics::register(&mut registry, Mode::Iptables, Arc::new(()));
    metrics.endpoints_changed(true);
    assert!(prometheus_text(&registry).contains("endpoint_changes_pending 1"));
    let manager = manager(registry);
    let client = manager.clusters().list()[0].client().clone();
    let diagnostics = pages::diagnostics(Diagnostics {
        health: HealthMonitor::new(Health::new(Duration::ZERO)),
        configuration: serde_json::Value::Null,
        flags: Vec::new(),
        version: String::new(),
        started: Timestamp::now(),
    });
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let review = Access::Review(client);
    let status = pages::bind_metrics(&manager, everywhere, diagnostics, review).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], status.address().port()));
    manager.add_component(status).unwrap();
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let running = tokio::spawn(async move { manager.run(stopped).await.map(drop) });
    let failure = get(address, "/debug/proxy/last-failure").await;
    assert_eq!(failure.code, 401);
    assert_eq!(get(address, "/metrics").await.code, 200);
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_finish_a_request_delay_no_probe() {
    let servers = Servers::start(Duration::ZERO);
    servers.health.with(|health| {
        health.set_node_eligible(true);
        health.updated(IpFamily::V4, ClockReading::now());
    });
    let addresses = [servers.health_address, servers.metrics_address];
    let flood = |address| weft_testkit::Flood::tcp(address, 2_000).unwrap();
    let flooding = move || addresses.map(flood);
    let floods = tokio::task::spawn_blocking(flooding).await.unwrap();
    for (address, path) in addresses.into_iter().zip(["/healthz", "/metrics"]) {
        let answer = tokio::time::timeout(Duration::from_secs(10), get(address, path)).await;
        assert_eq!(answer.expect("an answer").code, 200, "{path}");
    }
    for mut flood in floods {
        assert!(flood.is_cut_to(256));
    }
    servers.stop().await;
}
