//! `--cloud-provider=netlink`: a process on each node, and packets between their pods.

use std::process::Stdio;

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use weft_apiserver::ApiServer;
use weft_testkit::lab::{self, PodNetwork, node_addresses, pod_ranges};

use super::stage::{Stage, becomes};
use crate::arena::Running;

const RANGES: &str = "--cluster-cidr=10.244.0.0/16,fd00:10::/48";

fn start(stage: &Stage, network: &PodNetwork, number: u8, flags: &[&str]) -> Running {
    let child = network
        .node(number)
        .command(env!("CARGO_BIN_EXE_weft"))
        .args(["routes", "--cloud-provider=netlink", RANGES])
        .arg(format!("--node-name=node-{number}"))
        .args(["--master=http://127.0.0.1:6443", "--secure-port=0"])
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(
            std::fs::File::create(stage.directory.path().join(format!("{number}.log"))).unwrap(),
        )
        .spawn()
        .unwrap();
    Running(child)
}

fn join(stage: &Stage, number: u8) {
    let address = |ip: std::net::IpAddr| json!({"type": "InternalIP", "address": ip.to_string()});
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": format!("node-{number}")},
        "spec": {"podCIDRs": pod_ranges(number)},
        "status": {"addresses": node_addresses(number).map(address)},
    }))
    .unwrap();
    let how = PostParams::default();
    let nodes = stage.nodes();
    stage.runtime.block_on(nodes.create(&how, &node)).unwrap();
}

fn routes(network: &PodNetwork, number: u8) -> usize {
    let count = |family| {
        let node = network.node(number);
        let text = node.program("ip", &[family, "route", "show", "proto", "201"]);
        text.lines().count()
    };
    count("-4") + count("-6")
}

#[test]
fn every_node_routes_to_the_others_and_cleans_up_on_request() {
    lab::inside(|lab| {
        let stage = Stage::of(ApiServer::builder());
        let network = lab.pod_network(3);
        let mut agents = Vec::new();
        for number in 1..=3 {
            stage.serve(network.node(number));
            agents.push(start(&stage, &network, number, &[]));
            join(&stage, number);
        }
        for number in 1..=3 {
            becomes(&4, || routes(&network, number));
        }
        assert_eq!(network.talk(1, 3), [true, true]);
        assert_eq!(network.talk(3, 2), [true, true]);

        let how = DeleteParams::default();
        let nodes = stage.nodes();
        stage
            .runtime
            .block_on(nodes.delete("node-2", &how))
            .unwrap();
        becomes(&2, || routes(&network, 1));
        becomes(&2, || routes(&network, 3));

        agents.clear();
        assert_eq!(
            network.talk(1, 3),
            [true, true],
            "routes outlive the process"
        );
        let mut cleanup = start(&stage, &network, 1, &["--cleanup"]);
        assert!(
            cleanup.0.wait().unwrap().success(),
            "{}",
            stage.log("1.log")
        );
        assert_eq!(routes(&network, 1), 0);
        assert_eq!(routes(&network, 3), 2, "only of this machine");
    });
}
