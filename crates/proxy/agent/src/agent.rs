//! The proxy as a component of a process.

use std::{error::Error, sync::Arc};

use tokio::{
    sync::Notify,
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;
use weft_model::{IpFamily, ObjectKey, SharedStr};
use weft_proxy::{Backend, Model, NodeFacts, config::NodeNetwork, config::ProxyConfig};
use weft_runtime::{Cluster, Component, ComponentScope, EventRecorder, Phase};

use crate::{
    config_file::{self, ConfigFile, ConfigFileChanged},
    family::{Announce, FamilyLoop, FamilyParts, Flows},
    health::HealthMonitor,
    inbox::Inbox,
    listen::Running,
    metrics::ProxyMetrics,
    watcher::{HostAddresses, Watcher, WatcherParts, node_ip},
};

/// What the proxy of one family writes to.
pub struct FamilyKernel {
    /// The family.
    pub family: IpFamily,
    /// Programs its Services.
    pub backend: Box<dyn Backend>,
    /// Its tracked flows.
    pub flows: Box<dyn Flows>,
    /// Notified when another process changed what the backend wrote.
    pub disturbed: Arc<Notify>,
}

/// What a life of a proxy begins with.
pub struct Beginning {
    /// How to treat traffic.
    pub config: Arc<ProxyConfig>,
    /// The kernel, for each family to serve.
    pub kernels: Vec<FamilyKernel>,
    /// Ends the life when it changes.
    pub file: Option<ConfigFile>,
}

type AnyError = Box<dyn Error + Send + Sync>;

/// Makes ready for a life, on a thread that may block.
pub type Begin = Arc<dyn Fn() -> Result<Beginning, AnyError> + Send + Sync>;

/// What a proxy is made of.
#[derive(Clone)]
pub struct ProxyParts {
    /// Where the objects are.
    pub cluster: Cluster,
    /// This node's name.
    pub node: SharedStr,
    /// What each life begins with.
    pub begin: Begin,
    /// The host's addresses.
    pub addresses: Arc<dyn HostAddresses>,
    /// Where to count.
    pub metrics: ProxyMetrics,
    /// Where to say how it goes.
    pub health: HealthMonitor,
    /// Where to say what users of a Service should know.
    pub events: EventRecorder,
}

/// Serves a node's Services from when it is started until it is stopped. Rules stay when it ends,
/// and whoever starts it again begins with a full look.
pub struct Proxy(ProxyParts);

impl Proxy {
    /// A proxy of these parts.
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

    fn run(self: Arc<Self>, scope: ComponentScope) -> Running {
        let parts = self.0.clone();
        Box::pin(async move {
            let begin = parts.begin.clone();
            let beginning = tokio::task::spawn_blocking(move || begin()).await??;
            Settled { parts, beginning }.run(scope).await
        })
    }
}

/// A proxy that knows what it works with.
struct Settled {
    parts: ProxyParts,
    beginning: Beginning,
}

impl Settled {
    async fn run(self, scope: ComponentScope) -> Result<(), AnyError> {
        let Self { parts, beginning } = self;
        let Beginning {
            config,
            kernels,
            file,
        } = beginning;
        let stop = CancellationToken::new();
        // Whatever ends first takes the others with it.
        let _ends_all = stop.clone().drop_guard();
        let announce = announcer(parts.events);
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
                announce: announce.clone(),
                node: parts.node.to_string(),
                min_sync_period: config.min_sync_period,
                sync_period: config.sync_period,
            });
            let stopped = stop.clone();
            loops.spawn(async move { family.run(stopped).await.map_err(AnyError::from) });
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
        loops.spawn(async move { watcher.run(watching).await.map_err(AnyError::from) });
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

fn flatten(ended: Result<Result<(), AnyError>, JoinError>) -> Result<(), AnyError> {
    ended?
}

fn announcer(events: EventRecorder) -> Announce {
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
