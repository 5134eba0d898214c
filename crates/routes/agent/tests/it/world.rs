//! Test setup: an embedded API server, a simulated route table, and a controller between them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::{core::v1::Node, events::v1::Event};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::timeout;
use weft_apiserver::ApiServer;
use weft_providers::MemoryProvider;
use weft_routes::simulation::{Fault, Profile};
use weft_routes_agent::{
    RouteEvents, RoutesMetrics, RoutesParts, RoutesSettings, StatusBoard, controller,
};
use weft_runtime::{Cluster, ControllerHandle, EventRecorder, Gate, prometheus_text};

/// Longer than anything a test waits for; paused time costs nothing.
const LIMIT: Duration = Duration::from_secs(3600);

pub(crate) struct World {
    pub(crate) server: ApiServer,
    pub(crate) client: Client,
    pub(crate) provider: MemoryProvider,
}

/// A controller that runs, and what it shows.
pub(crate) struct Running {
    pub(crate) controller: ControllerHandle,
    pub(crate) board: StatusBoard,
    registry: Registry,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Profile::MEMORY, Vec::new())
    }

    pub(crate) fn with(profile: Profile, faults: Vec<Fault>) -> Self {
        let server = ApiServer::builder().build();
        Self {
            client: server.client(),
            server,
            provider: MemoryProvider::new(profile, faults),
        }
    }

    /// A world whose controller made and recorded the routes to these nodes, and was stopped.
    pub(crate) async fn left_by_a_stopped_controller<const N: usize>(numbers: [u8; N]) -> Self {
        let world = Self::new();
        let first = world.start(Self::settings());
        for number in numbers {
            world.add_node(number).await;
        }
        world.has_routes_to(numbers).await;
        // The record of routes owned by this cluster is written after the routes.
        tokio::time::sleep(Duration::from_secs(5)).await;
        first.controller.stop().await;
        world
    }

    pub(crate) fn settings() -> RoutesSettings {
        RoutesSettings::new(["10.244.0.0/16".parse().unwrap()])
    }

    /// Starts a controller as a process would.
    pub(crate) fn start(&self, settings: RoutesSettings) -> Running {
        self.start_behind(Gate::always_open(), settings)
    }

    /// Starts a controller that may run while the gate is open.
    pub(crate) fn start_behind(&self, gate: Gate, settings: RoutesSettings) -> Running {
        let mut registry = Registry::default();
        let metrics = RoutesMetrics::register(&mut registry);
        let provider = self.provider.clone().counting(metrics.calls.clone());
        let board = StatusBoard::default();
        let events = RouteEvents {
            recorder: Some(EventRecorder::new(
                self.client.clone(),
                "route_controller",
                "test",
            )),
            ..RouteEvents::default()
        };
        let parts = RoutesParts {
            cluster: Cluster::new("local", self.client.clone()),
            provider: Arc::new(provider),
            settings,
            record_namespace: Some("kube-system".to_owned()),
            own_node: None,
            metrics,
            events,
            board: board.clone(),
        };
        let controller = controller(parts, None);
        controller.set_gate(gate);
        controller.start();
        Running {
            controller,
            board,
            registry,
        }
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// A node with a range and an address: `node-7` has 10.244.7.0/24 and 10.0.0.7.
    pub(crate) async fn add_node(&self, number: u8) {
        let node = json!({
            "metadata": {"name": format!("node-{number}")},
            "spec": {
                "podCIDRs": [format!("10.244.{number}.0/24")],
                "providerID": format!("memory://{number}"),
            },
            "status": {
                "addresses": [{"type": "InternalIP", "address": format!("10.0.0.{number}")}],
            },
        });
        self.create(node).await;
    }

    pub(crate) async fn create(&self, node: Value) {
        let node: Node = serde_json::from_value(node).unwrap();
        self.nodes()
            .create(&PostParams::default(), &node)
            .await
            .unwrap();
    }

    pub(crate) async fn patch_status(&self, number: u8, status: Value) {
        let patch = Patch::Strategic(json!({ "status": status }));
        self.nodes()
            .patch_status(&format!("node-{number}"), &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    pub(crate) async fn delete_node(&self, number: u8) {
        self.nodes()
            .delete(&format!("node-{number}"), &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Destinations and gateways in the table.
    pub(crate) fn table(&self) -> BTreeMap<String, String> {
        let routes = self.provider.routes().into_iter();
        routes
            .map(|route| {
                let hop = route.next_hop.map(|hop| hop.to_string());
                (route.destination.text().to_owned(), hop.unwrap_or_default())
            })
            .collect()
    }

    /// The expected table for these nodes.
    pub(crate) fn routes_to(numbers: impl IntoIterator<Item = u8>) -> BTreeMap<String, String> {
        let route = |number| (format!("10.244.{number}.0/24"), format!("10.0.0.{number}"));
        numbers.into_iter().map(route).collect()
    }

    pub(crate) async fn has_routes_to(&self, numbers: impl IntoIterator<Item = u8>) {
        let wanted = Self::routes_to(numbers);
        eventually(&format!("routes {wanted:?}"), || self.table() == wanted).await;
    }

    /// `status/reason` of a node's `NetworkUnavailable`.
    pub(crate) async fn condition(&self, name: &str) -> Option<String> {
        let node = self.nodes().get(name).await.unwrap();
        let conditions = node.status?.conditions?;
        let found = conditions
            .into_iter()
            .find(|condition| condition.type_ == "NetworkUnavailable")?;
        Some(format!("{}/{}", found.status, found.reason?))
    }

    pub(crate) async fn condition_becomes(&self, name: &str, wanted: &str) {
        let poll = async {
            while self.condition(name).await.as_deref() != Some(wanted) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let came = timeout(LIMIT, poll).await.is_ok();
        let is = self.condition(name).await;
        assert!(came, "{name} never {wanted}: {is:?}");
    }

    /// `reason: note` of every event about a node.
    pub(crate) async fn events(&self, node: &str) -> Vec<String> {
        let events: Api<Event> = Api::all(self.client.clone());
        let list = events.list(&ListParams::default()).await.unwrap();
        let about = |event: &Event| {
            let regarding = event.regarding.as_ref();
            regarding.is_some_and(|object| object.name.as_deref() == Some(node))
        };
        list.items
            .into_iter()
            .filter(about)
            .map(|event| {
                format!(
                    "{}: {}",
                    event.reason.unwrap_or_default(),
                    event.note.unwrap_or_default()
                )
            })
            .collect()
    }

    pub(crate) async fn event_comes(&self, node: &str, part: &str) {
        let poll = async {
            while !self
                .events(node)
                .await
                .iter()
                .any(|event| event.contains(part))
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let came = timeout(LIMIT, poll).await.is_ok();
        assert!(came, "no {part} among {:?}", self.events(node).await);
    }
}

impl Running {
    /// The value of a series as it is written.
    fn text(&self, series: &str) -> Option<String> {
        let text = prometheus_text(&self.registry);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map(str::to_owned)
    }

    /// The value of a series of whole numbers, or 0.
    pub(crate) fn count(&self, series: &str) -> u64 {
        self.text(series).map_or(0, |value| value.parse().unwrap())
    }

    /// The value of a series of seconds, or 0.
    pub(crate) fn seconds(&self, series: &str) -> f64 {
        self.text(series)
            .map_or(0.0, |value| value.parse().unwrap())
    }

    /// The sum over a metric's series with a label.
    pub(crate) fn sum(&self, metric: &str, label: &str) -> u64 {
        let text = prometheus_text(&self.registry);
        let lines = text
            .lines()
            .filter(|line| line.starts_with(metric) && line.contains(label));
        let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        values.sum()
    }

    pub(crate) fn calls(&self, operation: &str) -> u64 {
        let label = format!("operation=\"{operation}\"");
        self.sum("weft_routes_provider_calls_total", &label)
    }
}

/// Polls until a condition is met.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let poll = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, poll)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}
