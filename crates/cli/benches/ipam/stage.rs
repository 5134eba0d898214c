//! An API server in this process, with a node whose addresses are given, and a place for its
//! daemon.

use std::fs;

use http::Method;
use kube::Client;
use serde_json::{Value, json};
use weft_apiserver::ApiServer;
use weft_testserver::call;

use crate::daemon::Daemon;

pub(crate) const GROUP: &str = "/apis/ipam.weft.dev/v1alpha1";
const CONFIGS: &str = "/apis/ipam.weft.dev/v1alpha1/namespaces/kube-system/nodenetworkconfigs";
const DEFINITION: &str = include_str!("../../../../deploy/crds/nodenetworkconfigs.yaml");
const SUBNETS: &str = include_str!("../../../../deploy/crds/clustersubnetstates.yaml");
/// The node of all measurements of one daemon.
pub(crate) const NODE: &str = "node-0";
pub(crate) const MACHINE: &str = "machine";
pub(crate) const BOOT: &str = "boot";

/// Installs a definition of `deploy/crds` and waits until it is served.
pub(crate) async fn define(client: &Client, text: &str) {
    let definition: Value = serde_saphyr::from_str(text).unwrap();
    let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    call(client, Method::POST, all, &definition).await.unwrap();
    let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
    let served = format!("{GROUP}/{plural}");
    while call(client, Method::GET, &served, &Value::Null)
        .await
        .is_err()
    {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

pub(crate) struct Stage {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) address: std::net::SocketAddr,
    client: Client,
    _server: ApiServer,
}

impl Stage {
    /// With a node that holds so many blocks of sixteen addresses.
    pub(crate) fn new(blocks: u32) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (server, client, address) = runtime.block_on(async {
            let server = ApiServer::builder().build();
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            server.serve_http(listener);
            let client = server.client();
            (server, client, address)
        });
        let stage = Self {
            client,
            directory: directory(),
            runtime,
            address,
            _server: server,
        };
        stage.furnish(blocks);
        stage
    }

    fn furnish(&self, blocks: u32) {
        self.runtime.block_on(async {
            define(&self.client, DEFINITION).await;
            define(&self.client, SUBNETS).await;
        });
        for (path, text) in [
            ("etc/machine-id", MACHINE),
            ("proc/sys/kernel/random/boot_id", BOOT),
        ] {
            let path = self.directory.path().join("root").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
        let node = self.call(Method::POST, "/api/v1/nodes", &node);
        let owner = json!({
            "apiVersion": "v1", "kind": "Node", "name": NODE,
            "uid": node["metadata"]["uid"], "controller": true,
        });
        let count = (blocks * 16).min(weft_ipam::scaling::MAXIMUM);
        let config = json!({
            "apiVersion": "ipam.weft.dev/v1alpha1", "kind": "NodeNetworkConfig",
            "metadata": {"name": NODE, "namespace": "kube-system", "ownerReferences": [owner]},
            "spec": {"requestedIPCount": count},
        });
        self.call(Method::POST, CONFIGS, &config);
        let entries: Vec<Value> = (0..blocks)
            .map(|block| json!({"name": format!("block-{block}"), "ip": format!("{}/28", address(block * 16))}))
            .collect();
        // A batch of all, so that nothing is offered for release.
        let status = json!({"status": {
            "assignedIPCount": blocks * 16,
            "scaler": {"batchSize": count, "requestThresholdPercent": 50, "maxIPCount": count},
            "networkContainers": [{
                "id": "nc", "subnetName": "pool", "subnetAddressSpace": "10.1.0.0/16",
                "defaultGateway": "10.1.0.1", "ipAssignments": entries, "version": 1,
            }],
        }});
        let path = format!("{CONFIGS}/{NODE}/status");
        self.call(Method::PATCH, &path, &status);
    }

    pub(crate) fn call(&self, method: Method, path: &str, body: &Value) -> Value {
        let answer = self
            .runtime
            .block_on(call(&self.client, method, path, body));
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// So many pods of a node, of a usual size.
    pub(crate) fn add_pods(&self, node: &str, count: usize) {
        for pod in 0..count {
            self.call(
                Method::POST,
                "/api/v1/namespaces/default/pods",
                &pod_of(node, pod),
            );
        }
    }

    /// The daemon of the node, asking the API server here.
    pub(crate) fn start(&self) -> Daemon {
        Daemon::start(self.directory.path(), self.address)
    }
}

/// Beside what is built, on the disk whose speed matters: elsewhere `/tmp` may be memory.
fn directory() -> tempfile::TempDir {
    let beside = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    tempfile::tempdir_in(beside).unwrap()
}

/// An address of the subnet.
pub(crate) fn address(number: u32) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from(0x0a01_0100 + number)
}

fn pod_of(node: &str, number: usize) -> Value {
    let environment: Vec<Value> = (0..20)
        .map(|number| json!({"name": format!("SETTING_{number}"), "value": "x".repeat(40)}))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("{node}-{number}"), "namespace": "default",
            "labels": {"app": "web", "pod-template-hash": "5d4f8c7b9"}},
        "spec": {"nodeName": node, "containers": [
            {"name": "main", "image": "registry.example/web:1", "env": environment}]},
    })
}
