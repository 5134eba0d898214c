//! Assembles the route controller of a process: opens its route table and builds the parts.

use std::{path::PathBuf, sync::Arc};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse as _,
    routing::get,
};
use k8s_openapi::api::core::v1::ObjectReference;
use weft_host::sysctl;
use weft_process::identity;
use weft_providers::{Calls, NetlinkProvider, SharedProvider, netlink::NetlinkSettings, open};
use weft_runtime::{Cluster, EventRecorder, Failure, LeaderConfig};

use crate::{Egress, RouteEvents, RoutesMetrics, RoutesParts, RoutesSettings, StatusBoard};

/// Configuration of the route controller of a process.
#[derive(Clone, Debug)]
pub struct RoutesProcess {
    /// The route table to manage.
    pub table: Table,
    /// The operator's settings.
    pub settings: RoutesSettings,
    /// Namespace of the ConfigMap that records which routes are ours.
    pub namespace: String,
}

/// A kind of route table.
#[derive(Clone, Debug)]
pub enum Table {
    /// The route table of a cloud.
    Cloud {
        /// Value of `--cloud-provider`.
        provider: String,
        /// Value of `--cloud-config`.
        config: Option<PathBuf>,
    },
    /// The kernel's table of this machine; every node runs its own controller.
    Kernel {
        /// Marks and limits of our routes in the kernel.
        settings: NetlinkSettings,
        /// Name of this node.
        node: String,
        /// The masquerading component, if enabled.
        egress: Option<Egress>,
    },
}

impl RoutesProcess {
    /// The masquerading component; `None` if it is disabled or in observe mode.
    pub fn egress(&self) -> Option<Egress> {
        match &self.table {
            Table::Kernel { egress, .. } if !self.settings.observe => egress.clone(),
            _ => None,
        }
    }

    /// Opens the provider, which counts its calls in `calls`.
    pub async fn open(&self, calls: Calls) -> Result<SharedProvider, Failure> {
        match &self.table {
            Table::Cloud { provider, config } => {
                Ok(open(provider, config.as_deref(), calls).await?)
            }
            Table::Kernel { settings, .. } => {
                let provider = NetlinkProvider::open(settings.clone())?.counting(calls);
                for warning in provider.warnings(&sysctl::Settings::default()).await? {
                    tracing::warn!(%warning, "kernel setting drops pod traffic");
                }
                Ok(Arc::new(provider))
            }
        }
    }

    /// Opens the table and builds the parts of a controller. `about` is the object of events that
    /// concern no node.
    pub async fn parts(
        self,
        cluster: &Cluster,
        metrics: RoutesMetrics,
        about: ObjectReference,
        board: StatusBoard,
    ) -> Result<RoutesParts, Failure> {
        let provider = self.open(metrics.calls.clone()).await?;
        if !self.settings.observe {
            provider.prepare().await?;
        }
        let own_node = self.table.own_node();
        let client = cluster.client().clone();
        let recorder = EventRecorder::new(client, "route_controller", &identity());
        Ok(RoutesParts {
            cluster: cluster.clone(),
            provider,
            // Kernel routes carry a mark and need no record.
            record_namespace: own_node.is_none().then_some(self.namespace),
            own_node,
            events: RouteEvents {
                recorder: (!self.settings.observe).then_some(recorder),
                about,
            },
            settings: self.settings,
            metrics,
            board,
        })
    }
}

impl Table {
    /// Name of this node, where every node has its own table.
    pub fn own_node(&self) -> Option<String> {
        match self {
            Self::Cloud { .. } => None,
            Self::Kernel { node, .. } => Some(node.clone()),
        }
    }
}

/// Deletes every route of ours from this machine's kernel; returns their number.
pub async fn flush(settings: NetlinkSettings) -> Result<usize, Failure> {
    Ok(NetlinkProvider::open(settings)?.flush().await?)
}

/// The page `/debug/routes`: the controller's status as JSON.
pub fn status_page(board: StatusBoard) -> Router {
    let page = move || async move {
        match serde_json::to_string_pretty(&board.read()) {
            Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    };
    Router::new().route("/debug/routes", get(page))
}

/// Reference to the lease, the object of events that concern no node.
pub fn lease_reference(election: Option<&LeaderConfig>) -> ObjectReference {
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
