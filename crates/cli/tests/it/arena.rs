//! An API server and proxies in network namespaces of their own.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use kube::{
    Client,
    api::{
        Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams,
    },
};
use serde_json::{Value, json};
use weft_apiserver::{ApiServer, Builder};
use weft_model::IpFamily;
use weft_proxy::config::KubeProxyConfiguration;
use weft_proxy_agent::offline::Snapshot;
use weft_ruleset::{ComparisonOptions, Ruleset, compare};
use weft_testkit::{
    cluster::{Edit, NODE, ObjectName, RandomCluster},
    lab::Namespace,
};

/// Flags of every proxy here.
const FLAGS: [&str; 6] = [
    "--proxy-mode=iptables",
    "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
    "--hostname-override=node-0",
    "--iptables-min-sync-period=0s",
    "--conntrack-max-per-core=0",
    "--healthz-bind-address=127.0.0.1:10256",
];

/// Kernels have to agree within this time; kube-proxy tries again after 30 s when it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(45);

/// An API server, and a directory whose programs are of one variant.
pub(crate) struct Arena {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) server: ApiServer,
    client: Client,
    pub(crate) programs: tempfile::TempDir,
    pub(crate) variant: String,
    /// Number of marks so far.
    marks: AtomicU16,
}

/// A Service and its endpoints, with ports that no other mark has. A kernel that has its rules has
/// those of everything that was written earlier to the same kinds of objects.
struct Mark {
    port: u16,
    target: u16,
}

impl Mark {
    const ENDPOINTS: [(IpFamily, &'static str); 2] = [
        (IpFamily::V4, "10.244.250.1"),
        (IpFamily::V6, "fd00:10:244:250::1"),
    ];

    fn of(number: u16) -> Self {
        Self {
            port: 40_000 + number,
            target: 50_000 + number,
        }
    }

    fn edits(&self) -> Vec<Edit> {
        let name = |kind, name: &str| ObjectName {
            kind,
            namespace: "default".to_owned(),
            name: name.to_owned(),
        };
        let port = json!({"port": self.port, "protocol": "TCP"});
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "mark", "namespace": "default"},
            "spec": {"ipFamilyPolicy": "RequireDualStack", "ports": [port]},
        });
        let mut edits = vec![Edit::Put(name("Service", "mark"), service)];
        edits.extend(Self::ENDPOINTS.map(|(family, address)| {
            let slice = format!("mark-{family}").to_lowercase();
            let object = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": slice, "namespace": "default",
                    "labels": {"kubernetes.io/service-name": "mark"}},
                "addressType": family.to_string(),
                "endpoints": [{"addresses": [address]}],
                "ports": [{"port": self.target, "protocol": "TCP"}],
            });
            Edit::Put(name("EndpointSlice", &slice), object)
        }));
        edits
    }

    /// The part of the mark that a kernel does not have yet.
    fn missing(&self, rules: &Ruleset) -> Option<String> {
        let text = rules.to_string();
        let shows = |wanted: String| text.lines().any(|line| line.contains(&wanted));
        let service = shows(format!("--dport {} -j KUBE-SVC-", self.port));
        let endpoint = shows(format!(":{}", self.target));
        (!service || !endpoint).then(|| format!("nothing of port {} yet", self.port))
    }
}

/// A process that ends with its test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Arena {
    /// Ranges of ClusterIPs.
    pub(crate) const SERVICE_RANGES: [&str; 2] = ["10.96.0.0/12", "fd00:10:96::/112"];

    pub(crate) fn new(variant: &str) -> Self {
        Self::of(variant, ApiServer::builder())
    }

    pub(crate) fn of(variant: &str, server: Builder) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let ranges = Self::SERVICE_RANGES.map(|range| range.parse().unwrap());
        let server = {
            let _inside = runtime.enter();
            server.service_ranges(ranges).build()
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
            marks: AtomicU16::new(0),
        }
    }

    /// Makes the API server reachable inside a namespace, on its loopback.
    pub(crate) fn serve(&self, namespace: &Namespace) {
        let listener = namespace.run(|| std::net::TcpListener::bind("127.0.0.1:6443").unwrap());
        listener.set_nonblocking(true).unwrap();
        let _inside = self.runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        self.server.serve_http(listener);
    }

    pub(crate) fn start_kube_proxy(&self, namespace: &Namespace, binary: &Path) -> Running {
        self.start(namespace, "kube-proxy", &[binary.to_str().unwrap()])
    }

    pub(crate) fn start_weft(&self, namespace: &Namespace) -> Running {
        self.start_weft_with(namespace, &[])
    }

    pub(crate) fn start_weft_with(&self, namespace: &Namespace, flags: &[&str]) -> Running {
        let variant = format!("--iptables-variant={}", self.variant);
        let mut program = vec![env!("CARGO_BIN_EXE_weft"), "proxy", &variant];
        program.extend(flags);
        self.start(namespace, "weft", &program)
    }

    pub(crate) fn start(&self, namespace: &Namespace, name: &str, program: &[&str]) -> Running {
        let path = env::var("PATH").unwrap();
        let log = fs::File::create(self.programs.path().join(format!("{name}.log"))).unwrap();
        // The last of two values would count.
        let is_given = |flag: &str| {
            let name = flag.split_inclusive('=').next().unwrap_or(flag);
            program.iter().any(|given| given.starts_with(name))
        };
        let child = namespace
            .command("env")
            .arg(format!("PATH={}:{path}", self.programs.path().display()))
            .args(program)
            .args(FLAGS.iter().filter(|flag| !is_given(flag)))
            .arg("--master=http://127.0.0.1:6443")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Running(child)
    }

    pub(crate) fn api(&self, name: &ObjectName) -> Api<DynamicObject> {
        let (group, version) = match name.kind {
            "EndpointSlice" => ("discovery.k8s.io", "v1"),
            "Event" => ("events.k8s.io", "v1"),
            "ServiceCIDR" => ("networking.k8s.io", "v1"),
            "ClusterRole" | "ClusterRoleBinding" => ("rbac.authorization.k8s.io", "v1"),
            _ => ("", "v1"),
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, name.kind));
        if name.namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), &name.namespace, &resource)
        }
    }

    pub(crate) fn create_namespace(&self, name: &str) {
        let name = ObjectName {
            kind: "Namespace",
            namespace: String::new(),
            name: name.to_owned(),
        };
        let object = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name.name}});
        self.apply(&[Edit::Put(name, object)]);
    }

    /// Creates the roles and bindings of a manifest.
    pub(crate) fn apply_rights(&self, manifest: &str) {
        let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
        for object in documents {
            let kind = match object["kind"].as_str() {
                Some("ClusterRole") => "ClusterRole",
                Some("ClusterRoleBinding") => "ClusterRoleBinding",
                _ => continue,
            };
            let name = ObjectName {
                kind,
                namespace: String::new(),
                name: object["metadata"]["name"].as_str().unwrap().to_owned(),
            };
            self.apply(&[Edit::Put(name, object)]);
        }
    }

    pub(crate) fn apply(&self, edits: &[Edit]) {
        self.runtime.block_on(async {
            for edit in edits {
                match edit {
                    Edit::Put(name, object) => self.put(name, object).await,
                    Edit::Delete(name) => self.delete(name).await,
                }
            }
        });
    }

    /// Removing an object that a shortened list of edits never created succeeds.
    async fn delete(&self, name: &ObjectName) {
        let deletion = DeleteParams::default();
        match self.api(name).delete(&name.name, &deletion).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            answer => drop(answer.unwrap()),
        }
    }

    pub(crate) async fn put(&self, name: &ObjectName, object: &Value) {
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
        if !["Service", "Node"].contains(&name.kind) {
            return;
        }
        let mut status = written;
        status.data["status"] = object.data.get("status").cloned().unwrap_or_default();
        let written = api
            .replace_status(&name.name, &PostParams::default(), &status)
            .await;
        written.unwrap_or_else(|error| panic!("{name:?}: {error}\n{status:?}"));
    }

    /// All objects of a kind.
    pub(crate) fn list(&self, kind: &'static str) -> Vec<Value> {
        let name = ObjectName {
            kind,
            namespace: String::new(),
            name: String::new(),
        };
        let (api, all) = (self.api(&name), ListParams::default());
        let objects = self.runtime.block_on(api.list(&all)).unwrap().items;
        let values = objects.iter().map(serde_json::to_value);
        values.map(Result::unwrap).collect()
    }

    pub(crate) fn clear(&self, cluster: &RandomCluster) {
        let names = cluster.objects().map(|(name, _)| name.clone());
        let names = names.filter(|name| name.kind != "Node");
        let edits: Vec<Edit> = names.map(Edit::Delete).collect();
        self.apply(&edits);
    }

    pub(crate) fn rules(&self, namespace: &Namespace, family: IpFamily) -> Ruleset {
        let family_name = match family {
            IpFamily::V4 => "iptables",
            IpFamily::V6 => "ip6tables",
        };
        let text = namespace.program(&format!("{family_name}-{}-save", self.variant), &[]);
        Ruleset::parse(&text, family).unwrap()
    }

    /// The rules that a fresh proxy would write now.
    fn expected(snapshot: &Snapshot, family: IpFamily) -> Ruleset {
        let configuration = KubeProxyConfiguration {
            cluster_cidr: "10.244.0.0/16,fd00:10:244::/48".to_owned(),
            ..KubeProxyConfiguration::default()
        };
        let config = configuration.check().unwrap();
        let state = snapshot.family_state(&config, family, NODE, Vec::new());
        let options = weft_iptables::Options {
            random_fully: true,
            drop_invalid: true,
            nfacct: true,
            restore: weft_iptables::RestoreScope::Changes,
        };
        let plan = weft_iptables::render(&state.desired, &state.settings, options);
        let mut rules = Ruleset::new(family);
        rules.restore(&plan.to_string()).unwrap();
        rules
    }

    /// Waits until a kernel holds what a fresh proxy would write.
    pub(crate) fn assert_serves(&self, node: &Namespace, when: &str) {
        let snapshot = self.runtime.block_on(Snapshot::read(&self.client)).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let differences = IpFamily::ALL.into_iter().flat_map(|family| {
                let expected = Self::expected(&snapshot, family);
                let found = self.rules(node, family);
                compare(&expected, &found, ComparisonOptions::default())
            });
            let words: Vec<String> = differences.map(|d| d.to_string()).collect();
            if words.is_empty() {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{when}:\n{}\n{}",
                words.join("\n"),
                self.log("weft")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The log of a proxy.
    pub(crate) fn log(&self, name: &str) -> String {
        let log = self.programs.path().join(format!("{name}.log"));
        fs::read_to_string(log).unwrap_or_default()
    }

    fn differences(&self, sides: &[&Namespace; 2], mark: Option<&Mark>) -> Vec<String> {
        IpFamily::ALL
            .into_iter()
            .flat_map(|family| {
                let rules = sides.map(|side| self.rules(side, family));
                let [expected, found] = &rules;
                let options = ComparisonOptions::default();
                let differences = compare(expected, found, options);
                let mut words: Vec<String> = differences.iter().map(ToString::to_string).collect();
                if !expected.to_string().contains("KUBE-SERVICES") {
                    words.push("the reference has no rules yet".to_owned());
                }
                words.extend(mark.into_iter().flat_map(|mark| {
                    let sides = ["the reference", "the other"].into_iter().zip(&rules);
                    sides.filter_map(|(side, rules)| {
                        Some(format!("{side}: {}", mark.missing(rules)?))
                    })
                }));
                words
                    .into_iter()
                    .map(move |word| format!("{family}: {word}"))
            })
            .collect()
    }

    /// Waits until both kernels hold the same.
    pub(crate) fn assert_agreement(&self, sides: &[&Namespace; 2], when: &str) {
        if let Err(differences) = self.agreement(sides, PATIENCE) {
            let logs = ["kube-proxy", "weft"].map(|name| self.log(name));
            panic!("{when}:\n{differences}\n{}", logs.join("\n----\n"));
        }
    }

    /// Waits until both kernels hold the same; how they differ when they do not in time.
    ///
    /// Twice: without a nudge, since a proxy that overlooks a change would be woken by it; and then
    /// with a mark that both have to show, since two that have seen nothing yet are the same too.
    pub(crate) fn agreement(
        &self,
        sides: &[&Namespace; 2],
        patience: Duration,
    ) -> Result<(), String> {
        self.sameness(sides, None, patience)?;
        let mark = Mark::of(self.marks.fetch_add(1, Ordering::Relaxed));
        self.apply(&mark.edits());
        self.sameness(sides, Some(&mark), patience)
    }

    fn sameness(
        &self,
        sides: &[&Namespace; 2],
        mark: Option<&Mark>,
        patience: Duration,
    ) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        loop {
            let differences = self.differences(sides, mark);
            if differences.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(differences.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A page of a server on the namespace's loopback, with its head.
    pub(crate) fn page(namespace: &Namespace, port: u16, path: &str) -> String {
        namespace.run(|| {
            use std::io::{Read as _, Write as _};
            let mut socket = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            socket.write_all(request.as_bytes()).unwrap();
            let mut text = String::new();
            socket.read_to_string(&mut text).unwrap();
            text
        })
    }

    /// The lines of weft's metrics that contain a word and do not say zero.
    pub(crate) fn metric(namespace: &Namespace, word: &str) -> String {
        let page = Self::page(namespace, 10249, "/metrics");
        assert!(page.contains("kubeproxy_sync_proxy_rules"), "{page}");
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        let wrong = lines.filter(|line| line.contains(word) && !line.ends_with(" 0"));
        wrong.collect::<Vec<_>>().join("\n")
    }
}
