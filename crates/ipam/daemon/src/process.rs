//! A process that runs the address daemon of a node.

use std::{net::SocketAddr, path::PathBuf};

use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use weft_runtime::{Access, ClientMetrics, Cluster, Failure, Manager, StatusServer, Unit, connect};

use crate::{
    daemon::{IpamComponent, IpamSetup},
    metrics::IpamMetrics,
};
use weft_process::{client, run_until, serve_control_socket};

/// Configuration of the process.
#[derive(Clone, Debug)]
pub struct IpamProcess {
    /// Path of the kubeconfig; defaults to in-cluster or `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server, overriding the kubeconfig's.
    pub master: Option<String>,
    /// Configuration of the daemon.
    pub setup: IpamSetup,
    /// Address for health, metrics and diagnostics.
    pub pages: Option<SocketAddr>,
    /// Path of the control socket.
    pub control: Option<PathBuf>,
}

impl IpamProcess {
    /// Runs until cancelled.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Failure> {
        let mut registry = Registry::default();
        let client_metrics = ClientMetrics::register(&mut registry);
        let metrics = IpamMetrics::register(&mut registry);
        let config = client::config(self.kubeconfig, self.master.as_deref()).await?;
        let client = connect(&config, Some(&client_metrics))?;
        let cluster = Cluster::new("local", client.clone());
        let built = Manager::builder("ipam", cluster.clone()).registry(registry);
        let manager = built.build()?;
        let component = IpamComponent::new(self.setup, &cluster, metrics);
        manager.add_health_check(component.readiness(&stop));
        let (unit, failed) = Unit::once(component, &cluster);
        manager.add(unit)?;
        serve_control_socket(&manager, self.control.as_deref())?;
        if let Some(address) = self.pages {
            let access = if address.ip().is_loopback() {
                Access::Open
            } else {
                Access::Review(client)
            };
            let server = StatusServer::bind(&manager, address)?;
            tracing::info!(address = %server.address(), "serving health, metrics and diagnostics");
            manager.add_component(server.access(access))?;
        }
        run_until(&manager, failed, stop).await
    }
}
