//! The proxy as a component of a process.

use std::{
    error::Error,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::task::{JoinError, JoinSet};
use weft_model::{IpFamily, ObjectKey, SharedStr};
use weft_proxy::{Backend, Model, NodeFacts, config::NodeNetwork, config::ProxyConfig};
use weft_runtime::{Cluster, Component, ComponentScope, EventRecorder, Phase};

use super::{
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
}

/// What a proxy is made of.
pub struct ProxyParts {
    /// Where the objects are.
    pub cluster: Cluster,
    /// This node's name.
    pub node: SharedStr,
    /// How to treat traffic.
    pub config: Arc<ProxyConfig>,
    /// The kernel, for each family to serve.
    pub kernels: Vec<FamilyKernel>,
    /// The host's addresses.
    pub addresses: Arc<dyn HostAddresses>,
    /// Where to count.
    pub metrics: ProxyMetrics,
    /// Where to say how it goes.
    pub health: HealthMonitor,
    /// Where to say what users of a Service should know.
    pub events: EventRecorder,
}

/// Serves a node's Services from when it is started until it is stopped. Rules stay when it ends.
pub struct Proxy(Mutex<Option<ProxyParts>>);

impl Proxy {
    /// A proxy of these parts.
    pub fn new(parts: ProxyParts) -> Self {
        Self(Mutex::new(Some(parts)))
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
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            let Some(parts) = parts else {
                return Err("the proxy was started twice".into());
            };
            run(parts, scope).await
        })
    }
}

async fn run(parts: ProxyParts, scope: ComponentScope) -> Result<(), Box<dyn Error + Send + Sync>> {
    let stop = tokio_util::sync::CancellationToken::new();
    // Whatever ends first takes the others with it.
    let _ends_all = stop.clone().drop_guard();
    let announce = announcer(parts.events);
    let mut inboxes = Vec::new();
    let mut loops = JoinSet::new();
    for kernel in parts.kernels {
        let node = NodeNetwork {
            node_ip: node_ip(&parts.config, kernel.family, &[]),
            pod_networks: Vec::new(),
            addresses: parts.addresses.addresses().unwrap_or_default(),
        };
        let facts = NodeFacts {
            name: parts.node.clone(),
            zone: None,
        };
        let inbox = Arc::new(Inbox::new(
            Model::new(kernel.family, facts),
            parts.config.settings(kernel.family, &node),
        ));
        inboxes.push((kernel.family, inbox.clone()));
        let family = FamilyLoop::new(FamilyParts {
            family: kernel.family,
            inbox,
            backend: kernel.backend,
            flows: kernel.flows,
            metrics: parts.metrics.clone(),
            health: parts.health.clone(),
            announce: announce.clone(),
            node: parts.node.to_string(),
            min_sync_period: parts.config.min_sync_period,
            sync_period: parts.config.sync_period,
        });
        let stopped = stop.clone();
        loops.spawn(async move { family.run(stopped).await.map_err(AnyError::from) });
    }
    let watcher = Watcher::new(
        parts.cluster.cache(),
        &parts.node,
        WatcherParts {
            inboxes,
            config: parts.config,
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
        first = loops.join_next() => first,
    };
    stop.cancel();
    let mut outcome = first.map_or(Ok(()), flatten);
    while let Some(ended) = loops.join_next().await {
        outcome = outcome.and(flatten(ended));
    }
    outcome
}

type AnyError = Box<dyn Error + Send + Sync>;

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
