//! Endpoints as EndpointSlices report them, and the merge of a Service's slices.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use weft_model::{IpFamily, Protocol, SharedStr};

use crate::{
    frontend::{port_number, protocol},
    objects::{FirstAddress, Hint, SliceEndpoint, SlicePortSpec, SliceView},
};

/// One address behind a Service.
#[expect(
    clippy::struct_excessive_bools,
    reason = "the conditions are independent of each other"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// Takes new connections.
    pub ready: bool,
    /// Answers requests, whether ready or terminating.
    pub serving: bool,
    /// Its pod is being shut down.
    pub terminating: bool,
    /// Runs on this node.
    pub local: bool,
    /// Zones and nodes that should use it; `None` for an endpoint without hints, as most are.
    pub hints: Option<Box<EndpointHints>>,
}

/// Topology hints of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointHints {
    /// Zones that should use it, from `hints.forZones`.
    pub zones: Box<[SharedStr]>,
    /// Nodes that should use it, from `hints.forNodes`.
    pub nodes: Box<[SharedStr]>,
}

impl Endpoint {
    /// Zones that should use it.
    pub fn zone_hints(&self) -> &[SharedStr] {
        self.hints.as_ref().map_or(&[], |hints| &hints.zones)
    }

    /// Nodes that should use it.
    pub fn node_hints(&self) -> &[SharedStr] {
        self.hints.as_ref().map_or(&[], |hints| &hints.nodes)
    }
}

/// A port that the endpoints of a slice have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Matches it to the Service port of that name.
    pub name: SharedStr,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
}

/// The parts of an EndpointSlice that affect rules. Annotations and resource versions do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The family of its addresses.
    pub family: IpFamily,
    /// Its endpoints.
    pub endpoints: Box<[Endpoint]>,
    /// Their ports.
    pub ports: Box<[SlicePort]>,
}

impl Slice {
    /// Converts a slice. `None` for other address types; descriptions of invalid values are added
    /// to `problems`.
    pub fn derive(view: SliceView<'_>, node: &str, problems: &mut Vec<String>) -> Option<Self> {
        let family = match view.address_type {
            "IPv4" => IpFamily::V4,
            "IPv6" => IpFamily::V6,
            _ => return None,
        };
        let endpoints = view
            .endpoints
            .iter()
            .filter_map(|endpoint| derive_endpoint(endpoint, family, node, problems))
            .collect();
        let ports = view
            .ports
            .iter()
            .filter_map(|port| derive_port(port, problems))
            .collect();
        Some(Self {
            family,
            endpoints,
            ports,
        })
    }
}

fn derive_endpoint(
    endpoint: &SliceEndpoint,
    family: IpFamily,
    node: &str,
    problems: &mut Vec<String>,
) -> Option<Endpoint> {
    let address = match &endpoint.address {
        FirstAddress::None => return None,
        FirstAddress::Ip(address) if IpFamily::of(*address) == family => *address,
        other => {
            problems.push(format!("endpoint {other} is not an {family} address"));
            return None;
        }
    };
    let names = |hints: &[Hint]| hints.iter().map(|hint| hint.name.clone()).collect();
    let hints = endpoint.hints.as_ref().map(|hints| EndpointHints {
        zones: names(&hints.for_zones),
        nodes: names(&hints.for_nodes),
    });
    Some(Endpoint {
        address,
        ready: endpoint.conditions.ready.unwrap_or(true),
        serving: endpoint.conditions.serving.unwrap_or(true),
        terminating: endpoint.conditions.terminating.unwrap_or(false),
        local: !node.is_empty() && endpoint.node_name.as_deref() == Some(node),
        hints: hints
            .filter(|hints| *hints != EndpointHints::default())
            .map(Box::new),
    })
}

fn derive_port(port: &SlicePortSpec, problems: &mut Vec<String>) -> Option<SlicePort> {
    let (Some(name), Some(number)) = (&port.name, port.port.filter(|number| *number != 0)) else {
        return None;
    };
    let Some(port_number) = port_number(number) else {
        problems.push(format!("port {number} is not a port number"));
        return None;
    };
    let text = port.protocol.as_deref().unwrap_or_default();
    let Some(protocol) = protocol(text) else {
        problems.push(format!("port {number}: unknown protocol {text:?}"));
        return None;
    };
    Some(SlicePort {
        name: name.clone(),
        protocol,
        port: port_number,
    })
}

/// An endpoint with the port of one Service port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortEndpoint<'a> {
    /// Destination of packets.
    pub(crate) address: SocketAddr,
    /// Conditions and hints.
    pub(crate) endpoint: &'a Endpoint,
}

/// The endpoints of one Service port out of all slices of the Service, in byte order of their text
/// (`10.0.0.10:80` before `10.0.0.9:80`): that order decides the probabilities in the rules.
///
/// Of two entries with the same address the later one is used, unless it is terminating: then the
/// address already belongs to a new pod.
pub(crate) fn endpoints_of<'a>(
    slices: impl Iterator<Item = &'a Slice>,
    name: &str,
    protocol: Protocol,
) -> Vec<PortEndpoint<'a>> {
    let mut found: HashMap<SocketAddr, &Endpoint> = HashMap::new();
    for slice in slices {
        let ports = slice
            .ports
            .iter()
            .filter(|port| &*port.name == name && port.protocol == protocol);
        for port in ports {
            for endpoint in &slice.endpoints {
                let address = SocketAddr::new(endpoint.address, port.port);
                let known = found.entry(address).or_insert(endpoint);
                if !endpoint.terminating {
                    *known = endpoint;
                }
            }
        }
    }
    let mut endpoints: Vec<PortEndpoint<'_>> = found
        .into_iter()
        .map(|(address, endpoint)| PortEndpoint { address, endpoint })
        .collect();
    endpoints.sort_by_cached_key(|endpoint| endpoint.address.to_string());
    endpoints
}
