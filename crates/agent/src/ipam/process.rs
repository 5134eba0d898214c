//! A whole process that keeps the addresses of a node.

use std::{
    error::Error,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use weft_runtime::{Access, ClientMetrics, Cluster, Manager, StatusServer, connect};

use super::{
    daemon::{Daemon, DaemonParts, Doors, IpamComponent},
    machine::{self, Clock},
    metrics::IpamMetrics,
    settings::IpamSettings,
};
use crate::{client, manager};

/// What a process is told.
#[derive(Clone, Debug)]
pub struct IpamProcess {
    /// How to reach the API server.
    pub kubeconfig: Option<PathBuf>,
    /// Another API server than the kubeconfig's.
    pub master: Option<String>,
    /// What the operator decided.
    pub settings: IpamSettings,
    /// Where plugins come to.
    pub doors: Doors,
    /// Where machine id and boot id are looked up; `/` but for tests.
    pub root: PathBuf,
    /// Where to serve health, metrics and diagnostics.
    pub pages: Option<SocketAddr>,
}

impl IpamProcess {
    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut registry = Registry::default();
        let client_metrics = ClientMetrics::register(&mut registry);
        let metrics = IpamMetrics::register(&mut registry);
        let identity = machine::identity(Path::new(&self.root))?;
        let config = client::config(self.kubeconfig, self.master.as_deref()).await?;
        let client = connect(&config, Some(&client_metrics))?;
        let cluster = Cluster::new("local", client.clone());
        let built = Manager::builder("ipam", cluster.clone()).registry(registry);
        let manager = built.build()?;
        let daemon = Daemon::open(DaemonParts {
            cluster,
            settings: self.settings,
            identity,
            clock: Clock::Boot,
            process: manager::identity(),
            metrics,
        });
        let component = IpamComponent::new(daemon.await?, self.doors);
        manager.add_health_check(component.readiness(&stop));
        manager.add_component(component)?;
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
        manager.run(stop.cancelled()).await?;
        Ok(())
    }
}
