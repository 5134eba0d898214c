//! The whole program beside an API server: memory, and how long a change takes to arrive.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::Value;
use weft_apiserver::ApiServer;
use weft_testkit::{
    bench::{Report, Target, is_quick},
    usage::anonymous_megabytes,
};

use crate::objects;

pub(crate) fn measure(report: &mut Report) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let services = if is_quick() { 20 } else { 10_000 };
    runtime.block_on(measure_memory(services, report));
    let periods: &[u64] = if is_quick() { &[0] } else { &[0, 1, 10] };
    for period in periods {
        runtime.block_on(measure_latency(*period, report));
    }
}

/// A proxy that ends with its measurement.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Proxy {
    fn start(server: SocketAddr, variant: &str, min_sync_period: u64) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_weft"))
            .args(["proxy", &format!("--master=http://{server}")])
            .args(["--hostname-override=node-0", "--conntrack-max-per-core=0"])
            .arg(format!("--iptables-variant={variant}"))
            .arg(format!("--iptables-min-sync-period={min_sync_period}s"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

/// An API server with so many Services, and where it listens. Each has a port of its own.
async fn cluster(services: usize) -> (ApiServer, SocketAddr) {
    let ranges = ["10.96.0.0/12"].map(|range| range.parse().unwrap());
    let server = ApiServer::builder().service_ranges(ranges).build();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    server.serve_http(listener);
    let client = server.client();
    let node = serde_json::json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-0"},
        // Without one the proxy would wait for it, as kube-proxy does.
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}});
    create(&client, "", "Node", "", &node).await;
    let namespace = serde_json::json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "bench"}});
    create(&client, "", "Namespace", "", &namespace).await;
    for index in 0..services {
        create(&client, "", "Service", "bench", &objects::service(index)).await;
        let slice = objects::slice(index, 0);
        create(
            &client,
            "discovery.k8s.io",
            "EndpointSlice",
            "bench",
            &slice,
        )
        .await;
    }
    (server, address)
}

fn api(client: &Client, group: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    if namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, &resource)
    }
}

async fn create(client: &Client, group: &str, kind: &str, namespace: &str, object: &Value) {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let api = api(client, group, kind, namespace);
    api.create(&PostParams::default(), &object).await.unwrap();
}

async fn measure_memory(services: usize, report: &mut Report) {
    let (_server, address) = cluster(services).await;
    let proxy = Proxy::start(address, "legacy", 1);
    wait_for("IPv4\"} ", Duration::from_secs(120)).await;
    // One audit period: whatever is only needed at the start is gone by then.
    tokio::time::sleep(Duration::from_secs(if is_quick() { 1 } else { 35 })).await;
    report.figure(
        &format!("RssAnon of weft proxy, {services} Services of 5 endpoints"),
        "MB",
        anonymous_megabytes(proxy.0.id()).unwrap(),
        if is_quick() {
            Target::None
        } else {
            Target::AtMost(60.0)
        },
    );
}

/// A change every 100 ms in a cluster of 1,000 Services.
async fn measure_latency(min_sync_period: u64, report: &mut Report) {
    let services = if is_quick() { 20 } else { 1_000 };
    let (server, address) = cluster(services).await;
    let _proxy = Proxy::start(address, "nft", min_sync_period);
    wait_for("IPv4\"} ", Duration::from_secs(120)).await;
    let slices = api(
        &server.client(),
        "discovery.k8s.io",
        "EndpointSlice",
        "bench",
    );
    let until = Instant::now() + Duration::from_secs(if is_quick() { 1 } else { 45 });
    let mut round = 0;
    while Instant::now() < until {
        round += 1;
        let index = round % services;
        let mut slice = objects::slice(index, 1 + round / services);
        slice["metadata"]["annotations"]["endpoints.kubernetes.io/last-change-trigger-time"] =
            now().into();
        let slice: DynamicObject = serde_json::from_value(slice).unwrap();
        let name = format!("service-{index}-x");
        slices
            .replace(&name, &PostParams::default(), &slice)
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(min_sync_period + 2)).await;
    let page = metrics().unwrap_or_default();
    for quantile in [0.5, 0.9, 0.99] {
        report.figure(
            &format!(
                "NetworkProgrammingLatency p{:.0}, min-sync-period {min_sync_period} s, at most",
                quantile * 100.0
            ),
            "s",
            upper_bound(&page, quantile),
            Target::None,
        );
    }
}

fn now() -> String {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    jiff::Timestamp::from_second(i64::try_from(since.as_secs()).unwrap())
        .and_then(|time| {
            time.checked_add(jiff::SignedDuration::new(
                0,
                since.subsec_nanos().cast_signed(),
            ))
        })
        .unwrap()
        .to_string()
}

fn metrics() -> Option<String> {
    let mut socket = TcpStream::connect("127.0.0.1:10249").ok()?;
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    socket.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    socket.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Waits for the first full sync of a family.
async fn wait_for(family: &str, patience: Duration) {
    let deadline = Instant::now() + patience;
    let done = |page: String| {
        page.lines().any(|line| {
            line.starts_with("kubeproxy_sync_proxy_rules_last_timestamp_seconds")
                && line.contains(family)
        })
    };
    while !metrics().is_some_and(done) {
        assert!(Instant::now() < deadline, "the proxy did not sync");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The upper bound of the bucket that a quantile falls into.
fn upper_bound(page: &str, quantile: f64) -> f64 {
    let buckets: Vec<(f64, f64)> = page
        .lines()
        .filter(|line| line.starts_with("kubeproxy_network_programming_duration_seconds_bucket"))
        .filter(|line| line.contains("IPv4"))
        .filter_map(|line| {
            let (_, rest) = line.split_once("le=\"")?;
            let (bound, _) = rest.split_once('"')?;
            let count = line.rsplit(' ').next()?;
            Some((bound.parse().unwrap_or(f64::INFINITY), count.parse().ok()?))
        })
        .collect();
    let total = buckets.last().map_or(0.0, |(_, count)| *count);
    let reached = buckets.iter().find(|(_, count)| *count >= total * quantile);
    reached.map_or(f64::NAN, |(bound, _)| *bound)
}
