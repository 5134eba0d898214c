//! Test cluster: API server, an allocator that answers requests, and daemons.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
    time::Duration,
};

use axum::{Router, body::Body};
use http::{Method, Request, StatusCode};
use kube::Client;
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    task::{AbortHandle, JoinHandle},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use weft_apiserver::ApiServer;
use weft_cns::{
    IpConfigsRequest, IpConfigsResponse, PodContext, ReleaseIpConfigsResponse, ReturnCode,
    StatusResponse, path as paths,
};
use weft_ipam::pool::Identity;
use weft_ipam_daemon::{
    Clock, Daemon, DaemonHandle, DaemonParts, IpamMetrics, IpamSettings, RestApi,
};
use weft_model::{Moment, SharedStr};
use weft_runtime::{Cluster, EventRecorder, prometheus_text};

use weft_testserver::{call, path, server};

/// Longer than anything a test waits for; paused time costs nothing.
const LIMIT: Duration = Duration::from_secs(3600);

pub(crate) struct World {
    pub(crate) server: ApiServer,
    pub(crate) client: Client,
}

impl World {
    /// A cluster with a node that has its NodeNetworkConfig.
    pub(crate) async fn new() -> Self {
        let server = server().await;
        let world = Self {
            client: server.client(),
            server,
        };
        world.add_node("n1").await;
        world
    }

    pub(crate) async fn add_node(&self, name: &str) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        let node = self.post("/api/v1/nodes", &node).await;
        let owner = json!({
            "apiVersion": "v1", "kind": "Node", "name": name,
            "uid": node["metadata"]["uid"], "controller": true,
        });
        let config = json!({
            "apiVersion": "ipam.weft.dev/v1alpha1", "kind": "NodeNetworkConfig",
            "metadata": {"name": name, "namespace": "kube-system", "ownerReferences": [owner]},
        });
        self.post(&path("nodenetworkconfigs", ""), &config).await;
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        call(&self.client, Method::POST, path, body).await.unwrap()
    }

    pub(crate) async fn config(&self, node: &str) -> Value {
        let path = path("nodenetworkconfigs", node);
        call(&self.client, Method::GET, &path, &Value::Null)
            .await
            .unwrap()
    }

    pub(crate) async fn requested(&self, node: &str) -> i64 {
        let config = self.config(node).await;
        config["spec"]["requestedIPCount"].as_i64().unwrap()
    }

    /// Number of writes of a node's spec.
    pub(crate) async fn spec_writes(&self, node: &str) -> i64 {
        self.config(node).await["metadata"]["generation"]
            .as_i64()
            .unwrap()
            - 1
    }

    pub(crate) async fn add_pod(&self, node: &str, name: &str) -> String {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        });
        let pod = self.post("/api/v1/namespaces/default/pods", &pod).await;
        pod["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn show_address(&self, name: &str, address: &str) {
        let path = format!("/api/v1/namespaces/default/pods/{name}/status");
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        call(&self.client, Method::PATCH, &path, &status)
            .await
            .unwrap();
    }

    /// Reports a subnet as nearly exhausted.
    pub(crate) async fn exhaust(&self, subnet: &str) {
        let state = json!({
            "apiVersion": "ipam.weft.dev/v1alpha1", "kind": "ClusterSubnetState",
            "metadata": {"name": subnet, "namespace": "kube-system"},
        });
        self.post(&path("clustersubnetstates", ""), &state).await;
        let status = json!({"status": {"exhausted": true, "timestamp": ""}});
        let path = format!("{}/status", path("clustersubnetstates", subnet));
        call(&self.client, Method::PATCH, &path, &status)
            .await
            .unwrap();
    }

    /// Writes a status with these addresses, named after themselves.
    pub(crate) async fn grant(&self, node: &str, addresses: &[String]) {
        grant(&self.client, node, addresses).await;
    }

    /// Answers every request after `latency`, from its own addresses: 10.1.0.0 and on.
    pub(crate) fn allocator(&self, nodes: &'static [&'static str], latency: Duration) -> Allocator {
        let client = self.client.clone();
        let task = tokio::spawn(async move {
            let mut next = 4_u32;
            let mut held: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
            loop {
                for node in nodes {
                    allocate(
                        &client,
                        node,
                        held.entry(node).or_default(),
                        &mut next,
                        latency,
                    )
                    .await;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Allocator(task.abort_handle())
    }

    pub(crate) async fn start(&self, node: &str, state: &Path) -> Running {
        self.start_as(node, state, "machine", "boot").await
    }

    pub(crate) async fn start_as(
        &self,
        node: &str,
        state: &Path,
        machine: &str,
        boot: &str,
    ) -> Running {
        let settings = IpamSettings::new(node, state);
        self.start_with(settings, machine, boot).await
    }

    pub(crate) async fn start_with(
        &self,
        settings: IpamSettings,
        machine: &str,
        boot: &str,
    ) -> Running {
        let node = settings.node.clone();
        let mut registry = Registry::default();
        let metrics = IpamMetrics::register(&mut registry);
        let daemon = Daemon::open(DaemonParts {
            cluster: Cluster::new("local", self.client.clone()),
            settings,
            identity: Identity {
                machine: SharedStr::new(machine),
                boot: SharedStr::new(boot),
            },
            clock: Clock::runtime(Moment::seconds(1000)),
            process: format!("{node}-{}", fresh()),
            metrics,
            events: Some(EventRecorder::new(self.client.clone(), "weft_ipam", "test")),
        });
        let daemon = daemon.await.unwrap();
        let stop = CancellationToken::new();
        Running {
            handle: daemon.handle().clone(),
            rest: daemon.pages(),
            router: daemon.pages().router(),
            task: tokio::spawn(daemon.run(stop.clone())),
            stop,
            registry,
        }
    }
}

fn fresh() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

pub(crate) struct Allocator(AbortHandle);

impl Drop for Allocator {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn grant(client: &Client, node: &str, addresses: &[String]) {
    let assignments: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"name": format!("id-{address}"), "ip": address}))
        .collect();
    let status = json!({"status": {
        "assignedIPCount": addresses.len(),
        "scaler": {"batchSize": 16, "requestThresholdPercent": 50, "releaseThresholdPercent": 150, "maxIPCount": 250},
        "networkContainers": [{
            "id": "nc", "assignmentMode": "dynamic", "subnetName": "pool",
            "subnetAddressSpace": "10.1.0.0/16", "defaultGateway": "10.1.0.1",
            "ipAssignments": assignments, "version": addresses.len(),
        }],
    }});
    let path = format!("{}/status", path("nodenetworkconfigs", node));
    call(client, Method::PATCH, &path, &status).await.unwrap();
}

async fn allocate(
    client: &Client,
    node: &str,
    held: &mut BTreeSet<String>,
    next: &mut u32,
    latency: Duration,
) {
    let path = path("nodenetworkconfigs", node);
    let config = call(client, Method::GET, &path, &Value::Null)
        .await
        .unwrap();
    let wanted = config["spec"]["requestedIPCount"].as_u64().unwrap_or(0);
    let back: Vec<String> = config["spec"]["ipsNotInUse"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|name| name.as_str().unwrap().trim_start_matches("id-").to_owned())
        .collect();
    let before = held.clone();
    held.retain(|address| !back.contains(address));
    while (held.len() as u64) < wanted {
        held.insert(format!("10.1.{}.{}", *next / 256, *next % 256));
        *next += 1;
    }
    let first = config["status"]["scaler"].is_null();
    if *held != before || first {
        tokio::time::sleep(latency).await;
        let all: Vec<String> = held.iter().cloned().collect();
        grant(client, node, &all).await;
    }
}

/// A running daemon.
pub(crate) struct Running {
    pub(crate) handle: DaemonHandle,
    pub(crate) rest: RestApi,
    pub(crate) router: Router,
    registry: Registry,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// The request of a plugin for a pod.
pub(crate) fn request(name: &str) -> IpConfigsRequest {
    IpConfigsRequest {
        pod_interface_id: format!("sandbox-{name}"),
        infra_container_id: format!("sandbox-{name}"),
        orchestrator_context: Some(PodContext {
            pod_name: name.to_owned(),
            pod_namespace: "default".to_owned(),
            pod_uid: None,
        }),
        ifname: "eth0".to_owned(),
        network_name: Some("podnet".to_owned()),
        ..IpConfigsRequest::default()
    }
}

/// Sends a request and reads the response as text.
pub(crate) async fn send(
    router: &Router,
    method: Method,
    path: &str,
    body: Vec<u8>,
) -> (StatusCode, String) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(Body::from(body))
        .unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1 << 22)
        .await
        .unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

pub(crate) async fn ask<T: DeserializeOwned>(
    router: &Router,
    path: &str,
    body: &impl serde::Serialize,
) -> T {
    let body = serde_json::to_vec(body).unwrap();
    let (status, text) = send(router, Method::POST, path, body).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    serde_json::from_str(&text).unwrap()
}

pub(crate) async fn try_add(router: &Router, name: &str) -> Result<Vec<IpAddr>, ReturnCode> {
    let answer: IpConfigsResponse = ask(router, paths::REQUEST_IP_CONFIGS, &request(name)).await;
    if !answer.response.return_code.is_success() {
        return Err(answer.response.return_code);
    }
    let infos = answer.pod_ip_info.iter();
    Ok(infos
        .map(|info| info.pod_ip_config.ip_address.unwrap())
        .collect())
}

pub(crate) async fn add(router: &Router, name: &str) -> IpAddr {
    let addresses = try_add(router, name).await;
    addresses.unwrap_or_else(|code| panic!("ADD of {name}: {code}"))[0]
}

pub(crate) async fn delete(router: &Router, name: &str) -> ReturnCode {
    let answer: ReleaseIpConfigsResponse =
        ask(router, paths::RELEASE_IP_CONFIGS, &request(name)).await;
    answer.0.return_code
}

impl Running {
    pub(crate) async fn add(&self, name: &str) -> IpAddr {
        add(&self.router, name).await
    }

    pub(crate) async fn status(&self) -> StatusResponse {
        let (_, text) = send(&self.router, Method::GET, paths::STATUS, Vec::new()).await;
        serde_json::from_str(&text).unwrap()
    }

    /// Waits until the status meets the condition.
    pub(crate) async fn becomes(&self, what: &str, test: impl Fn(&StatusResponse) -> bool) {
        let poll = async {
            while !test(&self.status().await) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let came = timeout(LIMIT, poll).await.is_ok();
        assert!(came, "never {what}: {:?}", self.status().await);
    }

    pub(crate) async fn attached(&self) -> u32 {
        self.handle
            .read(|snapshot| snapshot.pool.attached())
            .await
            .unwrap()
    }

    pub(crate) fn count(&self, series: &str) -> u64 {
        let text = prometheus_text(&self.registry);
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}
