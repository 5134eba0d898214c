//! The manager: starts everything in order, stops it in reverse, and serves its health.

mod component;
mod control;
mod health;
mod members;
mod process;
mod server;
mod tls;

use std::{sync::Arc, time::Duration};

use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub use component::{Component, ComponentRun, ComponentScope, Phase};
pub use control::ControlServer;
pub use health::{HealthCheck, HealthLimits, Unhealthy};
pub use members::{ComponentId, DuplicateName};
pub use process::{HeapProbe, HeapStatistics};
pub use server::{Access, StatusServer, check_host, refuse_other_hosts};
pub use tls::TlsFiles;

use crate::{
    Cluster, Clusters, ControllerHandle, Gate, LeaderConfig, LeaderConfigError, LeaderElector,
    LeaderStatus, Metrics,
};
use health::Health;
use members::Members;

/// Runs the controllers and components of a process.
///
/// Cloning is cheap; every clone is the same manager.
#[derive(Clone)]
pub struct Manager {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    clusters: Clusters,
    members: Members,
    health: Health,
    registry: Arc<Registry>,
    metrics: Metrics,
    grace: Duration,
    election: Option<Election>,
    heap: HeapProbe,
}

struct Election {
    elector: tokio::sync::Mutex<LeaderElector>,
    gate: Gate,
    status: watch::Receiver<LeaderStatus>,
    exit_on_loss: bool,
}

/// Options of a [`Manager`].
pub struct ManagerBuilder {
    name: String,
    cluster: Cluster,
    registry: Registry,
    grace: Duration,
    election: Option<LeaderConfig>,
    exit_on_loss: bool,
    limits: HealthLimits,
    heap: HeapProbe,
}

/// Failures that end a manager.
#[derive(Debug, Error)]
pub enum ManagerError {
    /// A component ended with an error.
    #[error("component {name} failed")]
    Component {
        /// Name of the component.
        name: String,
        /// Error of the component.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The lease was lost, and [`ManagerBuilder::exit_on_leadership_loss`] is set.
    #[error("leadership was lost")]
    LeadershipLost,
}

/// Report of a stopped manager.
#[derive(Debug, Default)]
pub struct ExitReport {
    /// Controllers whose reconciles were dropped at the end of the grace time, with their number.
    pub aborted: Vec<(String, usize)>,
    /// Time that stopping took.
    pub took: Duration,
}

impl ManagerBuilder {
    /// Contends for a lease; leader-only controllers run while it is held.
    #[must_use]
    pub fn leader_election(mut self, config: LeaderConfig) -> Self {
        self.election = Some(config);
        self
    }

    /// Ends [`Manager::run`] when the lease is lost, instead of standing by.
    #[must_use]
    pub fn exit_on_leadership_loss(mut self) -> Self {
        self.exit_on_loss = true;
        self
    }

    /// Time for everything together to stop. 30 s by default.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Limits beyond which `/livez` fails.
    #[must_use]
    pub fn health_limits(mut self, limits: HealthLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Probe of the allocator's statistics.
    #[must_use]
    pub fn heap(mut self, heap: HeapProbe) -> Self {
        self.heap = heap;
        self
    }

    /// Registry with further metrics of the process.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Builds the manager. Must be called within a tokio runtime.
    pub fn build(mut self) -> Result<Manager, LeaderConfigError> {
        let metrics = Metrics::register(&mut self.registry);
        metrics.observe_cluster(&self.cluster);
        let members = Members::new(&self.name);
        members.register(&mut self.registry);
        process::register(self.heap, &mut self.registry);
        let election = match self.election {
            None => None,
            Some(config) => {
                let elector = LeaderElector::new(self.cluster.client().clone(), config)?;
                elector.register(&mut self.registry);
                let (gate, status) = (elector.gate(), elector.status());
                let exit_on_loss = self.exit_on_loss;
                let elector = tokio::sync::Mutex::new(elector);
                Some(Election {
                    elector,
                    gate,
                    status,
                    exit_on_loss,
                })
            }
        };
        let clusters = Clusters::default();
        // The registry of clusters is new, so the name is free.
        let _first = clusters.join(self.cluster);
        Ok(Manager {
            inner: Arc::new(Inner {
                name: self.name,
                health: Health::new(self.limits),
                clusters,
                members,
                registry: Arc::new(self.registry),
                metrics,
                grace: self.grace,
                election,
                heap: self.heap,
            }),
        })
    }
}

impl Manager {
    /// A manager of that name for a cluster.
    pub fn builder(name: &str, cluster: Cluster) -> ManagerBuilder {
        ManagerBuilder {
            name: name.to_owned(),
            cluster,
            registry: Registry::default(),
            grace: Duration::from_secs(30),
            election: None,
            exit_on_loss: false,
            limits: HealthLimits::default(),
            heap: process::uncounted,
        }
    }

    /// Name, as in `running_managed_controllers`.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Clusters it works on; more may join.
    pub fn clusters(&self) -> &Clusters {
        &self.inner.clusters
    }

    /// Metrics to build controllers with.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Registry of everything exposed.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.inner.registry
    }

    /// Adds a cluster and exposes its informers.
    pub fn join(&self, cluster: &Cluster) -> Result<(), crate::AlreadyJoined> {
        self.inner.clusters.join(cluster.clone())?;
        self.inner.metrics.observe_cluster(cluster);
        Ok(())
    }

    /// Adds a controller. It starts with its phase, at once if that runs already. Names are unique,
    /// since metrics and operators refer to them.
    pub fn add(
        &self,
        controller: impl Into<ControllerHandle>,
    ) -> Result<ComponentId, DuplicateName> {
        let controller = controller.into();
        if controller.leader_only() {
            // Without an election no other process leads.
            let election = self.inner.election.as_ref();
            controller.set_gate(
                election.map_or_else(Gate::always_open, |election| election.gate.clone()),
            );
        }
        self.inner.members.add_controller(controller)
    }

    /// Adds a component. It starts with its phase, at once if that runs already.
    pub fn add_component(&self, component: impl Component) -> Result<ComponentId, DuplicateName> {
        let gate = self
            .inner
            .election
            .as_ref()
            .map(|election| election.gate.clone());
        self.inner.members.add_component(Arc::new(component), gate)
    }

    /// Stops a controller or component and removes it. Returns whether it was a member.
    pub async fn remove(&self, id: ComponentId) -> bool {
        self.inner.members.remove(id, self.inner.grace).await
    }

    /// Removes a cluster with its controllers and informers. Returns whether it was a member.
    pub async fn leave(&self, name: &str) -> bool {
        let left = self.inner.clusters.leave(name).await;
        for id in self.inner.members.of_cluster(name) {
            self.inner.members.remove(id, self.inner.grace).await;
        }
        left
    }

    /// A controller by name.
    pub fn controller(&self, name: &str) -> Option<ControllerHandle> {
        self.inner
            .members
            .controllers()
            .into_iter()
            .find(|handle| handle.name() == name)
    }

    /// All controllers by name.
    pub fn controllers(&self) -> Vec<ControllerHandle> {
        self.inner.members.controllers()
    }

    /// Adds a check to `/livez` or `/readyz`.
    pub fn add_health_check(&self, check: HealthCheck) {
        self.inner.health.add(check);
    }

    /// Follows the leadership; `None` without an election.
    pub fn leadership(&self) -> Option<watch::Receiver<LeaderStatus>> {
        self.inner
            .election
            .as_ref()
            .map(|election| election.status.clone())
    }

    /// Runs everything until `shutdown` resolves or something fails for good, then stops
    /// everything in reverse order.
    pub async fn run(
        &self,
        shutdown: impl Future<Output = ()>,
    ) -> Result<ExitReport, ManagerError> {
        let (failed, mut failures) = mpsc::unbounded_channel();
        self.inner.members.report_failures_to(failed);
        let stop_election = CancellationToken::new();
        let released = CancellationToken::new();
        let election = self.clone().elect(stop_election.clone(), released.clone());
        // Dropping this future ends the election with it.
        let election = AbortOnDropHandle::new(tokio::spawn(election));
        let mut lost = self.leadership_lost();
        let outcome = tokio::select! {
            () = shutdown => Ok(()),
            Some((name, source)) = failures.recv() => Err(ManagerError::Component { name, source }),
            () = &mut lost => Err(ManagerError::LeadershipLost),
            () = self.start_phases() => unreachable!("starting waits for ever after the last phase"),
        };
        let report = self.stop(&stop_election, &released).await;
        // The election's task has ended by itself; a panic in it was logged by the runtime.
        let _ended = election.await;
        outcome.map(|()| report)
    }

    async fn start_phases(&self) {
        for phase in Phase::ALL {
            self.inner.members.begin(phase).await;
        }
        tracing::info!(manager = %self.inner.name, "manager started");
        std::future::pending::<()>().await;
    }

    fn leadership_lost(&self) -> futures::future::BoxFuture<'static, ()> {
        let election = self
            .inner
            .election
            .as_ref()
            .filter(|election| election.exit_on_loss);
        let Some(mut status) = election.map(|election| election.status.clone()) else {
            return Box::pin(std::future::pending());
        };
        Box::pin(async move {
            let led = status.wait_for(|status| status.is_leader).await.is_ok();
            if !led || status.wait_for(|status| !status.is_leader).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }

    /// Contends until cancelled, then waits until all work that needs leadership has ended before
    /// it releases the lease.
    async fn elect(self, stop: CancellationToken, work_has_ended: CancellationToken) {
        let Some(election) = &self.inner.election else {
            return;
        };
        let mut elector = election.elector.lock().await;
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.inner.members.begun(Phase::Leader) => {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = elector.contend() => {}
                }
            }
        }
        // Renewing goes on while the leader's work drains.
        tokio::select! {
            () = work_has_ended.cancelled() => {}
            () = elector.keep() => {}
        }
        elector.release().await;
    }

    async fn stop(
        &self,
        stop_election: &CancellationToken,
        work_has_ended: &CancellationToken,
    ) -> ExitReport {
        let began = Instant::now();
        let deadline = began + self.inner.grace;
        self.inner.health.set_draining();
        tracing::info!(manager = %self.inner.name, "manager stopping");
        let mut report = ExitReport::default();
        stop_election.cancel();
        for phase in Phase::ALL.into_iter().rev() {
            report
                .aborted
                .extend(self.inner.members.end(phase, deadline).await);
            if phase == Phase::Leader {
                work_has_ended.cancel();
            }
        }
        report.took = began.elapsed();
        tracing::info!(manager = %self.inner.name, took = ?report.took, aborted = report.aborted.len(), "manager stopped");
        report
    }
}
