//! Five thousand nodes that want their addresses at once.

use std::{
    collections::HashSet,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use http::{Method, Request};
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
    core::WatchEvent,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use weft_apiserver::RunConfig;
use weft_testkit::bench::{Report, Target};
use weft_testserver::call;

use crate::{
    judge::{full_or_quick, number, unless_quick},
    process::Running,
    stage::{GROUP, define},
};

const ADDRESSES: u32 = 250;
const DEFINITIONS: [&str; 4] = [
    include_str!("../../../../deploy/crds/nodenetworkconfigs.yaml"),
    include_str!("../../../../deploy/crds/ippools.yaml"),
    include_str!("../../../../deploy/crds/ippoolshards.yaml"),
    include_str!("../../../../deploy/crds/clustersubnetstates.yaml"),
];
const CONFIGS: &str = "/apis/ipam.weft.dev/v1alpha1/namespaces/kube-system/nodenetworkconfigs";

pub(crate) fn measure(report: &mut Report) {
    // The library does not know of the provider that the program installs.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (few, many) = full_or_quick((500, 5_000), (5, 20));
    let cost_of_few = runtime.block_on(async {
        let cluster = Cluster::start(few).await;
        settled(&cluster.client).await;
        cluster.cost_of_heartbeat().await
    });
    runtime.block_on(cold_start(report, many, cost_of_few));
}

async fn cold_start(report: &mut Report, nodes: usize, cost_of_few: f64) {
    let cluster = Cluster::start(nodes).await;
    let name = format!("allocator, {nodes} nodes × {ADDRESSES} addresses");
    report.figure(
        &format!("{name}: cold start until all are served"),
        "s",
        cluster.took.as_secs_f64(),
        unless_quick(Target::AtMost(60.0)),
    );
    let client = &cluster.client;
    let before = settled(client).await;
    let cost = cluster.cost_of_heartbeat().await;
    tokio::time::sleep(Duration::from_secs(full_or_quick(30, 1))).await;
    let writes = version(client).await - before - u64::from(beats());
    report.figure(
        &format!("{name}: writes in half a minute of steady state"),
        "",
        f64::from(u32::try_from(writes).unwrap()),
        unless_quick(Target::AtMost(0.0)),
    );
    report.comparison(
        &format!(
            "{name}: processor time for a heartbeat of a node; peer: with a tenth of the nodes"
        ),
        "µs",
        cost,
        cost_of_few,
        unless_quick(Target::RatioAtMost(1.5)),
    );
    for (when, megabytes) in [
        ("at most", cluster.most_memory),
        ("settled", cluster.controller.anonymous_memory()),
    ] {
        report.figure(
            &format!("{name}: RssAnon of weft controller, {when}"),
            "MB",
            megabytes,
            unless_quick(Target::AtMost(300.0)),
        );
    }
}

/// Nodes that have their addresses, and the program that assigned them.
struct Cluster {
    client: Client,
    nodes: usize,
    controller: Running,
    /// From the start of the program until all nodes were served.
    took: Duration,
    /// Largest RssAnon meanwhile, in megabytes.
    most_memory: f64,
    _server: AbortOnDropHandle<Result<(), weft_apiserver::RunError>>,
    _directory: tempfile::TempDir,
}

/// Number of heartbeats to measure.
fn beats() -> u32 {
    full_or_quick(4_000, 20)
}

impl Cluster {
    async fn start(nodes: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let server = weft_apiserver::run(
            RunConfig {
                kubeconfig: Some(kubeconfig.clone()),
                ..RunConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            },
            CancellationToken::new(),
        );
        let server = AbortOnDropHandle::new(tokio::spawn(server));
        let client = connect(&kubeconfig).await;
        furnish(&client, nodes).await;
        let mut command = Running::weft();
        command.args(["controller", "--controllers=ipam", "--leader-elect=false"]);
        command
            .args(["--secure-port=0", "--kubeconfig"])
            .arg(&kubeconfig);
        let begun = Instant::now();
        let controller = Running::start(&mut command);
        let most_memory = all_served(&client, nodes, &controller).await;
        Self {
            client,
            nodes,
            controller,
            took: begun.elapsed(),
            most_memory,
            _server: server,
            _directory: directory,
        }
    }

    /// Microseconds of processor time for one heartbeat, from decoding it to doing nothing.
    async fn cost_of_heartbeat(&self) -> f64 {
        let before = self.controller.processor_time();
        for number in 0..beats() {
            let node = usize::try_from(number).unwrap() % self.nodes;
            beat(&self.client, node, number).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let after = self.controller.processor_time();
        let spent = after.saturating_sub(before);
        spent.as_secs_f64() * 1e6 / f64::from(beats())
    }
}

async fn connect(kubeconfig: &Path) -> Client {
    let begun = Instant::now();
    loop {
        if let Ok(read) = Kubeconfig::read_from(kubeconfig) {
            let options = KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(read, &options);
            let client = Client::try_from(config.await.unwrap()).unwrap();
            if client.apiserver_version().await.is_ok() {
                return client;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no API server");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn furnish(client: &Client, nodes: usize) {
    for text in DEFINITIONS {
        define(client, text).await;
    }
    let pool = json!({"apiVersion": "ipam.weft.dev/v1alpha1", "kind": "IPPool",
        "metadata": {"name": "pods"},
        "spec": {"cidrs": ["10.0.0.0/8"],
                 "scaler": {"batchSize": ADDRESSES, "maxIPCount": ADDRESSES}}});
    let pools = format!("{GROUP}/ippools");
    call(client, Method::POST, &pools, &pool).await.unwrap();
    let made = stream::iter(0..nodes).map(|node| async move {
        let name = name_of(node);
        let labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": "cx42", "topology.kubernetes.io/zone": "fsn1-dc14"});
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels}});
        call(client, Method::POST, "/api/v1/nodes", &node).await.unwrap();
    });
    made.buffer_unordered(16).count().await;
}

fn name_of(node: usize) -> String {
    format!("node-{node}")
}

#[derive(Clone, Debug, Deserialize)]
struct Config {
    metadata: Name,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Deserialize)]
struct Name {
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(rename = "assignedIPCount")]
    assigned: u32,
}

/// Waits until every node has its addresses, and says how much memory the controller held
/// at most meanwhile.
async fn all_served(client: &Client, nodes: usize, controller: &Running) -> f64 {
    let request = Request::get(format!(
        "{CONFIGS}?watch=1&resourceVersion=0&timeoutSeconds=900"
    ));
    let events = client.request_events::<Config>(request.body(Vec::new()).unwrap());
    let mut events = Box::pin(events.await.unwrap());
    let mut served = HashSet::new();
    let mut most = 0.0_f64;
    let mut glance = tokio::time::interval(Duration::from_millis(100));
    while served.len() < nodes {
        tokio::select! {
            event = events.next() => match event.unwrap().unwrap() {
                WatchEvent::Added(config) | WatchEvent::Modified(config) => {
                    if config.status.assigned >= ADDRESSES {
                        served.insert(config.metadata.name);
                    }
                }
                other => panic!("{} of {nodes} served, then {other:?}", number(served.len())),
            },
            _ = glance.tick() => most = most.max(controller.anonymous_memory()),
        }
    }
    most
}

/// The version of the whole store, which every write moves on.
async fn version(client: &Client) -> u64 {
    let path = format!("{GROUP}/ippools");
    let list = call(client, Method::GET, &path, &Value::Null)
        .await
        .unwrap();
    let version = list["metadata"]["resourceVersion"].as_str();
    version.unwrap().parse().unwrap()
}

/// Waits until nothing is written for a while: figures of the pool follow its claims.
async fn settled(client: &Client) -> u64 {
    let quiet = Duration::from_secs(full_or_quick(8, 1));
    let mut last = version(client).await;
    loop {
        tokio::time::sleep(quiet).await;
        let now = version(client).await;
        if now == last {
            return now;
        }
        last = now;
    }
}

async fn beat(client: &Client, node: usize, number: u32) {
    let path = format!("/api/v1/nodes/{}/status", name_of(node));
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
        "message": format!("beat {number}"), "lastHeartbeatTime": "2026-01-01T00:00:00Z"});
    let status = json!({"status": {"conditions": [ready]}});
    call(client, Method::PATCH, &path, &status).await.unwrap();
}
