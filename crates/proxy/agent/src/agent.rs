//! The proxy as a component of a process: starts the watcher and one loop per family.

use std::sync::Arc;

use tokio::{
    sync::Notify,
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;
use weft_model::{IpFamily, ObjectKey, SharedStr};
use weft_proxy::{Backend, Model, NodeFacts, config::NodeNetwork, config::ProxyConfig};
use weft_runtime::{
    Cluster, Component, ComponentRun, ComponentScope, EventRecorder, Failure, Phase,
};

use crate::{
    config_file::{self, ConfigFile, ConfigFileChanged},
    family::{EventSink, FamilyLoop, FamilyParts},
    health::HealthMonitor,
    inbox::Inbox,
    metrics::ProxyMetrics,
    sync_state::Flows,
    watcher::{HostAddresses, Watcher, WatcherParts, node_ip},
};

/// The kernel interfaces of one family.
pub struct FamilyKernel {
    /// The family.
    pub family: IpFamily,
    /// Writes its rules.
    pub backend: Box<dyn Backend>,
    /// Its conntrack entries.
    pub flows: Box<dyn Flows>,
    /// Notified when another process changed what the backend wrote.
    pub disturbed: Arc<Notify>,
}

/// The inputs of one run of the proxy.
pub struct RunSetup {
    /// The validated configuration.
    pub config: Arc<ProxyConfig>,
    /// The kernel interfaces, one for each family to serve.
    pub kernels: Vec<FamilyKernel>,
    /// Ends the run when it changes.
    pub file: Option<ConfigFile>,
}

/// Prepares one run of the proxy, on a thread that may block.
pub type PrepareRun = Arc<dyn Fn() -> Result<RunSetup, Failure> + Send + Sync>;

/// The dependencies of a proxy.
#[derive(Clone)]
pub struct ProxyParts {
    /// Caches and client of the API server.
    pub cluster: Cluster,
    /// This node's name.
    pub node: SharedStr,
    /// Called at the start of each run.
    pub prepare: PrepareRun,
    /// The host's addresses.
    pub addresses: Arc<dyn HostAddresses>,
    /// Metrics to update.
    pub metrics: ProxyMetrics,
    /// Health state to update.
    pub health: HealthMonitor,
    /// Records events about Services and the node.
    pub events: EventRecorder,
}

/// Serves a node's Services from start to stop. The rules stay when it ends, and the next run
/// begins with a full sync.
pub struct Proxy(ProxyParts);

impl Proxy {
    /// A proxy with these dependencies.
    pub fn new(parts: ProxyParts) -> Self {
        Self(parts)
    }
}

impl Component for Proxy {
    fn name(&self) -> &'static str {
        "proxy"
    }

    fn phase(&self) -> Phase {
        Phase::Always
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun {
        let parts = self.0.clone();
        Box::pin(async move {
            let prepare = parts.prepare.clone();
            let setup = tokio::task::spawn_blocking(move || prepare()).await??;
            PreparedProxy { parts, setup }.run(scope).await
        })
    }
}

/// A proxy whose run is prepared.
struct PreparedProxy {
    parts: ProxyParts,
    setup: RunSetup,
}

impl PreparedProxy {
    async fn run(self, scope: ComponentScope) -> Result<(), Failure> {
        let Self { parts, setup } = self;
        let RunSetup {
            config,
            kernels,
            file,
        } = setup;
        let stop = CancellationToken::new();
        // When one task ends, all others are stopped.
        let _ends_all = stop.clone().drop_guard();
        let event_sink = event_sink(parts.events);
        let mut inboxes = Vec::new();
        let mut loops = JoinSet::new();
        for kernel in kernels {
            let node = NodeNetwork {
                node_ip: node_ip(&config, kernel.family, &[]),
                pod_networks: Vec::new(),
                addresses: parts.addresses.addresses().unwrap_or_default(),
            };
            let facts = NodeFacts {
                name: parts.node.clone(),
                zone: None,
            };
            let inbox = Arc::new(Inbox::new(
                Model::new(kernel.family, facts),
                config.settings(kernel.family, &node),
            ));
            inboxes.push((kernel.family, inbox.clone()));
            let family = FamilyLoop::new(FamilyParts {
                family: kernel.family,
                inbox,
                backend: kernel.backend,
                flows: kernel.flows,
                disturbed: kernel.disturbed,
                metrics: parts.metrics.clone(),
                health: parts.health.clone(),
                event_sink: event_sink.clone(),
                node: parts.node.to_string(),
                min_sync_period: config.min_sync_period,
                sync_period: config.sync_period,
            });
            let stopped = stop.clone();
            loops.spawn(async move { family.run(stopped).await.map_err(Failure::from) });
        }
        let watcher = Watcher::new(
            parts.cluster.cache(),
            &parts.node,
            WatcherParts {
                inboxes,
                config,
                host: parts.addresses,
                metrics: parts.metrics,
                health: parts.health,
            },
        )?;
        let watching = stop.clone();
        loops.spawn(async move { watcher.run(watching).await.map_err(Failure::from) });
        scope.ready();
        let first = tokio::select! {
            () = scope.stopped() => None,
            changed = changed(file) => Some(Ok(Err(changed.into()))),
            first = loops.join_next() => first,
        };
        stop.cancel();
        let mut outcome = first.map_or(Ok(()), flatten);
        while let Some(ended) = loops.join_next().await {
            outcome = outcome.and(flatten(ended));
        }
        outcome
    }
}

async fn changed(file: Option<ConfigFile>) -> ConfigFileChanged {
    match file {
        Some(file) => file.changed(config_file::INTERVAL).await,
        None => std::future::pending().await,
    }
}

fn flatten(ended: Result<Result<(), Failure>, JoinError>) -> Result<(), Failure> {
    ended?
}

fn event_sink(events: EventRecorder) -> EventSink {
    Arc::new(move |service: &ObjectKey, note| {
        let regarding = k8s_openapi::api::core::v1::ObjectReference {
            kind: Some("Service".to_owned()),
            api_version: Some("v1".to_owned()),
            namespace: service.namespace.as_deref().map(str::to_owned),
            name: Some(service.name.to_string()),
            ..Default::default()
        };
        events.record_about(regarding, note);
    })
}
