//! A Service as a backend gets it.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
};

use weft_model::{ObjectKey, Protocol, SharedStr};

use crate::{
    Frontend, NodeFacts,
    endpoint::{PortEndpoint, endpoints_of},
    selection::select,
    slices::Slices,
};

/// What identifies one port of one Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId {
    /// The Service.
    pub service: ObjectKey,
    /// The port's name, empty for a single unnamed port.
    pub port: SharedStr,
    /// Its protocol.
    pub protocol: Protocol,
}

/// `namespace/name` or `namespace/name:port`, as kube-proxy writes it into chain names and
/// comments. The protocol is not part of it.
impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.service.fmt(f)?;
        if self.port.is_empty() {
            return Ok(());
        }
        write!(f, ":{}", self.port)
    }
}

/// One port of a Service with the endpoints that this node uses for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// What clients see.
    pub frontend: Frontend,
    /// Endpoints for traffic that may leave the node, in order.
    pub cluster: Box<[SocketAddr]>,
    /// Endpoints for traffic that has to stay, in order.
    pub local: Box<[SocketAddr]>,
    /// Addresses of those of both lists that run on this node: what they send to the Service may
    /// come back to them.
    pub on_node: Box<[IpAddr]>,
    /// Whether there is an endpoint anywhere.
    pub has_endpoints: bool,
    /// Where established UDP flows may stay: all endpoints that answer. Empty for TCP and SCTP.
    pub serving: Box<[SocketAddr]>,
    /// How many endpoints there are, usable or not.
    pub endpoint_count: usize,
}

impl ServicePort {
    /// Whether clients inside the cluster get an answer on this node.
    pub fn has_internal_endpoints(&self) -> bool {
        self.has_endpoints && !(self.frontend.internal_local && self.local.is_empty())
    }

    /// Whether clients outside the cluster get an answer from this node.
    pub fn has_external_endpoints(&self) -> bool {
        self.has_endpoints && !(self.frontend.external_local && self.local.is_empty())
    }

    fn derive(frontend: &Frontend, endpoints: &[PortEndpoint<'_>], node: &NodeFacts) -> Self {
        let selection = select(frontend, endpoints, node);
        let serving = if frontend.protocol == Protocol::Udp {
            let answering = endpoints
                .iter()
                .filter(|candidate| candidate.endpoint.serving);
            answering.map(|candidate| candidate.address).collect()
        } else {
            Box::default()
        };
        let on_node: BTreeSet<IpAddr> = endpoints
            .iter()
            .filter(|candidate| candidate.endpoint.local)
            .filter(|candidate| selection.contains(candidate.address))
            .map(|candidate| candidate.endpoint.address)
            .collect();
        Self {
            frontend: frontend.clone(),
            on_node: on_node.into_iter().collect(),
            cluster: selection.cluster.into(),
            local: selection.local.into(),
            has_endpoints: selection.has_endpoints,
            serving,
            endpoint_count: endpoints.len(),
        }
    }
}

/// One Service in one family: all that a backend needs to know. Equal values mean equal rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub key: ObjectKey,
    /// Its ports, in the order of the object.
    pub ports: Box<[ServicePort]>,
    /// On how many addresses of this node it is ready, for load balancers that ask.
    pub local_ready: usize,
}

impl Service {
    /// Brings a Service's ports together with its slices.
    pub(crate) fn derive(
        key: &ObjectKey,
        frontends: &[Frontend],
        slices: &Slices,
        node: &NodeFacts,
    ) -> Self {
        let mut local_ready = BTreeSet::new();
        let ports = frontends
            .iter()
            .map(|frontend| {
                let endpoints = endpoints_of(slices.iter(), &frontend.name, frontend.protocol);
                let here = endpoints.iter().map(|candidate| candidate.endpoint);
                local_ready.extend(here.filter(|e| e.local && e.ready).map(|e| e.address));
                ServicePort::derive(frontend, &endpoints, node)
            })
            .collect();
        Self {
            key: key.clone(),
            ports,
            local_ready: local_ready.len(),
        }
    }

    /// What identifies one of its ports.
    pub fn port_id(&self, port: &ServicePort) -> PortId {
        PortId {
            service: self.key.clone(),
            port: port.frontend.name.clone(),
            protocol: port.frontend.protocol,
        }
    }

    /// Where load balancers ask for local endpoints.
    pub fn health_check_node_port(&self) -> Option<u16> {
        self.ports
            .iter()
            .find_map(|port| port.frontend.health_check_node_port)
    }

    /// How many endpoints all ports have together.
    pub fn endpoint_count(&self) -> usize {
        self.ports.iter().map(|port| port.endpoint_count).sum()
    }
}
