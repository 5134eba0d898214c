//! An API server and a controller on loopback.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use weft_apiserver::{ApiServer, Builder};
use weft_testkit::lab::Namespace;

use crate::{arena::Running, weft::weft};

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Stage {
    pub(crate) runtime: tokio::runtime::Runtime,
    client: Client,
    access: Vec<String>,
    pub(crate) directory: tempfile::TempDir,
    embedded: Option<ApiServer>,
    /// A real server is one for all tests, and has one set of nodes.
    _alone: Option<MutexGuard<'static, ()>>,
}

static REAL: Mutex<()> = Mutex::new(());

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for entry in fs::read_dir(self.directory.path()).unwrap() {
                let path = entry.unwrap().path();
                let text = fs::read_to_string(&path).unwrap_or_default();
                eprintln!("{}:\n{text}", path.display());
            }
        }
    }
}

impl Stage {
    /// The embedded server, unless the environment names another.
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let directory = tempfile::tempdir().unwrap();
        if let Some(path) = std::env::var_os("WEFT_TEST_KUBECONFIG").map(PathBuf::from) {
            let alone = REAL.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = rustls::crypto::ring::default_provider().install_default();
            let client = runtime.block_on(async {
                let kubeconfig = Kubeconfig::read_from(&path).unwrap();
                let options = KubeConfigOptions::default();
                let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
                Client::try_from(config.unwrap()).unwrap()
            });
            let stage = Self {
                access: vec![format!("--kubeconfig={}", path.display())],
                client,
                runtime,
                directory,
                embedded: None,
                _alone: Some(alone),
            };
            stage.forget_everything();
            return stage;
        }
        Self::embedded(ApiServer::builder(), runtime, directory)
    }

    /// The embedded server with such settings, also where the environment names another.
    pub(crate) fn of(server: Builder) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        Self::embedded(server, runtime, tempfile::tempdir().unwrap())
    }

    fn embedded(
        server: Builder,
        runtime: tokio::runtime::Runtime,
        directory: tempfile::TempDir,
    ) -> Self {
        let (server, client, address) = {
            let _inside = runtime.enter();
            let server = server.build();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let address = listener.local_addr().unwrap();
            server.serve_http(tokio::net::TcpListener::from_std(listener).unwrap());
            let client = server.client();
            (server, client, address)
        };
        Self {
            access: vec![format!("--master=http://{address}")],
            client,
            runtime,
            directory,
            embedded: Some(server),
            _alone: None,
        }
    }

    fn forget_everything(&self) {
        use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
        self.runtime.block_on(async {
            let all = ListParams::default();
            let how = DeleteParams::default();
            let nodes = self.nodes().delete_collection(&how, &all).await;
            nodes.unwrap();
            let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
            // They need not be there.
            let _ = leases.delete("cloud-controller-manager", &how).await;
            let ours = maps.list(&all).await.unwrap().items.into_iter();
            for map in ours.filter_map(|map| map.metadata.name) {
                if map.starts_with("weft-routes-") {
                    maps.delete(&map, &how).await.unwrap();
                }
            }
        });
    }

    /// The embedded server, of [`Stage::of`].
    pub(crate) fn server(&self) -> &ApiServer {
        self.embedded.as_ref().unwrap()
    }

    /// Makes the embedded server reachable inside a namespace, on its loopback.
    pub(crate) fn serve(&self, namespace: &Namespace) {
        let listener = namespace.run(|| TcpListener::bind("127.0.0.1:6443").unwrap());
        listener.set_nonblocking(true).unwrap();
        let _inside = self.runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        self.server().serve_http(listener);
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// `node-7` has 10.244.7.0/24 and the address 10.0.1.7.
    pub(crate) fn add_node(&self, number: u8, provider_id: &str) {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": format!("node-{number}")},
            "spec": {
                "podCIDRs": [format!("10.244.{number}.0/24")],
                "podCIDR": format!("10.244.{number}.0/24"),
                "providerID": provider_id,
            },
        }))
        .unwrap();
        let addresses = json!([{"type": "InternalIP", "address": format!("10.0.1.{number}")}]);
        let patch = Patch::Strategic(json!({"status": {"addresses": addresses}}));
        self.runtime.block_on(async {
            let nodes = self.nodes();
            nodes.create(&PostParams::default(), &node).await.unwrap();
            let name = format!("node-{number}");
            let how = PatchParams::default();
            nodes.patch_status(&name, &how, &patch).await.unwrap();
        });
    }

    pub(crate) fn delete_node(&self, number: u8) {
        let name = format!("node-{number}");
        let nodes = self.nodes();
        let how = DeleteParams::default();
        self.runtime.block_on(nodes.delete(&name, &how)).unwrap();
    }

    /// `status/reason` of a node's `NetworkUnavailable`.
    pub(crate) fn condition(&self, number: u8) -> Option<String> {
        let nodes = self.nodes();
        let name = format!("node-{number}");
        let node = self.runtime.block_on(nodes.get(&name)).unwrap();
        let conditions = node.status?.conditions?.into_iter();
        let mut ours = conditions.filter(|one| one.type_ == "NetworkUnavailable");
        let condition = ours.next()?;
        Some(format!("{}/{}", condition.status, condition.reason?))
    }

    /// A command of `weft routes` that reaches this server.
    pub(crate) fn routes(&self, provider: &str, flags: &[&str]) -> Command {
        let mut command = weft(&["routes", "--cluster-cidr=10.244.0.0/16"]);
        command
            .arg(format!("--cloud-provider={provider}"))
            .args(&self.access)
            .args(flags);
        command
    }

    /// A command of `weft controller` that reaches this server and manages no routes.
    pub(crate) fn controller(&self, flags: &[&str]) -> Command {
        let mut command = weft(&["controller", "--configure-cloud-routes=false"]);
        command.args(&self.access).args(flags);
        command
    }

    /// Starts it; its log goes to a file of that name.
    pub(crate) fn start(&self, name: &str, command: &mut Command) -> Running {
        let log = fs::File::create(self.directory.path().join(name)).unwrap();
        let child: Child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Running(child)
    }

    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap()
    }

    /// The expected table for these nodes.
    pub(crate) fn routes_to(numbers: impl IntoIterator<Item = u8>) -> BTreeMap<String, String> {
        let route = |number| (format!("10.244.{number}.0/24"), format!("10.0.1.{number}"));
        numbers.into_iter().map(route).collect()
    }
}

/// Waits for something that a process does.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(is) => assert!(begun.elapsed() < PATIENCE, "never: {what}; it is {is}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// As [`eventually`], for something that becomes equal.
pub(crate) fn becomes<T: PartialEq + std::fmt::Debug>(wanted: &T, mut look: impl FnMut() -> T) {
    eventually(&format!("{wanted:?}"), || {
        let is = look();
        if is == *wanted {
            Ok(())
        } else {
            Err(format!("{is:?}"))
        }
    });
}
