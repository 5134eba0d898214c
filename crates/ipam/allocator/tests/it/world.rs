//! Test cluster with pools, nodes, and running allocators.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use http::Method;
use ipnet::IpNet;
use kube::Client;
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use weft_apiserver::{ApiServer, Matcher, Verb};
use weft_ipam::{
    allocator::{AllocatorSettings, Block, Claim, ClaimState, ClusterCidr, WallTime},
    objects::{IpPool, IpPoolShard, NodeNetworkConfig},
};
use weft_ipam_allocator::{
    AllocatorEvents, AllocatorMetrics, AllocatorParts, PodCidrParts, WallClock, controller,
    pod_cidr_controller,
};
use weft_runtime::{Cluster, ControllerHandle, EventRecorder, Gate, prometheus_text};

use weft_testserver::{call, path, server};

/// Longer than anything a test waits for; paused time costs nothing.
const LIMIT: Duration = Duration::from_secs(1800);

pub(crate) struct World {
    pub(crate) server: ApiServer,
    pub(crate) client: Client,
    begun: Instant,
}

/// A running controller and its metrics.
pub(crate) struct Running {
    pub(crate) controller: ControllerHandle,
    registry: Registry,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::on(server().await)
    }

    /// On a server that has our definitions.
    pub(crate) fn on(server: ApiServer) -> Self {
        Self {
            client: server.client(),
            server,
            begun: Instant::now(),
        }
    }

    /// Starts an allocator as a process would.
    pub(crate) fn start(&self) -> Running {
        self.start_with(self.client.clone(), Gate::always_open())
    }

    pub(crate) fn start_with(&self, client: Client, gate: Gate) -> Running {
        let mut registry = Registry::default();
        let parts = AllocatorParts {
            metrics: AllocatorMetrics::register(&mut registry),
            events: self.events(),
            cluster: Cluster::new("local", client),
            settings: AllocatorSettings::default(),
            namespace: "kube-system".to_owned(),
            clock: self.clock(),
        };
        let controller = controller(parts, None);
        controller.set_gate(gate);
        controller.start();
        Running {
            controller,
            registry,
        }
    }

    pub(crate) fn start_pod_cidrs(&self, ranges: &[(&str, u8)]) -> Running {
        self.start_pod_cidrs_with(self.client.clone(), ranges)
    }

    pub(crate) fn start_pod_cidrs_with(&self, client: Client, ranges: &[(&str, u8)]) -> Running {
        let mut registry = Registry::default();
        let ranges = ranges.iter().map(|(range, node_prefix)| ClusterCidr {
            range: range.parse().unwrap(),
            node_prefix: *node_prefix,
        });
        let parts = PodCidrParts {
            metrics: AllocatorMetrics::register(&mut registry),
            events: self.events(),
            cluster: Cluster::new("local", client),
            ranges: ranges.collect(),
            settings: AllocatorSettings::default(),
            namespace: "kube-system".to_owned(),
            clock: self.clock(),
        };
        let controller = pod_cidr_controller(parts, None);
        controller.set_gate(Gate::always_open());
        controller.start();
        Running {
            controller,
            registry,
        }
    }

    fn events(&self) -> AllocatorEvents {
        let events = EventRecorder::new(self.client.clone(), "weft_allocator", "test");
        AllocatorEvents {
            events: Some(events),
        }
    }

    /// A clock that advances with paused time.
    fn clock(&self) -> WallClock {
        let begun = self.begun;
        WallClock::new(move || {
            let elapsed = u64::try_from(begun.elapsed().as_millis()).unwrap();
            WallTime(1_800_000_000_000 + elapsed)
        })
    }

    pub(crate) async fn call(&self, method: Method, path: &str, body: &Value) -> Value {
        let answer = call(&self.client, method, path, body).await;
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub(crate) async fn add_pool(&self, name: &str, spec: Value) {
        let pool = json!({"apiVersion": "ipam.weft.dev/v1alpha1", "kind": "IPPool",
            "metadata": {"name": name}, "spec": spec});
        self.call(Method::POST, &path("ippools", ""), &pool).await;
    }

    pub(crate) async fn add_node(&self, name: &str, spec: Value) {
        let node = json!({"metadata": {"name": name, "labels": {"name": name}}, "spec": spec});
        self.call(Method::POST, "/api/v1/nodes", &node).await;
    }

    pub(crate) async fn add_nodes(&self, count: usize) {
        for number in 0..count {
            self.add_node(&format!("node-{number}"), json!({})).await;
        }
    }

    pub(crate) async fn delete_node(&self, name: &str) {
        let path = format!("/api/v1/nodes/{name}");
        self.call(Method::DELETE, &path, &Value::Null).await;
    }

    pub(crate) async fn uid_of(&self, node: &str) -> String {
        let path = format!("/api/v1/nodes/{node}");
        let node = self.call(Method::GET, &path, &Value::Null).await;
        node["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Writes a node's spec, as its agent does.
    pub(crate) async fn write_spec(&self, node: &str, spec: Value) {
        let path = path("nodenetworkconfigs", node);
        self.call(Method::PATCH, &path, &json!({"spec": spec}))
            .await;
    }

    async fn list<T: DeserializeOwned>(&self, plural: &str) -> Vec<T> {
        let list = self
            .call(Method::GET, &path(plural, ""), &Value::Null)
            .await;
        serde_json::from_value(list["items"].clone()).unwrap()
    }

    pub(crate) async fn configs(&self) -> BTreeMap<String, NodeNetworkConfig> {
        let configs = self.list::<NodeNetworkConfig>("nodenetworkconfigs").await;
        let named = |config: NodeNetworkConfig| (config.metadata.name.to_string(), config);
        configs.into_iter().map(named).collect()
    }

    pub(crate) async fn pool(&self, name: &str) -> IpPool {
        let path = path("ippools", name);
        let pool = self.call(Method::GET, &path, &Value::Null).await;
        serde_json::from_value(pool).unwrap()
    }

    /// Every claim that is held or in cooldown.
    pub(crate) async fn claims(&self) -> Vec<(IpNet, Claim)> {
        let mut claims = Vec::new();
        for object in self.list::<IpPoolShard>("ippoolshards").await {
            let shard = object.to_shard().unwrap();
            for (net, claim) in shard.claims(object.spec.block_prefix) {
                claims.push((net, claim.clone()));
            }
            // A block must not be claimed in two ways.
            for block in shard.blocks.values() {
                assert!(matches!(block, Block::Whole(_) | Block::Split(_)));
            }
        }
        claims
    }

    /// Checks that nothing is published without a claim of its publisher, and nothing published or
    /// claimed twice.
    pub(crate) async fn check(&self) {
        // Claims precede publication, so they are read after it.
        let configs = self.configs().await;
        let claims = self.claims().await;
        let held: Vec<&(IpNet, Claim)> = claims
            .iter()
            .filter(|(_, claim)| claim.state == ClaimState::Held)
            .collect();
        let mut owners: BTreeMap<IpNet, &Claim> = BTreeMap::new();
        for (net, claim) in held {
            assert!(
                owners.insert(*net, claim).is_none(),
                "{net} is claimed twice"
            );
        }
        let mut names = BTreeSet::new();
        for (node, object) in &configs {
            let config = object.to_config();
            for (_, entry) in config.status.entries() {
                let net = entry.net().unwrap();
                let claim = owners.get(&net);
                let claim = claim.unwrap_or_else(|| panic!("{node} publishes {net} unclaimed"));
                assert_eq!(claim.holder.config, config.uid, "{net} of {node}");
                assert!(names.insert(entry.name.clone()), "{} twice", entry.name);
            }
        }
        let nets: Vec<IpNet> = owners.keys().copied().collect();
        for pair in nets.windows(2) {
            assert!(!pair[0].contains(&pair[1]), "{} in {}", pair[1], pair[0]);
        }
    }

    /// Checks that no two configs publish the same addresses, with or without claims.
    async fn check_apart(&self) {
        let mut published: Vec<(IpNet, String)> = Vec::new();
        for (node, object) in self.configs().await {
            for (_, entry) in object.to_config().status.entries() {
                let net = entry.net().unwrap();
                for (other, owner) in &published {
                    let apart = !net.contains(other) && !other.contains(&net);
                    assert!(apart || *owner == node, "{net} of {node} is {owner}'s");
                }
                published.push((net, node.clone()));
            }
        }
    }

    /// Waits for a state of nodes with their own CIDRs, for which nothing is claimed.
    pub(crate) async fn until_apart(
        &self,
        what: &str,
        condition: impl Fn(&BTreeMap<String, NodeNetworkConfig>) -> bool,
    ) {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            self.check_apart().await;
            if condition(&self.configs().await) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("never: {what}: {:#?}", self.configs().await);
    }

    /// Waits for a state, and checks every state on the way.
    pub(crate) async fn until(
        &self,
        what: &str,
        condition: impl Fn(&BTreeMap<String, NodeNetworkConfig>) -> bool,
    ) {
        let begun = Instant::now();
        // Paused time costs nothing, but checking does.
        let mut pause = Duration::from_millis(20);
        while begun.elapsed() < LIMIT {
            self.check().await;
            if condition(&self.configs().await) {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
        let configs = self.configs().await;
        panic!("never: {what}: {configs:#?}");
    }

    /// Waits until this many nodes have this many addresses each, and their statuses say so.
    pub(crate) async fn all_have(&self, nodes: usize, addresses: i64) {
        self.until(&format!("{nodes} nodes with {addresses}"), |configs| {
            configs.len() == nodes
                && configs.values().all(|config| {
                    config.status.assigned_ip_count >= addresses
                        && config.status.status.as_deref() == Some("Updated")
                })
        })
        .await;
    }

    /// Number of writes so far, except leases and events.
    pub(crate) fn writes(&self) -> usize {
        let stats = self.server.stats();
        let verbs = [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete];
        let all: usize = verbs
            .iter()
            .map(|verb| stats.count(&Matcher::any().verb(*verb)))
            .sum();
        let events = stats.count(&Matcher::any().resource("events"));
        all - events
    }

    /// `reason: note` of every event about an object.
    pub(crate) async fn events_about(&self, name: &str) -> Vec<String> {
        let all = "/apis/events.k8s.io/v1/events";
        let list = self.call(Method::GET, all, &Value::Null).await;
        let events = list["items"].as_array().unwrap().iter();
        events
            .filter(|event| event["regarding"]["name"] == name)
            .map(|event| {
                let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
                format!("{}: {}", text("reason"), text("note"))
            })
            .collect()
    }
}

impl Running {
    pub(crate) fn metrics(&self) -> String {
        prometheus_text(&self.registry)
    }

    /// The value of a series, or 0.
    pub(crate) fn count(&self, series: &str) -> u64 {
        let text = prometheus_text(&self.registry);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }
}
