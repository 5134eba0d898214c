//! A process that runs controllers of the cluster: elected, stoppable one by one, with pages.

use std::{error::Error, net::SocketAddr, path::PathBuf, sync::Arc};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse as _,
    routing::get,
};
use k8s_openapi::api::core::v1::ObjectReference;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use weft_host::{hostname, sysctl};
use weft_ipam::allocator::{AllocatorSettings, ClusterCidr};
use weft_providers::{Calls, NetlinkProvider, SharedProvider, netlink::NetlinkSettings, open};
use weft_runtime::{
    Access, ClientMetrics, Cluster, EventRecorder, Features, LeaderConfig, Manager, StatusServer,
    TlsFiles, connect,
};

use crate::{
    allocator::{
        self, AllocatorEvents, AllocatorMetrics, AllocatorParts, PodCidrParts, WallClock,
        pod_cidr_controller,
    },
    client,
    dashboard::Dashboard,
    process::take_orders,
    routes::{self, Announce, Egress, RoutesMetrics, RoutesParts, RoutesSettings, StatusBoard},
};

/// What a process of controllers is told.
#[derive(Debug)]
pub struct ManagerProcess {
    /// The `manager` of `running_managed_controllers`.
    pub name: &'static str,
    /// How to reach the API server.
    pub kubeconfig: Option<PathBuf>,
    /// Another API server than the kubeconfig's.
    pub master: Option<String>,
    /// The lease to contend for; without one this process leads.
    pub election: Option<LeaderConfig>,
    /// Where to serve health, metrics and diagnostics.
    pub pages: Option<Pages>,
    /// Where orders are taken.
    pub control: Option<PathBuf>,
    /// What is switched on.
    pub features: Features,
    /// The route controller, if it runs here.
    pub routes: Option<RoutesProcess>,
    /// The allocator of addresses, if it runs here.
    pub allocator: Option<AllocatorSettings>,
    /// The ranges that nodes get their pod CIDRs from; none are handed out without.
    pub pod_cidrs: Vec<ClusterCidr>,
    /// The live page, if it is served.
    pub dashboard: Option<Dashboard>,
}

/// Where pages are served.
#[derive(Clone, Debug)]
pub struct Pages {
    /// The address.
    pub address: SocketAddr,
    /// The certificate; without one it is made up.
    pub tls: Option<TlsFiles>,
}

/// The route controller of a process.
#[derive(Clone, Debug)]
pub struct RoutesProcess {
    /// Where the routes are.
    pub table: Table,
    /// What the operator decided.
    pub settings: RoutesSettings,
    /// Where the record of our routes is kept.
    pub namespace: String,
}

/// Where routes are.
#[derive(Clone, Debug)]
pub enum Table {
    /// At a cloud.
    Cloud {
        /// `--cloud-provider`.
        provider: String,
        /// `--cloud-config`.
        config: Option<PathBuf>,
    },
    /// In this machine's kernel, each node for itself.
    Kernel {
        /// Which routes are ours.
        settings: NetlinkSettings,
        /// This node.
        node: String,
        /// What keeps the rules by which pods leave the cluster, if that is asked for.
        egress: Option<Egress>,
    },
}

type AnyError = Box<dyn Error + Send + Sync>;

impl ManagerProcess {
    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) -> Result<(), AnyError> {
        let mut registry = Registry::default();
        let client_metrics = ClientMetrics::register(&mut registry);
        self.features.register(&mut registry);
        let config = client::config(self.kubeconfig, self.master.as_deref()).await?;
        let client = connect(&config, Some(&client_metrics))?;
        let cluster = Cluster::new("local", client.clone());
        let board = StatusBoard::default();
        let mut routes = None;
        let egress = self.routes.as_ref().and_then(RoutesProcess::egress);
        if let Some(process) = self.routes {
            let metrics = RoutesMetrics::register(&mut registry);
            let about = lease_reference(self.election.as_ref());
            let parts = process.parts(&cluster, metrics, about, board.clone());
            routes = Some(Box::pin(parts).await?);
        }
        let addresses = (self.allocator.is_some() || !self.pod_cidrs.is_empty())
            .then(|| AllocatorMetrics::register(&mut registry));
        let mut builder = Manager::builder(self.name, cluster.clone()).registry(registry);
        if let Some(election) = self.election {
            builder = builder.leader_election(election);
        }
        let manager = builder.build()?;
        if let Some(parts) = routes {
            let controller = routes::controller(parts, Some(manager.metrics()));
            manager.add(controller)?;
        }
        if let Some(egress) = egress {
            manager.add_component(egress)?;
        }
        if let Some(metrics) = addresses {
            let cluster = cluster.clone();
            let parts = Addresses { cluster, metrics };
            parts.add(&manager, self.allocator, self.pod_cidrs)?;
        }
        if let Some(pages) = &self.pages {
            let access = if pages.address.ip().is_loopback() {
                Access::Open
            } else {
                Access::Review(client)
            };
            let server = pages.bind(&manager)?.access(access);
            manager.add_component(server.routes(status_page(board)))?;
        }
        if let Some(dashboard) = self.dashboard {
            dashboard.add(&manager, cluster, &config.cluster_url.to_string())?;
        }
        take_orders(&manager, self.control.as_deref())?;
        manager.run(stop.cancelled()).await?;
        Ok(())
    }
}

/// What the controllers of addresses share.
struct Addresses {
    cluster: Cluster,
    metrics: AllocatorMetrics,
}

impl Addresses {
    fn add(
        self,
        manager: &Manager,
        settings: Option<AllocatorSettings>,
        ranges: Vec<ClusterCidr>,
    ) -> Result<(), AnyError> {
        let client = self.cluster.client().clone();
        let events = AllocatorEvents {
            events: Some(EventRecorder::new(client, "weft_allocator", &identity())),
        };
        if let Some(settings) = settings {
            let parts = AllocatorParts {
                cluster: self.cluster.clone(),
                settings,
                namespace: CONFIG_NAMESPACE.to_owned(),
                metrics: self.metrics.clone(),
                events: events.clone(),
                clock: WallClock::system(),
            };
            manager.add(allocator::controller(parts, Some(manager.metrics())))?;
        }
        if !ranges.is_empty() {
            let parts = PodCidrParts {
                cluster: self.cluster,
                ranges,
                settings: settings.unwrap_or_default(),
                namespace: CONFIG_NAMESPACE.to_owned(),
                metrics: self.metrics,
                events,
                clock: WallClock::system(),
            };
            manager.add(pod_cidr_controller(parts, Some(manager.metrics())))?;
        }
        Ok(())
    }
}

/// Where NodeNetworkConfigs are, as upstream's agents expect.
const CONFIG_NAMESPACE: &str = "kube-system";

impl RoutesProcess {
    /// What keeps the rules of egress, if it is asked for and anything may be written.
    pub(crate) fn egress(&self) -> Option<Egress> {
        match &self.table {
            Table::Kernel { egress, .. } if !self.settings.observe => egress.clone(),
            _ => None,
        }
    }

    /// Opens the provider; its calls are counted there.
    pub async fn open(&self, calls: Calls) -> Result<SharedProvider, AnyError> {
        match &self.table {
            Table::Cloud { provider, config } => {
                Ok(open(provider, config.as_deref(), calls).await?)
            }
            Table::Kernel { settings, .. } => {
                let provider = NetlinkProvider::open(settings.clone())?.counting(calls);
                for warning in provider.warnings(&sysctl::Settings::default()).await? {
                    tracing::warn!("{warning}");
                }
                Ok(Arc::new(provider))
            }
        }
    }
}

impl RoutesProcess {
    /// Opens the table and puts a controller's parts together.
    pub(crate) async fn parts(
        self,
        cluster: &Cluster,
        metrics: RoutesMetrics,
        about: ObjectReference,
        board: StatusBoard,
    ) -> Result<RoutesParts, AnyError> {
        let provider = self.open(metrics.calls.clone()).await?;
        if !self.settings.observe {
            provider.prepare().await?;
        }
        let own_node = self.table.own_node();
        let client = cluster.client().clone();
        let events = EventRecorder::new(client, "route_controller", &identity());
        Ok(RoutesParts {
            cluster: cluster.clone(),
            provider,
            // Kernel routes carry a mark.
            record_namespace: own_node.is_none().then_some(self.namespace),
            own_node,
            announce: Announce {
                events: (!self.settings.observe).then_some(events),
                about,
            },
            settings: self.settings,
            metrics,
            board,
        })
    }
}

impl Table {
    /// This node, where each has a table of its own.
    pub fn own_node(&self) -> Option<String> {
        match self {
            Self::Cloud { .. } => None,
            Self::Kernel { node, .. } => Some(node.clone()),
        }
    }
}

/// Deletes every route of ours from this machine's kernel.
pub async fn flush(settings: NetlinkSettings) -> Result<usize, AnyError> {
    Ok(NetlinkProvider::open(settings)?.flush().await?)
}

impl Pages {
    fn bind(&self, manager: &Manager) -> std::io::Result<StatusServer> {
        let server = StatusServer::bind(manager, self.address)?;
        tracing::info!(address = %server.address(), "serving health, metrics and diagnostics");
        Ok(match &self.tls {
            Some(files) => server.tls(files.clone()),
            None => server.self_signed(),
        })
    }
}

/// How routes stand.
pub(crate) fn status_page(board: StatusBoard) -> Router {
    let page = move || async move {
        match serde_json::to_string_pretty(&board.read()) {
            Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    };
    Router::new().route("/debug/routes", get(page))
}

/// Host name and chance, as upstream's controllers call themselves.
pub fn identity() -> String {
    let host = hostname::node_name();
    let host = host.as_deref().unwrap_or("unknown");
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
    let id = id.map_or_else(
        |_| std::process::id().to_string(),
        |id| id.trim().to_owned(),
    );
    format!("{host}_{id}")
}

/// What events of no node are about.
pub(crate) fn lease_reference(election: Option<&LeaderConfig>) -> ObjectReference {
    let (namespace, name) = election.map_or(("kube-system", "cloud-controller-manager"), |lease| {
        (&*lease.namespace, &*lease.name)
    });
    ObjectReference {
        api_version: Some("coordination.k8s.io/v1".to_owned()),
        kind: Some("Lease".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}
