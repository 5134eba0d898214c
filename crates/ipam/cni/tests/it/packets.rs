//! Packet tests under the CNI project's own plugins: one network namespace is the node, others are
//! pods.

use std::{
    collections::BTreeMap,
    env, fs,
    net::{IpAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    time::Duration,
};

use serde_json::{Value, json};
use weft_testkit::{
    lab::{self, Lab, Namespace, speak},
    peer,
};

use crate::{
    daemon::{FakeDaemon, Received, Reply, four, six},
    plugin::{Ended, Node, PROGRAM, run},
};

/// Far beyond what a packet on one machine needs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sets up what the plugins require of a node.
fn prepare(lab: &Lab) {
    // They look themselves up by their process id, which is of the lab's process namespace.
    lab.program("mount", &["-t", "proc", "proc", "/proc"]);
    // A fresh bridge's own address is not used for a second, while the kernel looks for another
    // machine with the same; a connection begun in that second comes from the wrong address.
    fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap();
}

/// A node with one of the project's plugins and a daemon that hands out addresses one by one.
struct Cluster {
    node: Node,
    daemon: FakeDaemon,
    plugin: PathBuf,
    config: Value,
}

impl Cluster {
    fn new(plugin: PathBuf, version: &str, change: &Value) -> Self {
        let node = Node::new();
        let held = Mutex::new(BTreeMap::new());
        let daemon = FakeDaemon::start(&node.socket(), move |received| assign(&held, received));
        let mut config = node.config(version);
        for (key, value) in change.as_object().unwrap() {
            config[key] = value.clone();
        }
        Self {
            node,
            daemon,
            plugin,
            config,
        }
    }

    fn call(&self, command: &str, pod: &Namespace, config: &Value) -> Ended {
        delegate(&self.plugin, command, pod, config)
    }

    /// Adds a pod and returns the plugin's result with the pod's addresses.
    fn add(&self, pod: &Namespace) -> (Value, Vec<IpAddr>) {
        let ended = self.call("ADD", pod, &self.config);
        assert!(ended.succeeded, "{ended:?}");
        let result = ended.json();
        let ips = result["ips"].as_array().unwrap().iter();
        let address = |ip: &Value| {
            let net: ipnet::IpNet = ip["address"].as_str().unwrap().parse().unwrap();
            net.addr()
        };
        let addresses = ips.map(address).collect();
        (result, addresses)
    }

    fn check(&self, pod: &Namespace, result: &Value) -> Ended {
        let mut config = self.config.clone();
        config["prevResult"] = result.clone();
        self.call("CHECK", pod, &config)
    }

    fn released(&self) -> Vec<String> {
        self.daemon.containers("/network/releaseipconfigs")
    }
}

/// Calls a plugin of the project's, which calls ours.
fn delegate(plugin: &Path, command: &str, pod: &Namespace, config: &Value) -> Ended {
    let ours = Path::new(PROGRAM).parent().unwrap();
    let path = env::join_paths([ours, plugin.parent().unwrap()]).unwrap();
    let mut program = Command::new(plugin);
    program
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", pod.name())
        .env("CNI_NETNS", pod.path())
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", path)
        .env(
            "CNI_ARGS",
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p",
        );
    run(&mut program, config.to_string().as_bytes())
}

/// Assigns 10.1.0.10, 10.1.0.11 and so on, with an address of the other family, by key.
fn assign(held: &Mutex<BTreeMap<String, u8>>, received: &Received) -> Reply {
    let mut held = held.lock().unwrap();
    let fine = json!({"ReturnCode": 0, "Message": ""});
    let key = received.body["infraContainerID"].as_str();
    let key = key.unwrap_or_default().to_owned();
    let number = match received.path.as_str() {
        "/network/requestipconfigs" => {
            let next = 10 + u8::try_from(held.len()).unwrap();
            Some(*held.entry(key).or_insert(next))
        }
        "/v1/checkipconfigs" => held.get(&key).copied(),
        _ => {
            held.remove(&key);
            return Reply::json(&json!({"response": fine}));
        }
    };
    let Some(number) = number else {
        return Reply::json(&json!({"response": {"ReturnCode": 14, "Message": "unknown"}}));
    };
    let infos = [
        four(&format!("10.1.0.{number}")),
        six(&format!("fd00::{number}")),
    ];
    Reply::json(&json!({"podIPInfo": infos, "response": fine}))
}

/// True if the node, which is where the test itself runs, can connect to a pod.
fn node_reaches(pod: &Namespace, address: IpAddr) -> bool {
    let listener = pod.run(|| TcpListener::bind((address, 0)).unwrap());
    TcpStream::connect_timeout(&listener.local_addr().unwrap(), PATIENCE).is_ok()
}

/// Adds, checks and deletes two pods.
fn add_check_delete(lab: &Lab, cluster: &Cluster) {
    let (one, other) = (lab.namespace("one"), lab.namespace("other"));
    let (result, ours) = cluster.add(&one);
    let (_, theirs) = cluster.add(&other);
    let expected: [IpAddr; 2] = ["10.1.0.10".parse().unwrap(), "fd00::10".parse().unwrap()];
    assert_eq!(ours, expected);
    for (mine, address) in ours.iter().zip(&theirs) {
        assert_eq!(speak(&one, &other, *address), Some(*mine), "pod to pod");
        assert!(node_reaches(&other, *address), "node to {address}");
    }
    let checked = cluster.check(&one, &result);
    assert!(checked.succeeded, "{checked:?}");
    for pod in [&one, &other, &one] {
        let ended = cluster.call("DEL", pod, &cluster.config);
        assert!(ended.succeeded, "{ended:?}");
    }
    assert_eq!(cluster.released(), ["one", "other", "one"]);
    let links = one.program("ip", &["-o", "link"]);
    assert!(!links.contains("eth0"), "{links}");
}

#[test]
fn pods_behind_a_bridge_talk_over_both_families() {
    let Some(plugin) = peer("cni/bridge") else {
        return;
    };
    lab::inside(|lab| {
        prepare(lab);
        let change = json!({"type": "bridge", "bridge": "weft0", "isGateway": true});
        add_check_delete(lab, &Cluster::new(plugin, "1.0.0", &change));
    });
}

#[test]
fn pods_on_links_of_their_own_talk_over_both_families() {
    let Some(plugin) = peer("cni/ptp") else {
        return;
    };
    lab::inside(|lab| {
        prepare(lab);
        add_check_delete(lab, &Cluster::new(plugin, "1.1.0", &json!({"type": "ptp"})));
    });
}

#[test]
fn the_oldest_version_works_as_well() {
    let Some(plugin) = peer("cni/ptp") else {
        return;
    };
    lab::inside(|lab| {
        prepare(lab);
        let cluster = Cluster::new(plugin, "0.3.1", &json!({"type": "ptp"}));
        let pod = lab.namespace("pod");
        let (result, addresses) = cluster.add(&pod);
        assert_eq!(result["ips"][1]["version"], "6");
        assert!(addresses.iter().all(|address| node_reaches(&pod, *address)));
    });
}

#[test]
fn traffic_that_leaves_the_node_is_masqueraded() {
    let Some(plugin) = peer("cni/bridge") else {
        return;
    };
    lab::with_programs(&["iptables", "ip6tables"], |lab| {
        prepare(lab);
        let outside = lab.namespace("outside");
        let link = lab.bridge("outer0");
        link.address("192.0.2.1/24".parse().unwrap());
        outside.attach(&link, "eth0", "192.0.2.2/24".parse().unwrap());
        let change =
            json!({"type": "bridge", "bridge": "weft0", "isGateway": true, "ipMasq": true});
        let cluster = Cluster::new(plugin, "1.0.0", &change);
        let pod = lab.namespace("pod");
        cluster.add(&pod);
        let target: IpAddr = "192.0.2.2".parse().unwrap();
        let node: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!(speak(&pod, &outside, target), Some(node));
    });
}

#[test]
fn without_a_daemon_an_add_fails_with_our_code_and_a_del_succeeds() {
    let plugins: Vec<PathBuf> = ["cni/bridge", "cni/ptp"]
        .into_iter()
        .filter_map(peer)
        .collect();
    lab::inside(|lab| {
        prepare(lab);
        for plugin in plugins {
            let kind = plugin.file_name().unwrap().to_str().unwrap();
            let node = Node::new();
            let pod = lab.namespace(kind);
            let mut config = node.config("1.0.0");
            config["type"] = json!(kind);
            let added = delegate(&plugin, "ADD", &pod, &config);
            assert_eq!(
                (added.succeeded, &added.json()["code"]),
                (false, &json!(11))
            );
            let deleted = delegate(&plugin, "DEL", &pod, &config);
            assert!(deleted.succeeded, "{deleted:?}");
            assert_eq!(node.queued(), [kind]);
        }
    });
}

#[test]
fn a_plugin_that_fails_after_us_gives_the_address_back() {
    let Some(plugin) = peer("cni/ptp") else {
        return;
    };
    lab::inside(|lab| {
        prepare(lab);
        let cluster = Cluster::new(plugin, "1.0.0", &json!({"type": "ptp"}));
        let pod = lab.namespace("pod");
        cluster.add(&pod);
        // The interface is there already.
        let again = cluster.call("ADD", &pod, &cluster.config);
        assert!(!again.succeeded, "{again:?}");
        assert_eq!(cluster.released(), ["pod"]);
    });
}

#[test]
fn a_changed_reservation_is_found_by_check() {
    let Some(plugin) = peer("cni/ptp") else {
        return;
    };
    lab::inside(|lab| {
        prepare(lab);
        let cluster = Cluster::new(plugin, "1.0.0", &json!({"type": "ptp"}));
        let pod = lab.namespace("pod");
        let (result, _) = cluster.add(&pod);
        assert!(cluster.node.call("DEL", pod.name()).succeeded);
        let checked = cluster.check(&pod, &result);
        assert_eq!(
            (checked.succeeded, &checked.json()["code"]),
            (false, &json!(103))
        );
    });
}

#[test]
fn status_reaches_us_through_the_plugin() {
    for kind in ["bridge", "ptp"] {
        let Some(plugin) = peer(&format!("cni/{kind}")) else {
            return;
        };
        let node = Node::new();
        let mut config = node.config("1.1.0");
        config["type"] = json!(kind);
        let status = || {
            let mut program = Command::new(&plugin);
            program
                .env("CNI_COMMAND", "STATUS")
                .env("CNI_PATH", Path::new(PROGRAM).parent().unwrap());
            run(&mut program, config.to_string().as_bytes())
        };
        assert_eq!(status().json()["code"], 50, "{kind}");
        let _daemon = FakeDaemon::granting(&node.socket());
        assert!(status().succeeded, "{kind}");
    }
}
