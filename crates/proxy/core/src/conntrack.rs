//! Finds stale UDP flows: conntrack entries that must be deleted so that the next packet of the
//! client gets a current endpoint.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use weft_model::{ObjectKey, Protocol};

use crate::{Desired, Service};

/// UDP destinations of Services and the endpoints that may answer for them.
#[derive(Debug, Default)]
pub struct Reconciler<'a> {
    addresses: HashMap<SocketAddr, HashSet<SocketAddr>>,
    node_ports: HashMap<u16, HashSet<SocketAddr>>,
    /// Destinations of deleted Services; only flows that were translated (DNAT) are stale there.
    gone: HashMap<SocketAddr, &'a ObjectKey>,
    gone_node_ports: HashSet<u16>,
}

/// The two ends of a flow that matter here: the destination that the client chose, and the source
/// of the replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEnds {
    /// Original destination.
    pub destination: SocketAddr,
    /// Source of the replies: the endpoint, or the destination itself if there was no DNAT.
    pub answered_by: SocketAddr,
}

impl<'a> Reconciler<'a> {
    /// Indexes the desired Services, and Services that were removed, by their last value.
    pub fn new(desired: &Desired, removed: impl IntoIterator<Item = &'a Service>) -> Self {
        let mut reconciler = Self::default();
        for service in removed {
            reconciler.forget(service);
        }
        for service in desired.unordered() {
            reconciler.serve(service);
        }
        reconciler
    }

    /// True if a flow leads to an address that is not an endpoint of its Service.
    ///
    /// A Service without endpoints keeps no translated flow (kubernetes #139628), nor does a
    /// deleted one (#141371). Flows without DNAT are left alone there: nothing leads them to a
    /// wrong endpoint.
    pub fn is_stale(&self, flow: FlowEnds) -> bool {
        let translated = flow.answered_by != flow.destination;
        let wrong = |endpoints: Option<&HashSet<SocketAddr>>| {
            endpoints.is_some_and(|endpoints| {
                !endpoints.contains(&flow.answered_by) && (translated || !endpoints.is_empty())
            })
        };
        let port = flow.destination.port();
        wrong(self.addresses.get(&flow.destination))
            || wrong(self.node_ports.get(&port))
            || (translated
                && (self.gone.contains_key(&flow.destination)
                    || self.gone_node_ports.contains(&port)))
    }

    /// True if no flow can be stale.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
            && self.node_ports.is_empty()
            && self.gone.is_empty()
            && self.gone_node_ports.is_empty()
    }

    fn serve(&mut self, service: &Service) {
        for port in service.ports.iter().filter(|port| is_udp(port)) {
            let serving: HashSet<SocketAddr> = port.serving.iter().copied().collect();
            for address in addresses(port) {
                self.gone.remove(&address);
                self.addresses.insert(address, serving.clone());
            }
            if let Some(node_port) = port.frontend.node_port {
                self.gone_node_ports.remove(&node_port);
                self.node_ports.insert(node_port, serving);
            }
        }
    }

    fn forget(&mut self, service: &'a Service) {
        for port in service.ports.iter().filter(|port| is_udp(port)) {
            for address in addresses(port) {
                self.gone.insert(address, &service.key);
            }
            self.gone_node_ports.extend(port.frontend.node_port);
        }
    }
}

fn is_udp(port: &crate::ServicePort) -> bool {
    port.frontend.protocol == Protocol::Udp
}

fn addresses(port: &crate::ServicePort) -> impl Iterator<Item = SocketAddr> + '_ {
    let frontend = &port.frontend;
    let all = std::iter::once(&frontend.cluster_ip)
        .chain(&frontend.load_balancer_ips)
        .chain(&frontend.external_ips);
    all.map(move |address: &IpAddr| SocketAddr::new(*address, frontend.port))
}

/// True if two states of a Service have the same name and the same UDP destinations.
pub fn have_same_addresses(one: &Service, other: &Service) -> bool {
    let all = |service: &Service| -> BTreeSet<(SocketAddr, Option<u16>)> {
        let udp = service.ports.iter().filter(|port| is_udp(port));
        udp.flat_map(|port| addresses(port).map(|address| (address, port.frontend.node_port)))
            .collect()
    };
    one.key == other.key && all(one) == all(other)
}

/// True if flows may have become stale by this change of a Service.
pub fn is_concerned(old: Option<&Service>, new: Option<&Service>) -> bool {
    type Facts = (SocketAddr, Option<u16>, Vec<SocketAddr>);
    let facts = |service: Option<&Service>| -> BTreeSet<Facts> {
        let ports = service.into_iter().flat_map(|service| &service.ports);
        let facts = ports.filter(|port| is_udp(port)).flat_map(|port| {
            let serving = port.serving.to_vec();
            let node_port = port.frontend.node_port;
            addresses(port).map(move |address| (address, node_port, serving.clone()))
        });
        facts.collect()
    };
    facts(old) != facts(new)
}
