//! Node mode: a controller on each of three nodes, each with the routes of its own kernel.
//!
//! All run in one process. A netlink socket stays in the namespace in which it was opened, so only
//! opening has to be done there.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use weft_apiserver::ApiServer;
use weft_providers::{NetlinkProvider, netlink::NetlinkSettings};
use weft_routes::ConditionPolicy;
use weft_routes_agent::{
    RouteEvents, RoutesMetrics, RoutesParts, RoutesSettings, StatusBoard, controller,
};
use weft_runtime::{Cluster, ControllerHandle, Gate, prometheus_text};
use weft_testkit::lab::{self, Lab, PodNetwork, node_addresses, pod_ranges};

/// Far beyond what anything here takes, and less than the minute after which the table is read
/// anyway.
const PATIENCE: Duration = Duration::from_secs(30);

struct Site {
    runtime: Runtime,
    _server: ApiServer,
    client: Client,
    network: PodNetwork,
}

impl Site {
    fn new(lab: &Lab) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (server, client) = runtime.block_on(async {
            let server = ApiServer::builder().build();
            let client = server.client();
            (server, client)
        });
        Self {
            client,
            _server: server,
            network: lab.pod_network(3),
            runtime,
        }
    }

    /// Starts the agent of a node.
    fn start(&self, number: u8) -> ControllerHandle {
        self.start_watched(number).0
    }

    /// Starts the agent of a node, and shows what it reports.
    fn start_watched(&self, number: u8) -> (ControllerHandle, Registry, StatusBoard) {
        let ranges = ["10.244.0.0/16", "fd00:10::/48"].map(|net| net.parse().unwrap());
        let provider = self.network.node(number).run(|| {
            let _context = self.runtime.enter();
            NetlinkProvider::open(NetlinkSettings::new(ranges)).unwrap()
        });
        let mut registry = Registry::default();
        let metrics = RoutesMetrics::register(&mut registry);
        let board = StatusBoard::default();
        let _context = self.runtime.enter();
        let parts = RoutesParts {
            cluster: Cluster::new("local", self.client.clone()),
            provider: Arc::new(provider.counting(metrics.calls.clone())),
            settings: RoutesSettings {
                conditions: ConditionPolicy::Off,
                ..RoutesSettings::new(ranges)
            },
            record_namespace: None,
            own_node: Some(format!("node-{number}")),
            metrics,
            events: RouteEvents::default(),
            board: board.clone(),
        };
        let controller = controller(parts, None);
        controller.set_gate(Gate::always_open());
        controller.start();
        (controller, registry, board)
    }

    fn stop(&self, agent: &ControllerHandle) {
        self.runtime.block_on(agent.stop());
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// A node joins, with ranges that need not be those of its number.
    fn join(&self, number: u8, ranges: u8) {
        let addresses = node_addresses(number).map(|address| {
            let address = address.to_string();
            json!({"type": "InternalIP", "address": address})
        });
        let node = json!({
            "metadata": {"name": format!("node-{number}")},
            "spec": {"podCIDRs": pod_ranges(ranges)},
            "status": {"addresses": addresses},
        });
        let node: Node = serde_json::from_value(node).unwrap();
        let created = async { self.nodes().create(&PostParams::default(), &node).await };
        self.runtime.block_on(created).unwrap();
    }

    fn leave(&self, number: u8) {
        let name = format!("node-{number}");
        let deleted = async { self.nodes().delete(&name, &DeleteParams::default()).await };
        self.runtime.block_on(deleted).unwrap();
    }

    fn ip(&self, number: u8, command: &str) -> String {
        let words: Vec<&str> = command.split(' ').collect();
        self.network.node(number).program("ip", &words)
    }

    /// Destinations and gateways of our routes on a node.
    fn table(&self, number: u8) -> Vec<String> {
        let mut routes = Vec::new();
        for family in ["-4", "-6"] {
            let text = self.ip(number, &format!("{family} route show proto 201"));
            routes.extend(text.lines().map(|line| {
                let words: Vec<&str> = line.split(' ').take(3).collect();
                words.join(" ")
            }));
        }
        routes.sort();
        routes
    }

    /// Waits until a node has routes to these ranges by these nodes, and no others.
    fn has_routes(&self, number: u8, to: &[(u8, u8)]) {
        let mut wanted = Vec::new();
        for (ranges, gateway) in to {
            let pairs = pod_ranges(*ranges)
                .into_iter()
                .zip(node_addresses(*gateway));
            wanted.extend(pairs.map(|(range, gateway)| format!("{range} via {gateway}")));
        }
        wanted.sort();
        let poll = async {
            while self.table(number) != wanted {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let came = self
            .runtime
            .block_on(async { tokio::time::timeout(PATIENCE, poll).await });
        assert!(
            came.is_ok(),
            "node {number} has {:?} and should have {wanted:?}",
            self.table(number)
        );
    }
}

#[test]
fn pods_reach_each_other_as_nodes_join_and_cease_to_as_they_leave() {
    lab::inside(|lab| {
        let site = Site::new(lab);
        let agents = [1, 2, 3].map(|number| site.start(number));
        site.join(1, 1);
        site.join(2, 2);
        site.has_routes(1, &[(2, 2)]);
        site.has_routes(2, &[(1, 1)]);
        assert_eq!(site.network.talk(1, 2), [true, true]);

        site.join(3, 3);
        site.has_routes(1, &[(2, 2), (3, 3)]);
        site.has_routes(2, &[(1, 1), (3, 3)]);
        site.has_routes(3, &[(1, 1), (2, 2)]);
        assert_eq!(site.network.talk(3, 1), [true, true]);
        assert_eq!(site.network.talk(2, 3), [true, true]);

        site.leave(2);
        site.has_routes(1, &[(3, 3)]);
        site.has_routes(3, &[(1, 1)]);
        assert_eq!(site.network.talk(1, 2), [false, false]);
        assert_eq!(site.network.talk(1, 3), [true, true]);

        for agent in &agents {
            site.stop(agent);
        }
        site.has_routes(1, &[(3, 3)]);
        assert_eq!(
            site.network.talk(1, 3),
            [true, true],
            "routes outlive their agent"
        );
    });
}

#[test]
fn routes_lost_with_a_link_or_deleted_from_outside_are_repaired() {
    lab::inside(|lab| {
        let site = Site::new(lab);
        for number in 1..=3 {
            site.join(number, number);
        }
        let _agents = [1, 2, 3].map(|number| site.start(number));
        for number in 1..=3 {
            let others = (1..=3).filter(|other| *other != number);
            let others: Vec<(u8, u8)> = others.map(|other| (other, other)).collect();
            site.has_routes(number, &others);
        }
        site.ip(1, "route del 10.244.2.0/24");
        site.has_routes(1, &[(2, 2), (3, 3)]);

        site.ip(1, "link set eth0 down");
        assert_eq!(site.table(1), [""; 0], "gone with the link");
        site.ip(1, "link set eth0 up");
        site.ip(1, "address replace fd00::1/64 dev eth0 nodad");
        site.has_routes(1, &[(2, 2), (3, 3)]);
        assert_eq!(site.network.talk(1, 2), [true, true]);
        assert_eq!(site.network.talk(3, 1), [true, true]);
    });
}

#[test]
fn routes_that_went_stale_while_an_agent_was_away_go_and_others_routes_stay() {
    lab::inside(|lab| {
        let site = Site::new(lab);
        for number in 1..=3 {
            site.join(number, number);
        }
        let agent = site.start(1);
        site.has_routes(1, &[(2, 2), (3, 3)]);
        site.stop(&agent);
        drop(agent);
        site.leave(2);
        site.leave(3);
        // Node 2 is gone, and node 3 came back with the ranges of node 2.
        site.join(3, 2);
        let foreign = "route add 10.244.9.0/24 via 10.0.0.3";
        site.ip(1, foreign);
        let _agent = site.start(1);
        site.has_routes(1, &[(2, 3)]);
        let kept = site.ip(1, "route show 10.244.9.0/24");
        assert!(kept.contains("via 10.0.0.3"), "{kept}");
    });
}

/// The lines of a metric with values other than 0.
fn series(registry: &Registry, name: &str) -> Vec<String> {
    let text = prometheus_text(registry);
    let lines = text.lines().filter(|line| line.starts_with(name));
    let lines = lines.filter(|line| !line.ends_with(" 0"));
    lines.map(str::to_owned).collect()
}

#[test]
fn the_bridge_of_the_nodes_own_pods_is_no_drift_and_a_foreign_route_is() {
    lab::inside(|lab| {
        let site = Site::new(lab);
        for number in 1..=3 {
            site.join(number, number);
        }
        site.ip(1, "link set pod0 down");
        let (_agent, registry, board) = site.start_watched(1);
        site.has_routes(1, &[(2, 2), (3, 3)]);

        // The first pod makes the bridge, and with its addresses the kernel makes its routes.
        site.ip(1, "link add weft0 type bridge");
        site.ip(1, "link set weft0 up");
        site.ip(1, "address add 10.244.1.129/25 dev weft0");
        site.ip(1, "address add fd00:10:0:1:8000::1/65 dev weft0 nodad");
        // So does a plugin for a single pod.
        site.ip(1, "route add 10.244.1.77/32 dev weft0");
        let pods = site.ip(1, "route show root 10.244.1.0/24");
        assert_eq!(pods.lines().count(), 2, "{pods}");
        // Another program's route to another node, which is drift. It is seen after the others.
        site.ip(1, "route add 10.244.9.0/24 via 10.0.0.3");
        let drift = "weft_routes_drift_total";
        let poll = async {
            while series(&registry, drift).is_empty() || board.read().table.len() < 5 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let found = site
            .runtime
            .block_on(async { tokio::time::timeout(PATIENCE, poll).await });
        let (drifted, table) = (series(&registry, drift), board.read().table);
        assert!(found.is_ok(), "{drifted:?} {table:?}");
        assert_eq!(drifted, ["weft_routes_drift_total{kind=\"appeared\"} 1"]);
        let left: Vec<&String> = (table.iter())
            .filter(|(_, row)| row.left_alone)
            .map(|(destination, _)| destination)
            .collect();
        assert_eq!(left, ["10.244.9.0/24"]);
    });
}
