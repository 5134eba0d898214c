//! weft beside a running kube-proxy: the same clusters, the same edits, the same kernel state.
//!
//! Each has a network namespace of its own and watches the same API server. After every few edits
//! the two kernels are compared as `weft_ruleset::compare` does it. `WEFT_PROXY_CLUSTERS` says how
//! many clusters (3 without it); the seeds are 1, 2, 3 and so on, so a failure can be repeated.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use kube::{
    Client,
    api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};
use weft_apiserver::ApiServer;
use weft_model::IpFamily;
use weft_ruleset::{ComparisonOptions, Ruleset, compare};
use weft_testkit::{
    cluster::{Edit, NODE, ObjectName, RandomCluster},
    lab::{self, Lab, Namespace},
};

/// Flags of both.
const FLAGS: [&str; 6] = [
    "--proxy-mode=iptables",
    "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
    "--hostname-override=node-0",
    "--iptables-min-sync-period=0s",
    "--conntrack-max-per-core=0",
    "--healthz-bind-address=127.0.0.1:10256",
];

const PROGRAMS: [&str; 2] = ["iptables-nft", "iptables-legacy"];

/// Both have to agree within this time; kube-proxy tries again after 30 s when it fails.
const PATIENCE: Duration = Duration::from_secs(45);

#[test]
fn random_clusters_give_the_same_kernel_state_with_nft() {
    let Some(peer) = kube_proxy() else { return };
    lab::with_programs(&PROGRAMS, |lab| contest(lab, &peer, "nft"));
}

#[test]
fn random_clusters_give_the_same_kernel_state_with_legacy() {
    let Some(peer) = kube_proxy() else { return };
    lab::with_programs(&PROGRAMS, |lab| contest(lab, &peer, "legacy"));
}

#[test]
fn services_survive_switching_between_the_two_in_either_direction() {
    let Some(peer) = kube_proxy() else { return };
    lab::with_programs(&PROGRAMS, |lab| switch(lab, &peer, "nft"));
}

/// kube-proxy's binary; none is no failure unless `WEFT_MUST_RUN_PEERS` says so.
fn kube_proxy() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache/weft/peers/v1.36.4/bin"));
    let cache = env::var_os("WEFT_PEERS").map(PathBuf::from).or_else(home)?;
    let found = Some(cache.join("kube-proxy")).filter(|path| path.is_file());
    let required = env::var_os("WEFT_MUST_RUN_PEERS").is_some();
    assert!(found.is_some() || !required, "run `make peers` first");
    if found.is_none() {
        eprintln!("not run: no kube-proxy in {}", cache.display());
    }
    found
}

fn contest(lab: &Lab, peer: &Path, variant: &str) {
    let count: u64 = env::var("WEFT_PROXY_CLUSTERS").map_or(3, |text| text.parse().unwrap());
    let arena = Arena::new(lab, variant);
    let kube = lab.namespace("kube");
    let weft = lab.namespace("weft");
    arena.serve(&kube);
    arena.serve(&weft);
    let _kube_proxy = arena.start_kube_proxy(&kube, peer);
    let _weft_proxy = arena.start_weft(&weft);
    let mut services = 0;
    for seed in 1..=count {
        let mut cluster = RandomCluster::new(seed);
        arena.create_namespace(cluster.namespace());
        let start: Vec<Edit> = cluster
            .objects()
            .map(|(name, object)| Edit::Put(name.clone(), object.clone()))
            .collect();
        arena.apply(&start);
        for round in 0..5 {
            for _ in 0..9 {
                arena.apply(&cluster.edit());
            }
            arena.assert_agreement(&[&kube, &weft], &format!("seed {seed}, round {round}"));
        }
        services += cluster.services();
        arena.clear(&cluster);
    }
    arena.assert_agreement(&[&kube, &weft], "after everything was deleted");
    assert!(
        services >= 4 * usize::try_from(count).unwrap(),
        "too few Services to mean much"
    );
    let failures = Arena::metric(&weft, "partial_restore_failures_total");
    assert_eq!(
        failures, "",
        "a partial restore failed and nothing was broken"
    );
}

/// The rules go from one to the other and back, over changes that happen while neither runs.
fn switch(lab: &Lab, peer: &Path, variant: &str) {
    let arena = Arena::new(lab, variant);
    let node = lab.namespace("node");
    let beside = lab.namespace("beside");
    arena.serve(&node);
    arena.serve(&beside);
    let _reference = arena.start_kube_proxy(&beside, peer);
    let mut cluster = RandomCluster::new(4711);
    arena.create_namespace(cluster.namespace());
    for (name, object) in cluster.clone().objects() {
        arena.apply(&[Edit::Put(name.clone(), object.clone())]);
    }
    for round in 0..4 {
        for _ in 0..8 {
            arena.apply(&cluster.edit());
        }
        let running = if round % 2 == 0 {
            arena.start_weft(&node)
        } else {
            arena.start_kube_proxy(&node, peer)
        };
        arena.assert_agreement(&[&beside, &node], &format!("round {round}"));
        drop(running);
        let rules = arena.rules(&node, IpFamily::V4).to_string();
        assert!(rules.contains("KUBE-SERVICES"), "rules stay when it ends");
    }
}

/// An API server, and a directory whose programs are of one variant.
struct Arena {
    runtime: tokio::runtime::Runtime,
    server: ApiServer,
    client: Client,
    programs: tempfile::TempDir,
    variant: String,
}

/// A process that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Arena {
    fn new(_lab: &Lab, variant: &str) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let ranges = ["10.96.0.0/12", "fd00:10:96::/112"].map(|range| range.parse().unwrap());
        let server = {
            let _inside = runtime.enter();
            ApiServer::builder().service_ranges(ranges).build()
        };
        let programs = tempfile::tempdir().unwrap();
        for family in ["iptables", "ip6tables"] {
            for verb in ["", "-save", "-restore"] {
                let program = format!("{family}-{variant}{verb}");
                let target = Command::new("which").arg(&program).output().unwrap();
                let target = String::from_utf8(target.stdout).unwrap();
                let link = programs.path().join(format!("{family}{verb}"));
                symlink(target.trim(), link).unwrap();
            }
        }
        let client = {
            let _inside = runtime.enter();
            server.client()
        };
        Self {
            client,
            runtime,
            server,
            programs,
            variant: variant.to_owned(),
        }
    }

    /// Makes the API server reachable inside a namespace, on its loopback.
    fn serve(&self, namespace: &Namespace) {
        let listener = namespace.run(|| std::net::TcpListener::bind("127.0.0.1:6443").unwrap());
        listener.set_nonblocking(true).unwrap();
        let _inside = self.runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        self.server.serve_http(listener);
    }

    fn start_kube_proxy(&self, namespace: &Namespace, binary: &Path) -> Running {
        self.start(namespace, "kube-proxy", &[binary.to_str().unwrap()])
    }

    fn start_weft(&self, namespace: &Namespace) -> Running {
        let variant = format!("--iptables-variant={}", self.variant);
        let program = [env!("CARGO_BIN_EXE_weft"), "proxy", &variant];
        self.start(namespace, "weft", &program)
    }

    fn start(&self, namespace: &Namespace, name: &str, program: &[&str]) -> Running {
        let path = env::var("PATH").unwrap();
        let log = fs::File::create(self.programs.path().join(format!("{name}.log"))).unwrap();
        let child = namespace
            .command("env")
            .arg(format!("PATH={}:{path}", self.programs.path().display()))
            .args(program)
            .args(FLAGS)
            .arg("--master=http://127.0.0.1:6443")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Running(child)
    }

    fn api(&self, name: &ObjectName) -> Api<DynamicObject> {
        let (group, version) = match name.kind {
            "EndpointSlice" => ("discovery.k8s.io", "v1"),
            _ => ("", "v1"),
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, name.kind));
        if name.namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), &name.namespace, &resource)
        }
    }

    fn create_namespace(&self, name: &str) {
        let name = ObjectName {
            kind: "Namespace",
            namespace: String::new(),
            name: name.to_owned(),
        };
        let object = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name.name}});
        self.apply(&[Edit::Put(name, object)]);
    }

    fn apply(&self, edits: &[Edit]) {
        self.runtime.block_on(async {
            for edit in edits {
                match edit {
                    Edit::Put(name, object) => self.put(name, object).await,
                    Edit::Delete(name) => {
                        let deletion = DeleteParams::default();
                        self.api(name).delete(&name.name, &deletion).await.unwrap();
                    }
                }
            }
        });
    }

    async fn put(&self, name: &ObjectName, object: &Value) {
        let api = self.api(name);
        let mut object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let known = api.get_opt(&name.name).await.unwrap();
        let written = match known {
            None => api.create(&PostParams::default(), &object).await,
            Some(known) => {
                object.metadata.resource_version = known.metadata.resource_version;
                api.replace(&name.name, &PostParams::default(), &object)
                    .await
            }
        };
        let written = written.unwrap_or_else(|error| panic!("{name:?}: {error}\n{object:?}"));
        if name.kind == "Namespace" || name.kind == "EndpointSlice" {
            return;
        }
        let mut status = written;
        status.data["status"] = object.data.get("status").cloned().unwrap_or_default();
        let written = api
            .replace_status(&name.name, &PostParams::default(), &status)
            .await;
        written.unwrap_or_else(|error| panic!("{name:?}: {error}\n{status:?}"));
    }

    fn clear(&self, cluster: &RandomCluster) {
        let names = cluster.objects().map(|(name, _)| name.clone());
        let names = names.filter(|name| name.kind != "Node");
        let edits: Vec<Edit> = names.map(Edit::Delete).collect();
        self.apply(&edits);
    }

    fn rules(&self, namespace: &Namespace, family: IpFamily) -> Ruleset {
        let family_name = match family {
            IpFamily::V4 => "iptables",
            IpFamily::V6 => "ip6tables",
        };
        let text = namespace.program(&format!("{family_name}-{}-save", self.variant), &[]);
        Ruleset::parse(&text, family).unwrap()
    }

    fn differences(&self, sides: &[&Namespace; 2]) -> Vec<String> {
        IpFamily::ALL
            .into_iter()
            .flat_map(|family| {
                let [expected, found] = sides.map(|side| self.rules(side, family));
                let empty = expected.to_string().is_empty()
                    || !expected.to_string().contains("KUBE-SERVICES");
                let mut words: Vec<String> =
                    compare(&expected, &found, ComparisonOptions::default())
                        .iter()
                        .map(|difference| format!("{family}: {difference}"))
                        .collect();
                if empty {
                    words.push(format!("{family}: the reference has no rules yet"));
                }
                words
            })
            .collect()
    }

    /// Waits until both kernels hold the same.
    fn assert_agreement(&self, sides: &[&Namespace; 2], when: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let differences = self.differences(sides);
            if differences.is_empty() {
                return;
            }
            if Instant::now() > deadline {
                let logs = ["kube-proxy", "weft"].map(|name| {
                    let log = self.programs.path().join(format!("{name}.log"));
                    fs::read_to_string(log).unwrap_or_default()
                });
                panic!(
                    "{when}:\n{}\n{}",
                    differences.join("\n"),
                    logs.join("\n----\n")
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The lines of weft's metrics that contain a word and do not say zero.
    fn metric(namespace: &Namespace, word: &str) -> String {
        let page = namespace.run(|| {
            use std::io::{Read as _, Write as _};
            let mut socket = std::net::TcpStream::connect("127.0.0.1:10249").unwrap();
            let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            socket.write_all(request.as_bytes()).unwrap();
            let mut text = String::new();
            socket.read_to_string(&mut text).unwrap();
            text
        });
        assert!(page.contains("kubeproxy_sync_proxy_rules"), "{page}");
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        let wrong = lines.filter(|line| line.contains(word) && !line.ends_with(" 0"));
        wrong.collect::<Vec<_>>().join("\n")
    }
}

/// The clusters are made for this node.
const _: () = assert!(matches!(NODE.as_bytes(), b"node-0"));
