//! Benchmarks of the API server against the project's targets.
//!
//! `cargo bench -p weft-apiserver --bench apiserver`; rows go as JSON to the path in
//! `WEFT_BENCH_OUT`, and `WEFT_BENCH_QUICK=1` runs a tenth of everything.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tower::Service as _;
use weft_apiserver::{ApiServer, User};
use weft_testkit::bench::{Report, Target, is_quick, median, percentile};

/// One result: the measured value and its target.
struct Row {
    name: &'static str,
    unit: &'static str,
    ours: f64,
    target: f64,
}

fn main() -> std::io::Result<()> {
    let scale = if is_quick() { 10 } else { 1 };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut rows = runtime.block_on(async {
        let mut rows = vec![start_to_ready().await];
        rows.push(load(10_000 / scale, 7.0).await);
        rows.extend(watches(scale).await);
        rows.extend(costs(scale).await);
        rows
    });
    // Last, since the memory of the process only grows.
    rows.push(runtime.block_on(memory(100_000 / scale)));
    let mut report = Report::new();
    for row in rows {
        report.figure(row.name, row.unit, row.ours, Target::AtMost(row.target));
    }
    report.finish()
}

async fn start_to_ready() -> Row {
    let started = Instant::now();
    let server = ApiServer::builder().start().await.expect("a free port");
    let address = server
        .listening()
        .and_then(|listening| listening.http)
        .expect("plain HTTP");
    let mut connection = Connection::open(address).await;
    assert_eq!(connection.send(Method::GET, "/readyz", None).await, 200);
    let ours = started.elapsed().as_secs_f64() * 1e3;
    Row {
        name: "start to ready",
        unit: "ms",
        ours,
        target: 100.0,
    }
}

/// Times of expensive requests at n and at 4n elements; the target is growth of at most n log n.
async fn costs(scale: usize) -> Vec<Row> {
    let server = ApiServer::builder().start().await.expect("a free port");
    let listening = server.listening().and_then(|listening| listening.http);
    let mut connection = Connection::open(listening.expect("plain HTTP")).await;
    let pods = format!("/api/v1{NAMESPACE}/pods?dryRun=All");
    let slices = format!("/apis/discovery.k8s.io/v1{NAMESPACE}/endpointslices?dryRun=All");
    let empty = |count: usize| json!({"metadata": {"name": "p"}, "spec": {"containers": vec![json!({}); count]}});
    let ports = |count: usize| {
        let port = |number| json!({"name": format!("p{number}"), "port": 80});
        let ports: Vec<Value> = (0..count).map(port).collect();
        json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [], "ports": ports})
    };
    let mut rows = Vec::new();
    for (name, path, body, target) in [
        (
            "25,000 empty containers",
            &pods,
            empty(25_000 / scale),
            500.0,
        ),
        (
            "100,000 empty containers",
            &pods,
            empty(100_000 / scale),
            2000.0,
        ),
        (
            "5,000 ports of a slice",
            &slices,
            ports(5000 / scale),
            250.0,
        ),
        (
            "20,000 ports of a slice",
            &slices,
            ports(20_000 / scale),
            1000.0,
        ),
    ] {
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let begun = Instant::now();
            connection.send(Method::POST, path, Some(&body)).await;
            best = best.min(begun.elapsed());
        }
        rows.push(Row {
            name,
            unit: "ms",
            ours: best.as_secs_f64() * 1e3,
            target,
        });
    }
    rows
}

/// One HTTP/1.1 connection.
struct Connection(hyper::client::conn::http1::SendRequest<Full<Bytes>>);

impl Connection {
    async fn open(address: std::net::SocketAddr) -> Self {
        let stream = tokio::net::TcpStream::connect(address)
            .await
            .expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .expect("handshake");
        tokio::spawn(connection);
        Self(sender)
    }

    async fn send(&mut self, method: Method, path: &str, body: Option<&Value>) -> u16 {
        let bytes = body
            .map(|body| Bytes::from(body.to_string()))
            .unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(bytes))
            .expect("a request");
        self.0.ready().await.expect("connection is open");
        let response = self.0.send_request(request).await.expect("an answer");
        let status = response.status().as_u16();
        response.into_body().collect().await.expect("a body");
        status
    }
}

const NAMESPACE: &str = "/namespaces/default";

fn service(number: usize) -> (String, Value) {
    let body = json!({
        "metadata": {"name": format!("service-{number}"), "labels": {"app": format!("a{number}")}},
        "spec": {
            "selector": {"app": format!("a{number}")},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        },
    });
    (format!("/api/v1{NAMESPACE}/services"), body)
}

fn slice(number: usize) -> (String, Value) {
    let endpoint = |index: usize| {
        json!({
            "addresses": [format!("10.{}.{}.{}", index + 1, number / 250, number % 250 + 1)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{}", (number + index) % 100),
        })
    };
    let body = json!({
        "metadata": {
            "name": format!("slice-{number}"),
            "labels": {"kubernetes.io/service-name": format!("service-{number}")},
        },
        "addressType": "IPv4",
        "endpoints": (0..5).map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    });
    (
        format!("/apis/discovery.k8s.io/v1{NAMESPACE}/endpointslices"),
        body,
    )
}

/// Creates `count` Services and as many EndpointSlices over eight connections.
async fn load(count: usize, target: f64) -> Row {
    let server = ApiServer::builder().start().await.expect("a free port");
    let address = server
        .listening()
        .and_then(|listening| listening.http)
        .expect("plain HTTP");
    let started = Instant::now();
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            tokio::spawn(async move {
                let mut connection = Connection::open(address).await;
                for number in (worker..count).step_by(8) {
                    for (path, body) in [service(number), slice(number)] {
                        assert_eq!(connection.send(Method::POST, &path, Some(&body)).await, 201);
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("a worker");
    }
    let ours = started.elapsed().as_secs_f64();
    Row {
        name: "load services and slices over 8 connections",
        unit: "s",
        ours,
        target,
    }
}

/// Delays from a write to its watcher with few and with many watches. Each is the median of three
/// rounds, since on a busy machine a single 99th percentile depends on other processes.
async fn watches(scale: usize) -> Vec<Row> {
    let seconds = if scale > 1 { 1 } else { 4 };
    let (mut few, mut many) = (Vec::new(), Vec::new());
    let slow = |delays: Vec<f64>| percentile(&delays, 99).unwrap_or(f64::INFINITY);
    for _ in 0..3 {
        few.push(slow(delays(10, seconds).await));
        many.push(slow(delays(1000 / scale, seconds).await));
    }
    let (few, many) = (median(few), median(many));
    // Delays below a tenth of a millisecond are noise of the timer.
    let ratio = many / few.max(0.1);
    vec![
        Row {
            name: "event to watcher, 1,000 watches, p99",
            unit: "ms",
            ours: many,
            target: 20.0,
        },
        Row {
            name: "1,000 watches against 10, p99",
            unit: "x",
            ours: ratio,
            target: 2.0,
        },
    ]
}

/// Milliseconds from write to watcher at a thousand writes per second.
async fn delays(watchers: usize, seconds: u64) -> Vec<f64> {
    let server = ApiServer::builder().build();
    let service = server.service(User::admin());
    let path = format!("/api/v1{NAMESPACE}/configmaps");
    let sent: Arc<Mutex<Vec<Option<Instant>>>> = Arc::new(Mutex::new(vec![None; watchers]));
    let seen = Arc::new(Mutex::new(Vec::new()));
    for number in 0..watchers {
        let body = json!({"metadata": {"name": format!("m{number}"), "labels": {"w": number.to_string()}}});
        call(&service, Method::POST, &path, &body).await;
    }
    for number in 0..watchers {
        let target = format!(
            "{path}?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&labelSelector=w%3D{number}"
        );
        let mut response = {
            let request = Request::builder()
                .uri(target)
                .body(Full::<Bytes>::default());
            service
                .clone()
                .call(request.expect("a request"))
                .await
                .expect("a watch")
        };
        let (sent, seen) = (sent.clone(), seen.clone());
        tokio::spawn(async move {
            while let Some(Ok(_)) = response.body_mut().frame().await {
                let now = Instant::now();
                let written = sent
                    .lock()
                    .expect("no panic")
                    .get_mut(number)
                    .and_then(Option::take);
                if let Some(written) = written {
                    let delay = now.duration_since(written).as_secs_f64() * 1e3;
                    seen.lock().expect("no panic").push(delay);
                }
            }
        });
    }
    let write = async |round: usize| {
        let number = round % watchers;
        sent.lock().expect("no panic")[number] = Some(Instant::now());
        let body = json!({
            "metadata": {"name": format!("m{number}"), "labels": {"w": number.to_string()}},
            "data": {"round": round.to_string()},
        });
        call(&service, Method::PUT, &format!("{path}/m{number}"), &body).await;
    };
    // Warm-up: each watch receives one event before the measurement.
    for round in 0..watchers {
        write(round).await;
    }
    while seen.lock().expect("no panic").len() < watchers {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    seen.lock().expect("no panic").clear();
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    let end = Instant::now() + Duration::from_secs(seconds);
    for round in watchers.. {
        ticks.tick().await;
        if Instant::now() > end {
            break;
        }
        write(round).await;
    }
    drop(server);
    seen.lock().expect("no panic").clone()
}

async fn call(service: &weft_apiserver::MemoryService, method: Method, path: &str, body: &Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(Full::new(Bytes::from(body.to_string())));
    let response = service
        .clone()
        .call(request.expect("a request"))
        .await
        .expect("an answer");
    assert!(response.status().is_success(), "{}", response.status());
}

/// A Pod of about three kilobytes.
fn pod(number: usize) -> Value {
    let environment: Vec<Value> = (0..20)
        .map(|index| json!({"name": format!("VARIABLE_{index}"), "value": format!("value {index} of pod {number}")}))
        .collect();
    json!({
        "metadata": {
            "name": format!("pod-{number:06}"),
            "labels": {"app": format!("app-{}", number % 500), "pod-template-hash": "6f7d8c9b5"},
            "annotations": {"example.com/note": "a".repeat(200)},
        },
        "spec": {
            "nodeName": format!("node-{}", number % 1000),
            "containers": [{
                "name": "main", "image": "registry.example.com/team/app:1.2.3", "env": environment,
                "ports": [{"containerPort": 8080}],
            }],
        },
    })
}

/// Resident megabytes with `count` Pods.
async fn memory(count: usize) -> Row {
    let before = resident();
    let server = ApiServer::builder().build();
    let service = server.service(User::admin());
    let path = format!("/api/v1{NAMESPACE}/pods");
    for number in 0..count {
        call(&service, Method::POST, &path, &pod(number)).await;
    }
    let ours = resident() - before;
    assert_eq!(server.stats().total(), count as u64);
    Row {
        name: "100,000 pods of 3 kB",
        unit: "MB",
        ours,
        target: 800.0,
    }
}

fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| {
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<f64>()
            .ok()
    });
    kilobytes.unwrap_or(0.0) * 1024.0 / 1e6
}
