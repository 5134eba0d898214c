//! The cluster feed, on paused time and without sockets.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};
use weft_apiserver::{ApiServer, Cut, Fault, Matcher, Times};
use weft_dashboard::{
    Board, ClusterFeed, State,
    state::{Check, Mode, Route},
};
use weft_runtime::Cluster;
use weft_testserver::call;

use crate::objects::{config, endpoint, node, pod, service, slice};

const DEFINITION: &str = include_str!("../../../../deploy/crds/nodenetworkconfigs.yaml");
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CONFIGS: &str = "/apis/ipam.weft.dev/v1alpha1/namespaces/kube-system/nodenetworkconfigs";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

struct World {
    server: ApiServer,
    client: Client,
    board: Board,
    feeding: JoinHandle<()>,
}

impl World {
    fn new(mode: Mode) -> Self {
        Self::with(mode, |feed| feed)
    }

    fn with(mode: Mode, adjust: impl FnOnce(ClusterFeed) -> ClusterFeed) -> Self {
        let server = ApiServer::builder().build();
        let client = server.client();
        let board = Board::new(State::new(mode, "test", "https://127.0.0.1:6443"));
        let cluster = Cluster::new("test", client.clone());
        let feed = adjust(ClusterFeed::new(cluster, board.clone()));
        let feeding = tokio::spawn(async move { feed.run().await });
        Self {
            server,
            client,
            board,
            feeding,
        }
    }

    async fn call(&self, method: Method, path: &str, body: &Value) -> Value {
        let answer = call(&self.client, method, path, body).await;
        answer.unwrap()
    }

    async fn create(&self, path: &str, object: &Value) {
        self.call(Method::POST, path, object).await;
        if object["status"].is_object() {
            let name = object["metadata"]["name"].as_str().unwrap();
            let status = json!({"status": object["status"]});
            let path = format!("{path}/{name}/status");
            self.call(Method::PATCH, &path, &status).await;
        }
    }

    /// Creates two nodes with a pod each, and a Service of both pods.
    async fn fill(&self) {
        self.create("/api/v1/nodes", &node(1)).await;
        self.create("/api/v1/nodes", &node(2)).await;
        let pods = "/api/v1/namespaces/default/pods";
        self.create(pods, &pod("web-1", Some("node-1"), "10.244.1.5"))
            .await;
        self.create(pods, &pod("web-2", Some("node-2"), "10.244.2.5"))
            .await;
        self.create("/api/v1/namespaces/default/services", &service())
            .await;
        let endpoints = json!([
            endpoint("web-1", "node-1", "10.244.1.5"),
            endpoint("web-2", "node-2", "10.244.2.5")
        ]);
        self.create(SLICES, &slice("web-a", &endpoints)).await;
    }

    async fn shows(&self, what: impl FnMut(&Arc<State>) -> bool) -> Arc<State> {
        let mut states = self.board.subscribe();
        let seen = timeout(Duration::from_secs(300), states.wait_for(what)).await;
        let Ok(state) = seen else {
            panic!("it shows {:#?}", self.board.read());
        };
        state.unwrap().clone()
    }

    fn is_full(state: &Arc<State>) -> bool {
        state.nodes.len() == 2
            && state
                .nodes
                .iter()
                .all(|node| node.pods.len() == 1 && node.pods[0].ready)
            && state
                .services
                .iter()
                .any(|service| service.endpoints.len() == 2)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.feeding.abort();
    }
}

fn whats(state: &State) -> Vec<&str> {
    state
        .timeline
        .entries()
        .map(|entry| &*entry.note.what)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_board_follows_the_cluster() {
    let world = World::new(Mode::Cluster);
    world.fill().await;
    let state = world.shows(World::is_full).await;
    assert_eq!(state.nodes[0].pods[0].addresses, ["10.244.1.5"]);
    assert_eq!(state.nodes[0].routes[0].destination, "10.244.2.0/24");
    assert!(
        state
            .services
            .iter()
            .any(|service| service.name == "web" && service.kind == "NodePort")
    );
    world
        .call(Method::DELETE, "/api/v1/nodes/node-2", &Value::Null)
        .await;
    let state = world.shows(|state| state.nodes.len() == 1).await;
    assert_eq!(state.nodes[0].name, "node-1");
    assert_eq!(state.nodes[0].routes, []);
}

#[tokio::test(start_paused = true)]
async fn changes_of_a_real_cluster_appear_in_the_timeline() {
    let world = World::new(Mode::Cluster);
    world.fill().await;
    world.shows(World::is_full).await;
    let before = world.board.read().timeline.entries().count();
    let three = json!({"endpoints": [
        endpoint("web-1", "node-1", "10.244.1.5"),
        endpoint("web-2", "node-2", "10.244.2.5"),
        endpoint("web-3", "node-2", "10.244.2.6")]});
    world
        .call(Method::PATCH, &format!("{SLICES}/web-a"), &three)
        .await;
    let more = |state: &Arc<State>| state.timeline.entries().count() > before;
    let state = world.shows(more).await;
    assert_eq!(
        whats(&state)[before..],
        ["Service default/web: +1 endpoint"]
    );
    world
        .call(Method::DELETE, "/api/v1/nodes/node-2", &Value::Null)
        .await;
    let state = world
        .shows(|state| whats(state).contains(&"node left"))
        .await;
    let last = state.timeline.entries().next_back().unwrap();
    assert_eq!(last.note.place.as_deref(), Some("node-2"));
}

#[tokio::test(start_paused = true)]
async fn pools_appear_when_their_kind_does_and_go_with_it() {
    let world = World::new(Mode::Cluster);
    world.fill().await;
    world.shows(World::is_full).await;
    assert_eq!(world.board.read().nodes[0].pool, None);
    let known = world.board.read().checks.len();
    let definition: Value = serde_saphyr::from_str(DEFINITION).unwrap();
    world.create(DEFINITIONS, &definition).await;
    let pool = config("node-1", "10.244.1.0/28", 16);
    while world
        .client
        .request_text(Request::get(CONFIGS).body(Vec::new()).unwrap())
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.create(CONFIGS, &pool).await;
    let state = world.shows(|state| state.nodes[0].pool.is_some()).await;
    assert_eq!(state.nodes[0].pool.unwrap().requested, Some(16));
    world
        .shows(|state| state.nodes[0].pool.unwrap().free == Some(15))
        .await;
    assert_eq!(world.board.read().checks.len(), known + 1);
    let name = definition["metadata"]["name"].as_str().unwrap();
    world
        .call(
            Method::DELETE,
            &format!("{DEFINITIONS}/{name}"),
            &Value::Null,
        )
        .await;
    world.shows(|state| state.nodes[0].pool.is_none()).await;
    world.shows(|state| state.checks.len() == known).await;
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_api_server_is_shown_and_the_last_state_stays() {
    let world = World::new(Mode::Cluster);
    world.fill().await;
    world.shows(World::is_full).await;
    let faults = world.server.faults();
    let away = faults.inject(Matcher::any(), Fault::Disconnect, Times::Always);
    faults.cut_watches(&Matcher::any(), Cut::MidFrame);
    let state = world.shows(|state| !state.cluster.reachable).await;
    assert_eq!(state.nodes.len(), 2);
    assert!(
        state.checks.iter().any(|check| !check.ok),
        "{:?}",
        state.checks
    );
    faults.remove(away);
    let state = world.shows(|state| state.cluster.reachable).await;
    assert_eq!(state.nodes.len(), 2);
    world
        .shows(|state| state.checks.iter().all(|check| check.ok))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_playground_adds_to_the_derived_state_and_loses_nothing() {
    let route = Route {
        destination: "10.244.9.0/24".to_owned(),
        via: "172.30.0.19".to_owned(),
        node: None,
    };
    let own = route.clone();
    let world = World::with(Mode::Playground, |feed| {
        feed.completing(move |state| {
            for node in &mut state.nodes {
                node.routes = vec![own.clone()];
            }
        })
    });
    let check = Check {
        name: "pod to pod".to_owned(),
        ok: true,
        detail: String::new(),
    };
    world
        .board
        .update(|state| state.checks = vec![check.clone()]);
    world.fill().await;
    let state = world.shows(World::is_full).await;
    for node in &state.nodes {
        assert_eq!(node.routes, std::slice::from_ref(&route));
    }
    assert_eq!(state.checks, [check]);
    assert_eq!(
        whats(&state),
        [""; 0],
        "the playground writes its own timeline"
    );
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_of_a_node_derives_nothing() {
    let derived = Arc::new(AtomicUsize::new(0));
    let counter = derived.clone();
    let world = World::with(Mode::Cluster, |feed| {
        feed.completing(move |_| {
            counter.fetch_add(1, Relaxed);
        })
    });
    world.fill().await;
    world.shows(World::is_full).await;
    // Shorter than the silence after which a watch is resumed, which is a change of its own.
    let settle = || tokio::time::sleep(Duration::from_secs(2));
    settle().await;
    let before = derived.load(Relaxed);
    let ready = |status: &str, minute: u8| {
        let time = format!("2026-01-01T00:{minute:02}:00Z");
        json!({"status": {"conditions": [
            {"type": "Ready", "status": status, "lastHeartbeatTime": time},
            {"type": "NetworkUnavailable", "status": "False"}]}})
    };
    for minute in 0..10 {
        let heartbeat = ready("True", minute);
        let path = "/api/v1/nodes/node-1/status";
        world.call(Method::PATCH, path, &heartbeat).await;
        settle().await;
    }
    assert_eq!(derived.load(Relaxed), before);
    let path = "/api/v1/nodes/node-1/status";
    world.call(Method::PATCH, path, &ready("False", 11)).await;
    world.shows(|state| !state.nodes[0].ready).await;
    assert_eq!(derived.load(Relaxed), before + 1);
}
