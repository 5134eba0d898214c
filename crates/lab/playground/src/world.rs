//! The world: API server, network segment, nodes and the controller of the cluster.
//!
//! It is one process in namespaces of its own, started by [`launch`](crate::launch).

use std::{
    collections::BTreeMap,
    env, fs, io,
    net::SocketAddr,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    time::Duration,
};

use ipnet::IpNet;
use kube::Client;
use parking_lot::Mutex;
use rustix::mount::{MountFlags, mount, mount_bind, mount_move};
use serde_json::json;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weft_apiserver::{ApiServer, AuthorizationMode, FaultId, ListenError, Matcher, User};
use weft_dashboard::Token;
use weft_runtime::{Cluster, ControllerHandle};
use weft_testserver::{call, create};

use crate::{
    agent::{Agent, AgentParts},
    listeners::Listeners,
    manifest::{self, ManifestError},
    network::{self, NetworkError},
    node::{self, Common, Node, NodeError, Programs},
    place::Place,
    pod_dialer,
    program::blocking,
    standin,
};

/// Most nodes: their tokens are created with the API server.
pub const MOST_NODES: u8 = 50;
/// Directory of the files that the world's processes share.
const SHARED: &str = "/run/weft-world";
/// Name of the machine on which the controllers run.
const CONTROL: &str = "control";
const CONTROL_NUMBER: u8 = 2;
/// Claim in an agent's token that names its node.
const NODE_CLAIM: &str = "authentication.kubernetes.io/node-name";

/// The world could not be created or changed.
#[derive(Debug, Error)]
pub enum WorldError {
    /// The listeners were not received.
    #[error("cannot receive the listeners of the host")]
    Listeners(#[source] io::Error),
    /// A file, mount or listener could not be created.
    #[error("cannot create {0}")]
    Files(&'static str, #[source] io::Error),
    /// The segment could not be created.
    #[error("cannot create the network segment")]
    Network(#[from] NetworkError),
    /// The API server could not be started.
    #[error("cannot start the API server")]
    Listen(#[from] ListenError),
    /// A manifest of `deploy/` could not be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A request to the API failed.
    #[error("API request failed")]
    Api(#[from] kube::Error),
    /// A node could not be started.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// All node numbers are in use.
    #[error("cannot add a node: {MOST_NODES} is the maximum")]
    TooManyNodes,
}

/// Options of a world.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// Directory for kubeconfig and logs.
    pub directory: PathBuf,
    /// Path of the program `weft` on the host.
    pub weft: PathBuf,
    /// True to start the stand-ins only and no process of Weft.
    pub without_weft: bool,
}

/// A running world.
pub struct World {
    /// A client with all rights.
    pub client: Client,
    /// Path of the kubeconfig for kubectl on the host.
    pub kubeconfig: PathBuf,
    /// Address of the API server on the host.
    pub api_address: SocketAddr,
    /// Process of the cluster's controllers.
    pub controller: Agent,
    pub(crate) page: Mutex<Option<std::net::TcpListener>>,
    server: ApiServer,
    common: Common,
    tokens: Vec<String>,
    nodes: Arc<Mutex<BTreeMap<u8, Node>>>,
    /// Number of the node that was added last.
    last: AtomicU8,
    standins: Vec<ControllerHandle>,
}

fn ranges() -> Vec<IpNet> {
    ["10.96.0.0/16", "fd00:10:96::/112"]
        .iter()
        .filter_map(|range| range.parse().ok())
        .collect()
}

fn secret() -> Result<String, WorldError> {
    let token =
        Token::random().map_err(|error| WorldError::Files("secrets", io::Error::other(error)))?;
    Ok(token.reveal().to_owned())
}

fn account(name: &str) -> User {
    let groups = [
        "system:serviceaccounts",
        "system:serviceaccounts:kube-system",
    ];
    User::new(&format!("system:serviceaccount:kube-system:{name}"), groups)
}

/// A token that is cancelled when the launcher closes its socket, to stop this world or because it
/// has ended.
pub fn until_launcher_ends() -> CancellationToken {
    let token = CancellationToken::new();
    let ended = token.clone();
    std::thread::spawn(move || {
        // The launcher sends nothing more, so a read returns only at the end.
        let mut byte = [0];
        let _ = io::Read::read(&mut io::stdin(), &mut byte);
        ended.cancel();
    });
    token
}

impl World {
    /// Creates the world in the namespaces of this process.
    pub async fn enter(options: &WorldOptions) -> Result<Self, WorldError> {
        let listeners = Listeners::receive(io::stdin().as_fd()).map_err(WorldError::Listeners)?;
        let (directory, weft) = (options.directory.clone(), options.weft.clone());
        let programs = blocking(move || make_mounts(&directory, &weft))
            .await
            .map_err(|source| WorldError::Files("mounts", source))?;
        blocking(network::make_segment).await?;
        blocking(|| network::make_machine(CONTROL, CONTROL_NUMBER)).await?;
        let controller_token = secret()?;
        let tokens = (0..MOST_NODES)
            .map(|_| secret())
            .collect::<Result<Vec<String>, _>>()?;
        let nodes: Arc<Mutex<BTreeMap<u8, Node>>> = Arc::default();
        let mut builder = ApiServer::builder()
            .authorization_mode(AuthorizationMode::Rbac)
            .service_ranges(ranges())
            .pod_dialer(pod_dialer::to_pods_of(&nodes))
            .token(&controller_token, account("weft-controller"));
        for (number, token) in (1..).zip(&tokens) {
            let agent = account("weft-node").with_extra(NODE_CLAIM, &format!("node-{number}"));
            builder = builder.token(token, agent);
        }
        let mut server = builder.build();
        let state = Path::new(SHARED).join("state");
        let (authority, api_address) =
            open(&mut server, listeners.api, &state.join("kubeconfig")).await?;
        let client = server.client();
        let cluster = Cluster::new("playground", client.clone());
        let common = Common {
            programs,
            nodes: Path::new(SHARED).join("nodes"),
            logs: state.join("logs"),
            authority,
            cluster: cluster.clone(),
            client: client.clone(),
            without_weft: options.without_weft,
        };
        set_up(&client).await?;
        let controller = controller(&common, &controller_token)?;
        Ok(Self {
            kubeconfig: options.directory.join("kubeconfig"),
            api_address,
            standins: standin::start(&cluster),
            controller,
            client,
            page: Mutex::new(Some(listeners.page)),
            server,
            common,
            tokens,
            nodes,
            last: AtomicU8::new(0),
        })
    }

    /// The API server.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// Listener of the live page; None after the first call.
    pub(crate) fn take_page_listener(&self) -> Option<std::net::TcpListener> {
        self.page.lock().take()
    }

    /// Client and caches of the controllers in this process.
    pub fn cluster(&self) -> &Cluster {
        &self.common.cluster
    }

    /// Current nodes.
    pub fn nodes(&self) -> Vec<Node> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, BTreeMap<u8, Node>> {
        self.nodes.lock()
    }

    /// All processes of Weft: the controller and the agents of the nodes.
    pub fn agents(&self) -> Vec<Agent> {
        let nodes = self.nodes();
        let of_nodes = nodes.iter().flat_map(|node| node.agents.iter().cloned());
        std::iter::once(self.controller.clone())
            .chain(of_nodes)
            .collect()
    }

    /// Adds a node with the next free number after the last one; after [`MOST_NODES`] it continues
    /// at 1.
    pub async fn add_node(&self) -> Result<Node, WorldError> {
        let last = self.last.load(Relaxed);
        // A new name, as for a new machine: the addresses of a removed node are reused only after
        // minutes, and until then a node of the same name gets none.
        let number = {
            let nodes = self.lock();
            let mut numbers = (last + 1..=MOST_NODES).chain(1..=last);
            numbers.find(|number| !nodes.contains_key(number))
        };
        let number = number.ok_or(WorldError::TooManyNodes)?;
        self.last.store(number, Relaxed);
        let token = &self.tokens[usize::from(number - 1)];
        let node = Node::start(&self.common, number, token).await?;
        self.lock().insert(number, node.clone());
        Ok(node)
    }

    /// Removes a node in order: cordons it, deletes its pods, stops the machine and deletes the Node.
    pub async fn remove_node(&self, name: &str) -> Result<(), WorldError> {
        let found = self
            .lock()
            .iter()
            .find(|(_, node)| node.name == name)
            .map(|(number, _)| *number);
        let Some(number) = found else {
            return Ok(());
        };
        let path = format!("/api/v1/nodes/{name}");
        let cordon = json!({"spec": {"unschedulable": true}});
        call(&self.client, http::Method::PATCH, &path, &cordon).await?;
        self.evict_pods(name).await?;
        let node = self.lock().remove(&number);
        if let Some(node) = node {
            node.stop().await;
        }
        call(
            &self.client,
            http::Method::DELETE,
            &path,
            &serde_json::Value::Null,
        )
        .await?;
        let root = self.common.nodes.join(name);
        let _ = blocking(move || fs::remove_dir_all(root)).await;
        Ok(())
    }

    /// Deletes the pods of a node and waits until they have ended.
    async fn evict_pods(&self, node: &str) -> Result<(), kube::Error> {
        let selector = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
        loop {
            let list = call(
                &self.client,
                http::Method::GET,
                &selector,
                &serde_json::Value::Null,
            )
            .await?;
            let pods = list["items"].as_array().cloned().unwrap_or_default();
            if pods.is_empty() {
                return Ok(());
            }
            for pod in pods
                .iter()
                .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            {
                let metadata = &pod["metadata"];
                let path = format!(
                    "/api/v1/namespaces/{}/pods/{}",
                    metadata["namespace"].as_str().unwrap_or_default(),
                    metadata["name"].as_str().unwrap_or_default(),
                );
                let deleted = call(
                    &self.client,
                    http::Method::DELETE,
                    &path,
                    &serde_json::Value::Null,
                );
                match deleted.await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    other => drop(other?),
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Breaks every connection to the API server and refuses new ones.
    pub fn break_api(&self, lasting: Duration) -> FaultId {
        self.server.faults().drop_client(Matcher::any(), lasting)
    }

    /// Accepts connections again.
    pub fn restore_api(&self, fault: FaultId) {
        self.server.faults().remove(fault);
    }

    /// Stops stand-ins, nodes, controller and API server, in this sequence.
    pub async fn stop(&self) {
        for handle in &self.standins {
            handle.stop().await;
        }
        let nodes = std::mem::take(&mut *self.lock());
        let stopping = nodes.values().map(Node::stop);
        futures::future::join_all(stopping).await;
        self.controller.stop().await;
        self.server.shutdown();
    }
}

/// Serves the API on the segment for agents, and on the host's loopback for kubectl. Returns the CA
/// certificate and the address on the host.
async fn open(
    server: &mut ApiServer,
    host: std::net::TcpListener,
    kubeconfig: &Path,
) -> Result<(String, SocketAddr), WorldError> {
    let files = |source| WorldError::Files("listeners", source);
    let [address, _] = network::addresses(network::WORLD);
    let segment = TcpListener::bind((address, 6443)).await.map_err(files)?;
    let authority = server.listen_on(segment, None, &[])?.ca.clone();
    host.set_nonblocking(true).map_err(files)?;
    let host = TcpListener::from_std(host).map_err(files)?;
    let listening = server.listen_on(host, None, &["localhost".to_owned()])?;
    let address = listening.https;
    write_private(kubeconfig, &listening.kubeconfig()).map_err(files)?;
    Ok((authority, address))
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = fs::File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

/// Creates CRDs, RBAC objects and an IPPool, as an administrator would.
async fn set_up(client: &Client) -> Result<(), WorldError> {
    for text in manifest::DEFINITIONS.iter().chain(&manifest::RIGHTS) {
        for object in manifest::objects(text)? {
            create(client, &object).await?;
        }
    }
    let pool = json!({
        "apiVersion": "ipam.weft.dev/v1alpha1", "kind": "IPPool",
        "metadata": {"name": "nodes"}, "spec": {"nodeCIDRs": true},
    });
    // A CRD is served a moment after its creation.
    for _ in 0..100 {
        match create(client, &pool).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => return Ok(other?),
        }
    }
    Ok(create(client, &pool).await?)
}

fn controller(common: &Common, token: &str) -> Result<Agent, WorldError> {
    let files = |source| WorldError::Files("the controller's files", source);
    let secrets = common.nodes.join("control-secrets");
    node::write_secrets(&secrets, token, &common.authority).map_err(files)?;
    let container = manifest::containers(manifest::CONTROLLER)?;
    let container = container.into_iter().next();
    let line =
        container.map(|container| container.line(&common.programs.weft.display().to_string(), &[]));
    let agent = Agent::new(AgentParts {
        node: None,
        component: "controller".to_owned(),
        line: line.unwrap_or_default(),
        environment: node::environment(),
        place: Place {
            namespace: CONTROL.to_owned(),
            mounts: vec![(secrets, node::secrets_path())],
        },
        log: common.logs.join("controller.log"),
    });
    if !common.without_weft {
        agent.start().map_err(files)?;
    }
    Ok(agent)
}

/// Mounts private file systems over the host's `/run`, `/proc` and `/var/lib`, with the programs and
/// the user's directory bound into `/run`. Returns the new paths of the programs.
fn make_mounts(directory: &Path, weft: &Path) -> io::Result<Programs> {
    let lab = env::current_exe()?;
    let fresh = directory.join("world");
    fs::create_dir_all(&fresh)?;
    mount_fresh(&fresh)?;
    let inside = |path: &str| fresh.join(path.trim_start_matches("/run/"));
    for path in [
        "/run/weft-world/state",
        "/run/weft-world/bin",
        "/run/weft-world/lab",
        "/run/weft-world/nodes",
        "/run/netns",
        "/run/lock",
        "/run/weft",
        "/run/secrets/kubernetes.io/serviceaccount",
    ] {
        fs::create_dir_all(inside(path))?;
    }
    fs::write(inside("/run/xtables.lock"), "")?;
    mount_bind(directory, inside("/run/weft-world/state"))?;
    let parent = |program: &Path| program.parent().unwrap_or(Path::new("/")).to_owned();
    // weft-cni is in the same directory as weft.
    mount_bind(parent(weft), inside("/run/weft-world/bin"))?;
    mount_bind(parent(&lab), inside("/run/weft-world/lab"))?;
    mount_move(&fresh, "/run")?;
    // Plugins find themselves in /proc by their PIDs in this PID namespace.
    mount(
        "proc",
        "/proc",
        "proc",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        None,
    )
    .map_err(|error| {
        let said = io::Error::from(error);
        io::Error::new(
            said.kind(),
            format!("cannot mount /proc, which some containers forbid: {said}"),
        )
    })?;
    mount_fresh(Path::new("/var/lib"))?;
    fs::create_dir_all("/var/lib/weft")?;
    fs::create_dir_all(Path::new(SHARED).join("state/logs"))?;
    let mounted = |directory: &str, program: &Path| {
        let name = program.file_name().unwrap_or_default();
        Path::new(SHARED).join(directory).join(name)
    };
    Ok(Programs {
        weft: mounted("bin", weft),
        lab: mounted("lab", &lab),
    })
}

fn mount_fresh(path: &Path) -> io::Result<()> {
    Ok(mount(
        "tmpfs",
        path,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        c"mode=755",
    )?)
}

/// A world shared by several tasks.
pub type SharedWorld = Arc<World>;
