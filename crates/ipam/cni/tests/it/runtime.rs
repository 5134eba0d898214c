//! A driver that calls a chain of plugins as CRI-O does, by the rules of libcni: containerd calls
//! neither CHECK nor GC.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use weft_testkit::{
    lab::{self, Namespace},
    peer,
};

use crate::{
    daemon::{FakeDaemon, Received, Reply, four, six},
    plugin::{Ended, Node, PROGRAM, run},
};

/// A container runtime with one network.
struct Runtime {
    node: Node,
    daemon: FakeDaemon,
    held: Held,
    directories: Vec<PathBuf>,
    plugins: Vec<Value>,
    /// Results of ADD, which the runtime keeps for CHECK and DEL.
    cache: BTreeMap<String, Value>,
}

type Held = Arc<Mutex<BTreeMap<String, u8>>>;

/// A daemon that assigns by container, and collects what GC does not list.
fn answer(held: &Held, received: &Received) -> Reply {
    let mut held = held.lock().unwrap();
    let fine = json!({"ReturnCode": 0, "Message": ""});
    let key = received.body["infraContainerID"].as_str().unwrap_or("");
    let infos = |number: u8| {
        json!({"podIPInfo": [four(&format!("10.1.0.{number}")), six(&format!("fd00::{number}"))],
               "response": {"ReturnCode": 0, "Message": ""}})
    };
    Reply::json(&match received.path.as_str() {
        "/network/requestipconfigs" => {
            let next = (10..=250).find(|number| held.values().all(|taken| taken != number));
            infos(*held.entry(key.to_owned()).or_insert(next.unwrap()))
        }
        "/v1/checkipconfigs" => match held.get(key) {
            Some(number) => infos(*number),
            None => json!({"response": {"ReturnCode": 14, "Message": "unknown"}}),
        },
        "/v1/gc" => {
            let list = received.body["validAttachments"].as_array().unwrap();
            let before = held.len();
            held.retain(|key, _| {
                list.iter()
                    .any(|valid| valid["containerID"] == key.as_str())
            });
            json!({"released": before - held.len(), "response": fine})
        }
        "/v1/status" => json!({"serving": "ready", "response": fine}),
        _ => {
            held.remove(key);
            json!({"response": fine})
        }
    })
}

impl Runtime {
    /// A runtime whose main plugin is this, with one more that passes results on.
    fn new(main: &Value, directory: Option<&Path>) -> Self {
        let node = Node::new();
        let held = Held::default();
        let shared = held.clone();
        let daemon = FakeDaemon::start(&node.socket(), move |received| answer(&shared, received));
        let own = node.path("bin");
        fs::create_dir(&own).unwrap();
        let script = |name: &str, text: &str| {
            let path = own.join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        // Calls its IPAM plugin for everything, as a main plugin does.
        script("stand-in", &format!("exec {PROGRAM}"));
        // Like portmap: its result is the previous one.
        let pass_on = r#"[ "$CNI_COMMAND" = ADD ] || exec cat > /dev/null
            sed 's/.*"prevResult":\(.*\),"type":"pass-on".*/\1/'"#;
        script("pass-on", pass_on);
        let mut first = node.config("1.1.0");
        for (key, value) in main.as_object().unwrap() {
            first[key] = value.clone();
        }
        let ours = Path::new(PROGRAM).parent().unwrap();
        let mut directories = vec![own, ours.to_owned()];
        directories.extend(directory.map(Path::to_owned));
        Self {
            node,
            daemon,
            held,
            directories,
            plugins: vec![first, json!({"type": "pass-on"})],
            cache: BTreeMap::new(),
        }
    }

    /// One plugin, with the configuration that libcni makes for it.
    fn call(&self, command: &str, plugin: &Value, pod: Option<&Pod>, extra: &Value) -> Ended {
        let mut config = plugin.clone();
        config["name"] = json!("podnet");
        config["cniVersion"] = json!("1.1.0");
        for (key, value) in extra.as_object().unwrap() {
            config[key] = value.clone();
        }
        let kind = plugin["type"].as_str().unwrap();
        let mut candidates = self
            .directories
            .iter()
            .map(|directory| directory.join(kind));
        let mut program = Command::new(candidates.find(|path| path.is_file()).unwrap());
        program
            .env("CNI_COMMAND", command)
            .env("CNI_PATH", env::join_paths(&self.directories).unwrap());
        if let Some(pod) = pod {
            program
                .env("CNI_CONTAINERID", &pod.id)
                .env("CNI_NETNS", &pod.network)
                .env("CNI_IFNAME", "eth0")
                .env(
                    "CNI_ARGS",
                    "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=x",
                );
        }
        run(&mut program, config.to_string().as_bytes())
    }

    fn add(&mut self, pod: &Pod) -> Value {
        let mut extra = json!({});
        for plugin in &self.plugins {
            let ended = self.call("ADD", plugin, Some(pod), &extra);
            assert!(ended.succeeded, "{plugin}: {ended:?}");
            extra = json!({"prevResult": ended.json()});
        }
        let result = extra["prevResult"].clone();
        self.cache.insert(pod.id.clone(), result.clone());
        result
    }

    /// The first failure of a plugin in the chain.
    fn check(&self, pod: &Pod) -> Result<(), Ended> {
        let extra = json!({"prevResult": self.cache[&pod.id]});
        let mut plugins = self.plugins.iter();
        let failed = plugins.find_map(|plugin| {
            Some(self.call("CHECK", plugin, Some(pod), &extra)).filter(|ended| !ended.succeeded)
        });
        failed.map_or(Ok(()), Err)
    }

    /// In reverse, with the cached result if there is one.
    fn delete(&mut self, pod: &Pod) {
        let mut extra = json!({});
        if let Some(result) = self.cache.remove(&pod.id) {
            extra["prevResult"] = result;
        }
        for plugin in self.plugins.iter().rev() {
            let ended = self.call("DEL", plugin, Some(pod), &extra);
            assert!(ended.succeeded, "{plugin}: {ended:?}");
        }
    }

    /// Deletes cached attachments that are not valid, and then has every plugin collect its own.
    fn collect(&mut self, valid: &[&Pod]) {
        let is_valid = |id: &String| valid.iter().any(|pod| pod.id == *id);
        let gone: Vec<String> = (self.cache.keys())
            .filter(|id| !is_valid(id))
            .cloned()
            .collect();
        for id in gone {
            // Its network namespace is gone.
            let network = PathBuf::new();
            self.delete(&Pod { id, network });
        }
        let list: Vec<Value> = (valid.iter())
            .map(|pod| json!({"containerID": pod.id, "ifname": "eth0"}))
            .collect();
        let extra = json!({"cni.dev/valid-attachments": list, "cni.dev/attachments": list});
        for plugin in &self.plugins {
            let ended = self.call("GC", plugin, None, &extra);
            assert!(ended.succeeded, "{plugin}: {ended:?}");
        }
    }

    /// The first failure of a plugin in the chain.
    fn status(&self) -> Result<(), Ended> {
        let mut plugins = self.plugins.iter();
        let failed = plugins.find_map(|plugin| {
            let ended = self.call("STATUS", plugin, None, &json!({}));
            Some(ended).filter(|ended| !ended.succeeded)
        });
        failed.map_or(Ok(()), Err)
    }

    fn holders(&self) -> Vec<String> {
        self.held.lock().unwrap().keys().cloned().collect()
    }

    fn requests(&self, path: &str) -> usize {
        let received = self.daemon.received();
        received
            .iter()
            .filter(|request| request.path == path)
            .count()
    }
}

struct Pod {
    id: String,
    network: PathBuf,
}

impl Pod {
    fn of(network: &Namespace) -> Self {
        Self {
            id: network.name().to_owned(),
            network: network.path(),
        }
    }

    /// For plugins that make no interface.
    fn named(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            network: PathBuf::from("/run/netns").join(id),
        }
    }
}

#[test]
fn a_runtime_that_checks_and_collects_finds_leaks_and_nothing_else() {
    let mut runtime = Runtime::new(&json!({"type": "stand-in"}), None);
    runtime.status().unwrap();
    let [one, two, lost] = ["one", "two", "lost"].map(Pod::named);
    for pod in [&one, &two, &lost] {
        let result = runtime.add(pod);
        assert_eq!(result["ips"].as_array().unwrap().len(), 2, "{result}");
        runtime.check(pod).unwrap();
    }
    // The runtime loses its record of a sandbox, as in a crash between ADD and its own commit.
    runtime.cache.remove("lost");
    runtime.collect(&[&one, &two]);
    assert_eq!(runtime.holders(), ["one", "two"]);
    for pod in [&one, &two] {
        runtime.check(pod).unwrap();
    }
    // A sandbox that is in the cache and no longer valid gets a DEL.
    runtime.collect(&[&one]);
    assert_eq!(runtime.holders(), ["one"]);
    assert_eq!(runtime.requests("/network/releaseipconfigs"), 1);
    // The address of a pod is lost behind the runtime's back: CHECK says so, and only for this pod.
    let late = runtime.node.call("DEL", "one");
    assert!(late.succeeded, "{late:?}");
    assert_eq!(runtime.check(&one).unwrap_err().code(), 103);
    runtime.delete(&one);
    runtime.delete(&one);
    assert_eq!(runtime.holders(), [""; 0]);
    runtime.collect(&[]);
    assert_eq!(runtime.requests("/v1/gc"), 3);
    runtime.status().unwrap();
}

#[test]
fn a_runtime_without_a_daemon_fails_where_it_should() {
    let mut runtime = Runtime::new(&json!({"type": "stand-in"}), None);
    let pod = Pod::named("one");
    runtime.add(&pod);
    runtime.daemon.leave();
    assert_eq!(
        runtime.status().unwrap_err().code(),
        50,
        "it was never asked"
    );
    assert_eq!(runtime.check(&pod).unwrap_err().code(), 11);
    runtime.delete(&pod);
    assert_eq!(runtime.node.queued(), ["one"], "released later");
}

#[test]
fn the_projects_bridge_passes_checks_on_and_answers_collections() {
    let Some(plugin) = peer("cni/bridge") else {
        return;
    };
    lab::inside(|lab| {
        lab.program("mount", &["-t", "proc", "proc", "/proc"]);
        fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap();
        let main = json!({"type": "bridge", "bridge": "weft0", "isGateway": true,
                          "forceAddress": true, "hairpinMode": true});
        let mut runtime = Runtime::new(&main, plugin.parent());
        runtime.status().unwrap();
        let (first, second) = (lab.namespace("one"), lab.namespace("two"));
        let (one, two) = (Pod::of(&first), Pod::of(&second));
        runtime.add(&one);
        runtime.add(&two);
        runtime.check(&one).unwrap();
        // A pod whose address somebody took away.
        second.program("ip", &["address", "flush", "dev", "eth0"]);
        assert!(runtime.check(&two).is_err());
        runtime.collect(&[&one]);
        assert_eq!(runtime.holders(), ["one"], "by a DEL");
        runtime.check(&one).unwrap();
        runtime.delete(&one);
        assert_eq!(runtime.holders(), [""; 0]);
        assert_eq!(runtime.requests("/v1/checkipconfigs"), 3);
        assert_eq!(
            runtime.requests("/v1/gc"),
            0,
            "bridge 1.6.2 answers GC itself: docs/ipam.md says so"
        );
    });
}

#[test]
fn a_node_with_another_range_starts_pods_at_once() {
    let Some(plugin) = peer("cni/bridge") else {
        return;
    };
    lab::inside(|lab| {
        lab.program("mount", &["-t", "proc", "proc", "/proc"]);
        for (force, works) in [(true, true), (false, false)] {
            let main = json!({"type": "bridge", "bridge": "weft0", "isGateway": true,
                              "forceAddress": force});
            lab.bridge("weft0");
            lab.program("ip", &["address", "add", "10.244.3.1/24", "dev", "weft0"]);
            let runtime = Runtime::new(&main, plugin.parent());
            let network = lab.namespace(if force { "forced" } else { "stuck" });
            let pod = Pod::of(&network);
            let ended = runtime.call("ADD", &runtime.plugins[0], Some(&pod), &json!({}));
            assert_eq!(ended.succeeded, works, "{ended:?}");
            let told = ended
                .stdout
                .contains("already has an IP address different from");
            assert_eq!(told, !works, "{ended:?}");
            lab.program("ip", &["link", "delete", "weft0"]);
        }
    });
}
