//! Stand-ins for the parts of Kubernetes that a cluster network depends on.
//!
//! They do just enough for a playground and work through the API only: none of them changes a route, a
//! rule, a NodeNetworkConfig or a networking condition.

mod deployment;
mod endpoints;
pub(crate) mod kubelet;
mod scheduler;

use weft_runtime::{Cluster, ControllerHandle};

/// Value of `endpointslice.kubernetes.io/managed-by` on slices of a stand-in.
pub(crate) const MANAGER: &str = "playground.weft.dev";

/// Starts the stand-ins that exist once per cluster.
pub(crate) fn start(cluster: &Cluster) -> Vec<ControllerHandle> {
    let handles = vec![
        scheduler::controller(cluster).handle(),
        deployment::controller(cluster).handle(),
        endpoints::controller(cluster).handle(),
    ];
    for handle in &handles {
        handle.start();
    }
    handles
}
