//! The route controller of a process: opens its table and puts the controller's parts together.

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

use crate::{Announce, Egress, RoutesMetrics, RoutesParts, RoutesSettings, StatusBoard};

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

impl RoutesProcess {
    /// What keeps the rules of egress, if it is asked for and anything may be written.
    pub fn egress(&self) -> Option<Egress> {
        match &self.table {
            Table::Kernel { egress, .. } if !self.settings.observe => egress.clone(),
            _ => None,
        }
    }

    /// Opens the provider; its calls are counted there.
    pub async fn open(&self, calls: Calls) -> Result<SharedProvider, Failure> {
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

    /// Opens the table and puts a controller's parts together.
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
pub async fn flush(settings: NetlinkSettings) -> Result<usize, Failure> {
    Ok(NetlinkProvider::open(settings)?.flush().await?)
}

/// The page `/debug/routes`: the state of every route as JSON.
pub fn status_page(board: StatusBoard) -> Router {
    let page = move || async move {
        match serde_json::to_string_pretty(&board.read()) {
            Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    };
    Router::new().route("/debug/routes", get(page))
}

/// The lease, which events refer to that concern no Node.
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
