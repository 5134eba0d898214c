//! Which UDP flows have to be forgotten, so that their next packet is sent to an endpoint anew.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use weft_model::{ObjectKey, Protocol};

use crate::{Desired, Service};

/// Where UDP clients send to and who may answer them.
#[derive(Debug, Default)]
pub struct Reconciler<'a> {
    addresses: HashMap<SocketAddr, HashSet<SocketAddr>>,
    node_ports: HashMap<u16, HashSet<SocketAddr>>,
    /// Where flows of Services that are gone went; only flows that were translated are touched.
    gone: HashMap<SocketAddr, &'a ObjectKey>,
    gone_node_ports: HashSet<u16>,
}

/// The two ends of a flow that matter: where the client sent it, and who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEnds {
    /// Original destination.
    pub destination: SocketAddr,
    /// Source of the answers: the endpoint, or the destination itself if nobody translated it.
    pub answered_by: SocketAddr,
}

impl<'a> Reconciler<'a> {
    /// Knows the Services that are there, and those that were there before and had these values.
    pub fn new(desired: &Desired, removed: impl IntoIterator<Item = &'a Service>) -> Self {
        let mut reconciler = Self::default();
        for service in removed {
            reconciler.forget(service);
        }
        for service in desired.values() {
            reconciler.serve(service);
        }
        reconciler
    }

    /// Whether a flow goes where none of its Service's endpoints is.
    ///
    /// A Service without endpoints keeps no flow (kubernetes #139628), nor does one that is gone
    /// (#141371); flows that nobody translated are left alone there, as nothing leads them wrong.
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

    /// Whether there is anything a flow could be compared with.
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

/// Whether two states of a Service would make the same flows stale.
pub fn have_same_addresses(one: &Service, other: &Service) -> bool {
    let all = |service: &Service| -> BTreeSet<(SocketAddr, Option<u16>)> {
        let udp = service.ports.iter().filter(|port| is_udp(port));
        udp.flat_map(|port| addresses(port).map(|address| (address, port.frontend.node_port)))
            .collect()
    };
    one.key == other.key && all(one) == all(other)
}

/// Whether flows may have to be forgotten after this change of a Service.
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
