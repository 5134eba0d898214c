//! `weft node`: three parts in one process, over a real kernel.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use http::Method;
use serde_json::{Value, json};
use weft_testkit::{
    lab::{self, Namespace, PodNetwork, node_addresses, pod_ranges},
    wait_until,
};
use weft_testserver::call;

use crate::{
    arena::{Arena, Running},
    ipam::{CONFIGS, DEFINITION, add},
    weft::{Run, run, weft},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// API server, proxy setup and directory of a node's process.
struct Stage {
    arena: Arena,
    directory: tempfile::TempDir,
}

impl Stage {
    /// An API server that knows NodeNetworkConfigs.
    fn new() -> Self {
        let stage = Self {
            arena: Arena::new("nft"),
            directory: tempfile::tempdir().unwrap(),
        };
        let definition: Value = serde_saphyr::from_str(DEFINITION).unwrap();
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        stage.call(Method::POST, definitions, &definition).unwrap();
        wait_until("the definition is served", PATIENCE, || {
            stage.call(Method::GET, CONFIGS, &Value::Null).is_ok()
        });
        stage.arena.create_namespace("default");
        let boot = stage.root("proc/sys/kernel/random/boot_id");
        fs::create_dir_all(boot.parent().unwrap()).unwrap();
        fs::write(boot, "boot").unwrap();
        let proxy = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n\
                     kind: KubeProxyConfiguration\n\
                     conntrack: {maxPerCore: 0}\n\
                     iptables: {minSyncPeriod: 10ms}\n";
        fs::write(stage.path("proxy.yaml"), proxy).unwrap();
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn root(&self, name: &str) -> PathBuf {
        self.path("root").join(name)
    }

    fn call(&self, method: Method, path: &str, body: &Value) -> Result<Value, kube::Error> {
        let _inside = self.arena.runtime.enter();
        let client = self.arena.server.client();
        self.arena
            .runtime
            .block_on(call(&client, method, path, body))
    }

    fn join(&self, number: u8) {
        let address =
            |ip: std::net::IpAddr| json!({"type": "InternalIP", "address": ip.to_string()});
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": format!("node-{number}")},
            "spec": {"podCIDRs": pod_ranges(number)},
            "status": {"addresses": node_addresses(number).map(address)},
        });
        self.call(Method::POST, "/api/v1/nodes", &node).unwrap();
    }

    /// Publishes addresses or blocks of a node.
    fn grant(&self, number: u8, ranges: &[String]) {
        let name = format!("node-{number}");
        let path = format!("/api/v1/nodes/{name}");
        let node = self.call(Method::GET, &path, &Value::Null).unwrap();
        let owner = json!({
            "apiVersion": "v1", "kind": "Node", "name": name, "controller": true,
            "uid": node["metadata"]["uid"],
        });
        let config = json!({
            "apiVersion": "ipam.weft.dev/v1alpha1", "kind": "NodeNetworkConfig",
            "metadata": {"name": name, "namespace": "kube-system", "ownerReferences": [owner]},
        });
        self.call(Method::POST, CONFIGS, &config).unwrap();
        let entries: Vec<Value> = ranges
            .iter()
            .map(|range| json!({"name": format!("id-{range}"), "ip": range}))
            .collect();
        let status = json!({"status": {
            "scaler": {"batchSize": 8, "requestThresholdPercent": 50, "maxIPCount": 8},
            "networkContainers": [{
                "id": "nc", "subnetName": "pool", "subnetAddressSpace": "10.244.0.0/16",
                "ipAssignments": entries, "version": 1,
            }],
        }});
        let path = format!("{CONFIGS}/{name}/status");
        self.call(Method::PATCH, &path, &status).unwrap();
    }

    fn add_service(&self, name: &str, address: &str) {
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"clusterIP": address, "ports": [{"port": 80}]},
        });
        let all = "/api/v1/namespaces/default/services";
        self.call(Method::POST, all, &service).unwrap();
    }

    fn start(&self, node: &Namespace) -> Running {
        let log = fs::File::create(self.path("node.log")).unwrap();
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let child = node
            .command(env!("CARGO_BIN_EXE_weft"))
            .args(["node", "--node-name=node-1", "--iptables-variant=nft"])
            .args(["--master=http://127.0.0.1:6443", "--cooldown=0s"])
            .args([
                "--cluster-cidr=10.244.0.0/16,fd00:10::/48",
                "--route-blocks",
            ])
            .arg(flag("proxy-config", &self.path("proxy.yaml")))
            .arg(flag("control-socket", &self.path("node.sock")))
            .arg(flag("socket", &self.path("ipam.sock")))
            .arg(flag("cni-queue", &self.path("queue")))
            .arg(flag("state-dir", &self.path("state")))
            .arg(flag("root-dir", &self.path("root")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Running(child)
    }

    fn order(&self, words: &[&str]) -> Run {
        let socket = format!("--control-socket={}", self.path("node.sock").display());
        run(&mut weft(&[&["node", &socket], words].concat()))
    }

    fn obeys(&self, words: &[&str]) {
        let answer = self.order(words);
        assert_eq!(answer.code, Some(0), "{words:?}: {}", answer.stderr);
    }

    /// States by name.
    fn parts(&self) -> Vec<(String, String)> {
        let text = self.order(&["status", "--json"]).stdout;
        let parts: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
        let word = |part: &Value, name: &str| part[name].as_str().unwrap().to_owned();
        let row = |part: &Value| (word(part, "name"), word(part, "state"));
        parts.iter().map(row).collect()
    }

    /// Waits until the parts are in these states, or in ones that begin so.
    fn shows(&self, expected: [(&str, &str); 3]) {
        let begun = Instant::now();
        loop {
            let parts = self.parts();
            let same = |(is, should): (&(String, String), &(&str, &str))| {
                is.0 == should.0 && is.1.starts_with(should.1)
            };
            if parts.len() == 3 && parts.iter().zip(&expected).all(same) {
                return;
            }
            let late = begun.elapsed() > PATIENCE;
            assert!(!late, "{parts:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("node.log")).unwrap_or_default()
    }

    fn until(&self, what: &str, test: impl Fn() -> bool) {
        let begun = Instant::now();
        while !test() {
            assert!(begun.elapsed() < PATIENCE, "never: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn routes(network: &PodNetwork) -> usize {
    let count = |family| {
        let shown = ["route", "show", "proto", "201"];
        let node = network.node(1);
        node.program("ip", &[&[family], &shown[..]].concat())
            .lines()
            .count()
    };
    count("-4") + count("-6")
}

fn has_rules(network: &PodNetwork, address: &str) -> bool {
    let rules = network.node(1).program("iptables-nft-save", &[]);
    rules.contains(&format!("{address}/32"))
}

const ALL: [(&str, &str); 3] = [
    ("ipam", "running"),
    ("proxy", "running"),
    ("routes", "running"),
];

#[test]
fn parts_of_a_node_start_stop_fail_and_restart_each_for_itself() {
    lab::with_programs(&["iptables-nft"], |lab| {
        let stage = Stage::new();
        let network = lab.pod_network(2);
        stage.arena.serve(network.node(1));
        for number in 1..=2 {
            stage.join(number);
        }
        let addresses: Vec<String> = (10..18).map(|last| format!("10.244.1.{last}")).collect();
        stage.grant(1, &addresses);
        stage.grant(2, &["10.244.200.0/28".to_owned()]);
        stage.add_service("first", "10.96.0.11");
        let mut process = stage.start(network.node(1));
        let socket = stage.path("ipam.sock");

        // Without a machine id no address is given out, and the other parts work.
        stage.shows([
            ("ipam", "failed: cannot read"),
            ("proxy", "running"),
            ("routes", "running"),
        ]);
        stage.until("rules", || has_rules(&network, "10.96.0.11"));
        stage.until("routes", || routes(&network) == 3);
        let block = ["route", "show", "10.244.200.0/28"];
        let block = network.node(1).program("ip", &block);
        assert!(block.contains("via 10.0.0.2"), "{block}");
        fs::create_dir_all(stage.root("etc")).unwrap();
        fs::write(stage.root("etc/machine-id"), "machine").unwrap();
        stage.shows(ALL);
        stage.until("an address", || matches!(add(&socket, "a"), Some(Ok(_))));
        let address = add(&socket, "a").unwrap();

        // One watch of this node for the two that need it.
        let watches = watches_of_this_node(&stage.path("node.sock"));
        assert_eq!(watches, [2], "one informer with two consumers");

        // Two parts go on without the third, and it catches up.
        stage.obeys(&["stop", "routes"]);
        stage.join(3);
        stage.add_service("second", "10.96.0.12");
        stage.until("rules", || has_rules(&network, "10.96.0.12"));
        assert!(matches!(add(&socket, "b"), Some(Ok(_))));
        assert_eq!(routes(&network), 3, "no process keeps them");
        stage.shows([ALL[0], ALL[1], ("routes", "stopped")]);
        stage.obeys(&["start", "routes"]);
        stage.until("routes again", || routes(&network) == 5);

        // The others restart without losing anything.
        stage.obeys(&["restart", "proxy"]);
        stage.obeys(&["restart", "ipam"]);
        stage.shows(ALL);
        stage.until("the same address", || add(&socket, "a") == Some(address));
        stage.add_service("third", "10.96.0.13");
        stage.until("rules", || has_rules(&network, "10.96.0.13"));
        let unknown = stage.order(&["stop", "route"]);
        assert_eq!(unknown.code, Some(1));
        let known = "expected one of ipam, proxy, routes";
        assert!(unknown.stderr.contains(known), "{}", unknown.stderr);

        // A new configuration is the proxy's business alone.
        let text = fs::read_to_string(stage.path("proxy.yaml")).unwrap();
        let other = text.replace("minSyncPeriod: 10ms", "masqueradeBit: 3");
        fs::write(stage.path("proxy.yaml"), other).unwrap();
        stage.until("the new mark", || {
            let rules = network.node(1).program("iptables-nft-save", &[]);
            rules.contains("--or-mark 0x8") || rules.contains("--set-xmark 0x8/0x8")
        });
        assert!(matches!(add(&socket, "c"), Some(Ok(_))));

        let pid = process.0.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(told.unwrap().success());
        assert!(process.0.wait().unwrap().success(), "{}", stage.log());
        assert!(has_rules(&network, "10.96.0.13"), "rules stay");
        assert_eq!(routes(&network), 5, "routes stay");
    });
}

/// The subscribers of each informer of this node's Node.
fn watches_of_this_node(socket: &Path) -> Vec<u64> {
    let informers = crate::ipam::ask(socket, "GET", "/debug/informers", &Value::Null).unwrap();
    let all = informers.as_array().unwrap();
    let own = all.iter().filter(|informer| {
        let kind = informer["kind"].as_str().unwrap();
        kind.starts_with("nodes") && informer["fieldSelector"] == "metadata.name=node-1"
    });
    own.map(|informer| informer["subscribers"].as_u64().unwrap())
        .collect()
}

#[test]
fn what_cannot_work_is_told_before_anything_starts() {
    for (flags, told) in [
        (&["--controllers=-*"][..], "nothing is left to run"),
        (&["--controllers=pods"], "there is no \"pods\""),
        (&["--controllers=routes"], "--cluster-cidr"),
        (
            &["--controllers=proxy", "--proxy-config=/nonexistent"],
            "/nonexistent",
        ),
    ] {
        let ended = run(&mut weft(&[&["node"], flags].concat()));
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(told), "{}", ended.stderr);
    }
}
