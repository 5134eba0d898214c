//! Everything that a node needs in one process: Services, addresses, routes.
//!
//! The parts share a client, a cache and the pages. Each starts, stops and restarts for itself, and
//! one that fails is tried again while the others go on.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use axum::Router;
use futures::future::BoxFuture;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use weft_model::SharedStr;
use weft_proxy::config::ProxyConfig;
use weft_runtime::{
    Access, ClientMetrics, Cluster, Component, ComponentScope, ControllerState, Failure, Manager,
    Metrics, Phase, Unit, connect,
};

use weft_ipam_daemon::{IpamComponent, IpamMetrics, IpamSetup};
use weft_process::{client, serve_control_socket};
use weft_proxy_agent::{
    PrepareRun,
    config_file::ConfigFile,
    host::HostCounters,
    listen::{BindPolicy, RetryingServer},
    metrics::ProxyMetrics,
    pages,
    process::{ProxySetup, Servers},
};
use weft_routes_agent::{
    RoutesMetrics, StatusBoard,
    process::{RoutesProcess, lease_reference, status_page},
};

const ROUTES: &str = "routes";

/// Reads the proxy's configuration as it is now.
pub(crate) type ReadProxy =
    Arc<dyn Fn() -> Result<(ProxySetup, Option<ConfigFile>), Failure> + Send + Sync>;

/// Configuration of a process that runs a node's agents.
pub(crate) struct NodeProcess {
    /// Path of a kubeconfig.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// URL of the API server, instead of the kubeconfig's.
    pub(crate) master: Option<String>,
    /// This node's name.
    pub(crate) node: String,
    /// Listener of health, metrics and diagnostics, if any.
    pub(crate) pages: Option<SocketAddr>,
    /// Path of the control socket.
    pub(crate) control: Option<PathBuf>,
    /// The proxy, if it runs here.
    pub(crate) proxy: Option<ProxyPart>,
    /// The address daemon, if it runs here.
    pub(crate) ipam: Option<IpamSetup>,
    /// The kernel's routes, if they are kept here.
    pub(crate) routes: Option<RoutesProcess>,
    /// This program's version.
    pub(crate) version: String,
}

/// The proxy of a node.
pub(crate) struct ProxyPart {
    /// The setup of the first start; the addresses of health and diagnostics do not change later.
    pub(crate) setup: ProxySetup,
    /// Reads the configuration again, before every start of the proxy.
    pub(crate) read: ReadProxy,
}

impl NodeProcess {
    /// Runs until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<(), Failure> {
        let mut registry = Registry::default();
        let client_metrics = ClientMetrics::register(&mut registry);
        let proxy = self.proxy.map(|part| {
            let counters = Arc::new(HostCounters::default());
            let mode = part.setup.config.mode;
            let metrics = ProxyMetrics::register(&mut registry, mode, counters);
            part.setup.register_optional(&metrics, &mut registry);
            (part, metrics)
        });
        let ipam = self
            .ipam
            .map(|setup| (setup, IpamMetrics::register(&mut registry)));
        let routes = self
            .routes
            .map(|process| (process, RoutesMetrics::register(&mut registry)));
        let config = client::config(self.kubeconfig, self.master.as_deref()).await?;
        let client = connect(&config, Some(&client_metrics))?;
        let cluster = Cluster::new("local", client.clone());
        let built = Manager::builder("node", cluster.clone()).registry(registry);
        let node = Node {
            manager: built.build()?,
            cluster,
            name: SharedStr::new(&self.node),
        };
        let mut pages = Router::new();
        if let Some((part, metrics)) = proxy {
            pages = pages.merge(node.add_proxy(part, metrics, self.version)?);
        }
        if let Some((setup, metrics)) = ipam {
            let component = IpamComponent::new(setup, &node.cluster, metrics);
            node.manager.add_health_check(component.readiness(&stop));
            node.add(component)?;
        }
        if let Some((process, metrics)) = routes {
            if let Some(egress) = process.egress() {
                node.add(egress)?;
            }
            let board = StatusBoard::default();
            pages = pages.merge(status_page(board.clone()));
            node.add(RoutesComponent {
                process,
                metrics,
                board,
                cluster: node.cluster.clone(),
                exposed: node.manager.metrics().clone(),
            })?;
        }
        if let Some(address) = self.pages {
            node.open_pages(address, pages, Access::Review(client))?;
        }
        serve_control_socket(&node.manager, self.control.as_deref())?;
        node.manager.run(stop.cancelled()).await?;
        Ok(())
    }
}

/// The manager and cluster that the parts share.
struct Node {
    manager: Manager,
    cluster: Cluster,
    name: SharedStr,
}

impl Node {
    fn add(&self, component: impl Component) -> Result<(), Failure> {
        let unit = Unit::new(component, &self.cluster).metrics(self.manager.metrics());
        self.manager.add(unit)?;
        Ok(())
    }

    /// Adds the proxy and its health server, and returns its pages.
    fn add_proxy(
        &self,
        part: ProxyPart,
        metrics: ProxyMetrics,
        version: String,
    ) -> Result<Router, Failure> {
        // A port that is taken must not end the other parts.
        let config = ProxyConfig {
            bind_hard_fail: false,
            ..ProxyConfig::clone(&part.setup.config)
        };
        let servers = Servers::new(&self.manager, &config, &self.name, &self.cluster);
        let read = part.read;
        let prepare: PrepareRun = Arc::new(move || {
            let (setup, file) = read()?;
            setup.prepare_run(file)
        });
        let (proxy, health) = servers.proxy(&self.cluster, metrics, prepare)?;
        self.add(proxy)?;
        Ok(pages::diagnostics(part.setup.diagnostics(health, version)))
    }

    fn open_pages(
        &self,
        address: SocketAddr,
        extra: Router,
        beyond: Access,
    ) -> Result<(), Failure> {
        let manager = self.manager.clone();
        let open = move || pages::bind_metrics(&manager, address, extra.clone(), beyond.clone());
        let server = RetryingServer::new("metrics-server", address, BindPolicy::Retry, open);
        self.manager.add_component(server)?;
        Ok(())
    }
}

/// The kernel's routes: opens the kernel's table and runs the route controller on it.
struct RoutesComponent {
    process: RoutesProcess,
    metrics: RoutesMetrics,
    board: StatusBoard,
    cluster: Cluster,
    exposed: Metrics,
}

impl Component for RoutesComponent {
    fn name(&self) -> &'static str {
        ROUTES
    }

    fn phase(&self) -> Phase {
        Phase::Always
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> BoxFuture<'static, Result<(), Failure>> {
        Box::pin(async move {
            let process = self.process.clone();
            let parts = process.parts(
                &self.cluster,
                self.metrics.clone(),
                lease_reference(None),
                self.board.clone(),
            );
            let controller = weft_routes_agent::controller(parts.await?, Some(&self.exposed));
            controller.start();
            let mut state = controller.state();
            tokio::select! {
                () = scope.stopped() => {}
                _ = state.wait_for(ControllerState::is_reconciling) => scope.ready(),
            }
            scope.stopped().await;
            controller.stop().await;
            Ok(())
        })
    }
}
