//! `weft controller` and `weft routes` as a process: elected controllers with health, metrics and
//! diagnostics.

use std::{net::SocketAddr, path::PathBuf};

use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use weft_ipam::allocator::{AllocatorSettings, ClusterCidr};
use weft_ipam_allocator::{AddressControllers, AllocatorMetrics};
use weft_process::{client, serve_control_socket};
use weft_routes_agent::{
    RoutesMetrics, StatusBoard,
    process::{RoutesProcess, lease_reference, status_page},
};
use weft_runtime::{
    Access, ClientMetrics, Cluster, Failure, Features, LeaderConfig, Manager, StatusServer,
    TlsFiles, connect,
};

use super::dashboard::Dashboard;

/// Configuration of a process that runs controllers.
#[derive(Debug)]
pub(crate) struct ControllerProcess {
    /// The `manager` of `running_managed_controllers`.
    pub(crate) name: &'static str,
    /// Path of a kubeconfig.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// URL of the API server, instead of the kubeconfig's.
    pub(crate) master: Option<String>,
    /// The lease to contend for; without one this process leads.
    pub(crate) election: Option<LeaderConfig>,
    /// Listener of health, metrics and diagnostics, if any.
    pub(crate) pages: Option<Pages>,
    /// Path of the control socket.
    pub(crate) control: Option<PathBuf>,
    /// Feature gates.
    pub(crate) features: Features,
    /// The route controller, if it runs here.
    pub(crate) routes: Option<RoutesProcess>,
    /// The allocator of addresses, if it runs here.
    pub(crate) allocator: Option<AllocatorSettings>,
    /// The ranges that nodes get their pod CIDRs from; none are handed out without.
    pub(crate) pod_cidrs: Vec<ClusterCidr>,
    /// The live page, if it is served.
    pub(crate) dashboard: Option<Dashboard>,
}

/// Listener of health, metrics and diagnostics.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    /// The address.
    pub(crate) address: SocketAddr,
    /// The certificate; self-signed without one.
    pub(crate) tls: Option<TlsFiles>,
}

impl ControllerProcess {
    /// Runs until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<(), Failure> {
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
            let controller = weft_routes_agent::controller(parts, Some(manager.metrics()));
            manager.add(controller)?;
        }
        if let Some(egress) = egress {
            manager.add_component(egress)?;
        }
        if let Some(metrics) = addresses {
            let cluster = cluster.clone();
            let parts = AddressControllers { cluster, metrics };
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
        serve_control_socket(&manager, self.control.as_deref())?;
        manager.run(stop.cancelled()).await?;
        Ok(())
    }
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
