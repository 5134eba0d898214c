//! Selection of the endpoints of a Service port that this node uses, by readiness, policy and
//! topology hints.

use std::net::SocketAddr;

use crate::{Frontend, NodeFacts, endpoint::PortEndpoint};

/// The selected endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// For traffic that may leave the node.
    pub(crate) cluster: Vec<SocketAddr>,
    /// For traffic that must stay on the node.
    pub(crate) local: Vec<SocketAddr>,
    /// True if any node has a usable endpoint.
    pub(crate) has_endpoints: bool,
}

impl Selection {
    /// True if an endpoint is in one of the lists.
    pub(crate) fn contains(&self, address: SocketAddr) -> bool {
        self.cluster.contains(&address) || self.local.contains(&address)
    }
}

/// The kind of topology hints to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    None,
    SameNode,
    SameZone,
}

/// Selects endpoints. Keeps their order.
pub(crate) fn select(
    frontend: &Frontend,
    endpoints: &[PortEndpoint<'_>],
    node: &NodeFacts,
) -> Selection {
    let mut selection = Selection::default();
    if frontend.uses_cluster_endpoints() {
        selection.cluster = cluster(endpoints, node);
        selection.has_endpoints = !selection.cluster.is_empty();
    }
    if frontend.uses_local_endpoints() {
        selection.local = local(endpoints);
        selection.has_endpoints = selection.has_endpoints
            || endpoints
                .iter()
                .any(|candidate| is_ready(candidate) || is_last_resort(candidate));
    }
    selection
}

fn cluster(endpoints: &[PortEndpoint<'_>], node: &NodeFacts) -> Vec<SocketAddr> {
    let topology = topology(endpoints, node);
    let ready = chosen(endpoints, |candidate| {
        is_ready(candidate) && is_hinted(candidate, topology, node)
    });
    if ready.is_empty() {
        chosen(endpoints, is_last_resort)
    } else {
        ready
    }
}

fn local(endpoints: &[PortEndpoint<'_>]) -> Vec<SocketAddr> {
    let ready = chosen(endpoints, |candidate| {
        candidate.endpoint.local && is_ready(candidate)
    });
    if ready.is_empty() {
        chosen(endpoints, |candidate| {
            candidate.endpoint.local && is_last_resort(candidate)
        })
    } else {
        ready
    }
}

fn chosen(
    endpoints: &[PortEndpoint<'_>],
    accept: impl Fn(&PortEndpoint<'_>) -> bool,
) -> Vec<SocketAddr> {
    let accepted = endpoints.iter().filter(|candidate| accept(candidate));
    accepted.map(|candidate| candidate.address).collect()
}

fn is_ready(candidate: &PortEndpoint<'_>) -> bool {
    candidate.endpoint.ready
}

/// True for a terminating endpoint that still serves. Used if no endpoint is ready.
fn is_last_resort(candidate: &PortEndpoint<'_>) -> bool {
    candidate.endpoint.serving && candidate.endpoint.terminating
}

/// The kind of hints to follow. Hints count only if every ready endpoint has them and one of them
/// names this node or its zone: anything else could leave a client without an endpoint.
fn topology(endpoints: &[PortEndpoint<'_>], node: &NodeFacts) -> Topology {
    let ready = || endpoints.iter().filter(|candidate| is_ready(candidate));
    let all_and_one_of_us = |topology| {
        let has_hints = |candidate: &PortEndpoint<'_>| match topology {
            Topology::SameNode => !candidate.endpoint.node_hints().is_empty(),
            _ => !candidate.endpoint.zone_hints().is_empty(),
        };
        ready().all(has_hints) && ready().any(|candidate| is_hinted(candidate, topology, node))
    };
    [Topology::SameNode, Topology::SameZone]
        .into_iter()
        .find(|topology| all_and_one_of_us(*topology))
        .unwrap_or(Topology::None)
}

fn is_hinted(candidate: &PortEndpoint<'_>, topology: Topology, node: &NodeFacts) -> bool {
    match topology {
        Topology::None => true,
        Topology::SameNode => candidate.endpoint.node_hints().contains(&node.name),
        Topology::SameZone => node
            .zone
            .as_ref()
            .is_some_and(|zone| candidate.endpoint.zone_hints().contains(zone)),
    }
}
