//! The program with many nodes.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use weft_apiserver::ApiServer;
use weft_testkit::{
    bench::{Report, Target, is_quick},
    free_port,
    usage::{Usage, anonymous_megabytes},
};

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program that is measured. Both keep the routes of all nodes.
#[derive(Clone, Copy)]
enum Program {
    Routes,
    /// `weft controller` with the live page, which watches all nodes as well.
    Dashboard,
}

impl Program {
    fn command(self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        match self {
            Self::Routes => command.arg("routes"),
            Self::Dashboard => command.args([
                "controller".to_owned(),
                format!("--dashboard=127.0.0.1:{}", free_port()),
            ]),
        };
        command
    }
}

pub(crate) fn measure(report: &mut Report) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (few, many) = if is_quick() { (5, 50) } else { (500, 5_000) };
    let cost = |count, program| async move {
        let cluster = Cluster::start(count, program).await;
        cluster.cost_of_heartbeat().await
    };
    let of_few = runtime.block_on(cost(few, Program::Routes));
    runtime.block_on(many_nodes(report, many, of_few));
    let of_few = runtime.block_on(cost(few, Program::Dashboard));
    let of_many = runtime.block_on(cost(many, Program::Dashboard));
    heartbeat(
        report,
        "weft controller with --dashboard",
        many,
        of_many,
        of_few,
    );
}

/// Adds the cost of a heartbeat, which must not grow with the number of nodes.
fn heartbeat(report: &mut Report, program: &str, count: usize, cost: f64, cost_of_few: f64) {
    report.comparison(
        &format!("processor time of {program} for a heartbeat of one of {count} nodes; peer: of a tenth as many"),
        "µs",
        cost,
        cost_of_few,
        if is_quick() {
            Target::None
        } else {
            Target::RatioAtMost(1.5)
        },
    );
}

async fn many_nodes(report: &mut Report, count: usize, cost_of_few: f64) {
    let cluster = Cluster::start(count, Program::Routes).await;
    report.figure(
        &format!("start until {count} nodes have routes and conditions"),
        "s",
        cluster.took.as_secs_f64(),
        Target::None,
    );
    tokio::time::sleep(Duration::from_secs(if is_quick() { 1 } else { 20 })).await;
    report.figure(
        &format!("RssAnon of weft routes, {count} nodes in memory"),
        "MB",
        anonymous_megabytes(cluster.running.0.id()).unwrap(),
        if is_quick() {
            Target::None
        } else {
            Target::AtMost(60.0)
        },
    );
    let cost = cluster.cost_of_heartbeat().await;
    heartbeat(report, "weft routes", count, cost, cost_of_few);
}

/// Nodes that have routes, and the program that made them.
struct Cluster {
    nodes: Api<Node>,
    count: usize,
    running: Running,
    /// From the start of the program until all nodes were available.
    took: Duration,
    _server: ApiServer,
}

impl Cluster {
    async fn start(count: usize, program: Program) -> Self {
        let server = ApiServer::builder().build();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        server.serve_http(listener);
        let nodes: Api<Node> = Api::all(server.client());
        for number in 0..count {
            let node = node(number);
            nodes.create(&PostParams::default(), &node).await.unwrap();
        }
        let child = program
            .command()
            .args(["--cloud-provider=memory", "--secure-port=0"])
            .args(["--cluster-cidr=10.64.0.0/10", "--leader-elect=false"])
            .arg(format!("--master=http://{address}"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let running = Running(child);
        let begun = Instant::now();
        let patience = Duration::from_secs(300);
        while available(&nodes).await < count {
            assert!(begun.elapsed() < patience, "not all nodes became available");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Self {
            nodes,
            count,
            running,
            took: begun.elapsed(),
            _server: server,
        }
    }

    /// Microseconds of processor time for one heartbeat, from decoding it to doing nothing.
    async fn cost_of_heartbeat(&self) -> f64 {
        let beats = if is_quick() { 50 } else { 4_000 };
        let quiet = Duration::from_secs(2);
        // What the start left to do, such as writing the record.
        tokio::time::sleep(quiet).await;
        let before = Usage::of(self.running.0.id()).unwrap().own;
        for beat in 0..beats {
            let ready =
                json!({"type": "Ready", "status": "True", "message": format!("beat-{beat}")});
            let patch = Patch::Strategic(json!({"status": {"conditions": [ready]}}));
            let name = format!("node-{}", beat % self.count);
            let params = PatchParams::default();
            self.nodes
                .patch_status(&name, &params, &patch)
                .await
                .unwrap();
        }
        tokio::time::sleep(quiet).await;
        let after = Usage::of(self.running.0.id()).unwrap().own;
        let spent = after.saturating_sub(before);
        spent.as_secs_f64() * 1e6 / f64::from(u32::try_from(beats).unwrap())
    }
}

async fn available(nodes: &Api<Node>) -> usize {
    let list = nodes.list(&ListParams::default()).await.unwrap();
    let routed = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
        conditions.is_some_and(|conditions| {
            conditions
                .iter()
                .any(|condition| condition.reason.as_deref() == Some("RouteCreated"))
        })
    };
    list.iter().filter(|node| routed(node)).count()
}

/// With what a node of a cloud usually carries: labels, images, conditions.
fn node(number: usize) -> Node {
    let (high, low) = (number / 256, number % 256);
    let images: Vec<_> = (0..20)
        .map(|image| {
            json!({"names": [format!("registry.example/team/image-{image}@sha256:{number:064x}")],
                "sizeBytes": 100_000_000})
        })
        .collect();
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("node-{number}"),
            "labels": {
                "kubernetes.io/hostname": format!("node-{number}"),
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": "cx42",
                "topology.kubernetes.io/region": "fsn1",
                "topology.kubernetes.io/zone": "fsn1-dc14",
            },
        },
        "spec": {
            "podCIDR": format!("10.{}.{low}.0/24", 64 + high),
            "podCIDRs": [format!("10.{}.{low}.0/24", 64 + high)],
            "providerID": format!("memory://{number}"),
        },
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": format!("172.16.{high}.{low}")},
                {"type": "Hostname", "address": format!("node-{number}")},
            ],
            "images": images,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }))
    .unwrap()
}
