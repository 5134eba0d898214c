//! Stand-ins for the parts of Kubernetes that a network needs around it.
//!
//! They do just enough for a playground, through the API and nothing else: none of them changes a
//! route, a rule, a NodeNetworkConfig or a condition of networking.

mod deployment;
mod endpoints;
pub(crate) mod kubelet;
mod scheduler;

use weft_runtime::{Cluster, ControllerHandle};

/// The label and the manager by which people recognise what a stand-in made.
pub(crate) const MANAGER: &str = "playground.weft.dev";

/// Starts those that a cluster has one of.
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
