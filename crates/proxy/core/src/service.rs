//! A Service in the form that backends get.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use weft_model::{ObjectKey, Protocol, SharedStr};

use crate::{
    Frontend, NodeFacts,
    endpoint::{PortEndpoint, endpoints_of},
    selection::select,
    slices::Slices,
};

/// Identity of one port of one Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId {
    /// The Service.
    pub service: ObjectKey,
    /// The port's name; empty for a single unnamed port.
    pub port: SharedStr,
    /// Its protocol.
    pub protocol: Protocol,
}

/// `namespace/name` or `namespace/name:port`, as kube-proxy writes it into chain names and
/// comments. The protocol is not included.
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
    /// Addresses, ports and policies that clients see; shared with the [`Model`](crate::Model).
    pub frontend: Arc<Frontend>,
    /// Endpoints for traffic that may leave the node, sorted.
    pub cluster: Box<[SocketAddr]>,
    /// Endpoints of this node, for traffic that must stay on it, sorted.
    pub local: Box<[SocketAddr]>,
    /// Addresses of those of both lists that run on this node: what they send to the Service may
    /// come back to them.
    pub on_node: Box<[IpAddr]>,
    /// True if any node has a usable endpoint.
    pub has_endpoints: bool,
    /// All serving endpoints, which established UDP flows may keep. Empty for TCP and SCTP.
    pub serving: Box<[SocketAddr]>,
    /// Number of endpoints, usable or not.
    pub endpoint_count: usize,
}

impl ServicePort {
    /// True if traffic from inside the cluster has an endpoint under internalTrafficPolicy.
    pub fn has_internal_endpoints(&self) -> bool {
        self.has_endpoints && !(self.frontend.internal_local && self.local.is_empty())
    }

    /// True if traffic from outside the cluster has an endpoint under externalTrafficPolicy.
    pub fn has_external_endpoints(&self) -> bool {
        self.has_endpoints && !(self.frontend.external_local && self.local.is_empty())
    }

    fn derive(frontend: &Arc<Frontend>, endpoints: &[PortEndpoint<'_>], node: &NodeFacts) -> Self {
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

/// One Service in one family, with everything that a backend needs. Equal values mean equal rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its ports, in the order of the object.
    pub ports: Box<[ServicePort]>,
    /// Number of ready endpoint addresses on this node, for health checks of load balancers.
    pub local_ready: usize,
}

impl Service {
    /// Combines a Service's ports with its slices.
    pub(crate) fn derive(
        key: &ObjectKey,
        frontends: &[Arc<Frontend>],
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

    /// The identity of one of its ports.
    pub fn port_id(&self, port: &ServicePort) -> PortId {
        PortId {
            service: self.key.clone(),
            port: port.frontend.name.clone(),
            protocol: port.frontend.protocol,
        }
    }

    /// The port for health checks of load balancers, `spec.healthCheckNodePort`.
    pub fn health_check_node_port(&self) -> Option<u16> {
        self.ports
            .iter()
            .find_map(|port| port.frontend.health_check_node_port)
    }

    /// Number of endpoints of all ports together, usable or not.
    pub fn endpoint_count(&self) -> usize {
        self.ports.iter().map(|port| port.endpoint_count).sum()
    }
}
