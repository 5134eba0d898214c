//! One port of a Service as clients see it: addresses, ports and policies.

use std::net::IpAddr;

use ipnet::IpNet;
use weft_model::{IpFamily, Protocol, SharedStr, parse_sloppy};

use crate::{
    address::parse_network,
    objects::{ServicePortSpec, ServiceSpec, ServiceStatus},
};

/// Duration of session affinity if the object does not set one, in seconds.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// Range that the API server accepts. iptables refuses 0, and with it the whole input.
const AFFINITY_SECONDS: std::ops::RangeInclusive<u32> = 1..=86_400;

/// Addresses, ports and policies of one Service port in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// The port's name; empty for a single unnamed port.
    pub name: SharedStr,
    /// Its protocol.
    pub protocol: Protocol,
    /// The ClusterIP of this family.
    pub cluster_ip: IpAddr,
    /// The port at ClusterIP, external and load balancer addresses.
    pub port: u16,
    /// The port on every node.
    pub node_port: Option<u16>,
    /// External addresses of this family, in the order of the object.
    pub external_ips: Box<[IpAddr]>,
    /// Load balancer addresses that packets to the node still carry (`ipMode: VIP`), in the order
    /// of the object.
    pub load_balancer_ips: Box<[IpAddr]>,
    /// Networks that may use the load balancer's addresses; empty admits all.
    pub source_ranges: Box<[IpNet]>,
    /// Duration of session affinity in seconds; `None` without affinity.
    pub affinity: Option<u32>,
    /// `internalTrafficPolicy: Local`: clients inside the cluster only get endpoints of their own
    /// node.
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`: clients outside the cluster only get endpoints of the node
    /// they connect to.
    pub external_local: bool,
    /// Port for health checks of load balancers, `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<u16>,
}

impl Frontend {
    /// True if it has a NodePort, a load balancer address or an external IP.
    pub fn is_externally_accessible(&self) -> bool {
        self.node_port.is_some()
            || !self.load_balancer_ips.is_empty()
            || !self.external_ips.is_empty()
    }

    /// True if some of its traffic may go to endpoints of the whole cluster.
    pub fn uses_cluster_endpoints(&self) -> bool {
        !self.internal_local || self.is_externally_accessible()
    }

    /// True if some of its traffic may only go to endpoints of this node.
    pub fn uses_local_endpoints(&self) -> bool {
        self.internal_local || (self.external_local && self.is_externally_accessible())
    }
}

/// An invalid value of a Service, with a description; the rest of the Service is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvalidValue {
    LeftOut(String),
    Clamped(String),
}

/// The ports of a Service in one family. Invalid values are added to `problems`.
pub(crate) fn frontends(
    spec: &ServiceSpec,
    status: &ServiceStatus,
    family: IpFamily,
    problems: &mut Vec<InvalidValue>,
) -> Vec<Frontend> {
    let unset = spec.cluster_ip.is_empty() || &*spec.cluster_ip == "None";
    if unset || &*spec.r#type == "ExternalName" {
        return Vec::new();
    }
    let Some(cluster_ip) = cluster_ip(spec, family, problems) else {
        return Vec::new();
    };
    let shared = Shared::derive(spec, status, family, cluster_ip, problems);
    let mut frontends: Vec<Frontend> = Vec::with_capacity(spec.ports.len());
    for port in &spec.ports {
        match shared.frontend(port) {
            Ok(frontend) => {
                // A later port of the same name and protocol replaces the earlier one.
                frontends.retain(|known| {
                    (&known.name, known.protocol) != (&frontend.name, frontend.protocol)
                });
                frontends.push(frontend);
            }
            Err(problem) => problems.push(problem),
        }
    }
    frontends
}

fn cluster_ip(
    spec: &ServiceSpec,
    family: IpFamily,
    problems: &mut Vec<InvalidValue>,
) -> Option<IpAddr> {
    let text = if spec.ip_families.is_empty() {
        &*spec.cluster_ip
    } else {
        let index = spec
            .ip_families
            .iter()
            .position(|candidate| &**candidate == family.as_str())?;
        &**spec.cluster_ips.get(index)?
    };
    let Some(address) = parse_sloppy(text) else {
        problems.push(InvalidValue::LeftOut(format!(
            "ClusterIP {text:?} is not an address"
        )));
        return None;
    };
    if IpFamily::of(address) != family {
        if !spec.ip_families.is_empty() {
            problems.push(InvalidValue::LeftOut(format!(
                "ClusterIP {text:?} is not {family}"
            )));
        }
        return None;
    }
    Some(address)
}

/// Values that all ports of a Service share.
struct Shared {
    cluster_ip: IpAddr,
    external_ips: Box<[IpAddr]>,
    load_balancer_ips: Box<[IpAddr]>,
    source_ranges: Box<[IpNet]>,
    affinity: Option<u32>,
    internal_local: bool,
    external_local: bool,
    health_check_node_port: Option<u16>,
}

impl Shared {
    fn derive(
        spec: &ServiceSpec,
        status: &ServiceStatus,
        family: IpFamily,
        cluster_ip: IpAddr,
        problems: &mut Vec<InvalidValue>,
    ) -> Self {
        let external = spec.external_ips.iter().map(|text| &**text);
        let external_ips = addresses("external IP", external, family, problems);
        let virtual_ips = status
            .load_balancer
            .ingress
            .iter()
            .filter(|ingress| ingress.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"))
            .map(|ingress| &*ingress.ip);
        let load_balancer_ips = addresses("load balancer IP", virtual_ips, family, problems);
        let is_load_balancer = &*spec.r#type == "LoadBalancer";
        let reachable =
            is_load_balancer || &*spec.r#type == "NodePort" || !spec.external_ips.is_empty();
        let external_local = reachable && &*spec.external_traffic_policy == "Local";
        let health_check_node_port = (is_load_balancer && external_local)
            .then(|| u16::try_from(spec.health_check_node_port).ok())
            .flatten()
            .filter(|port| *port != 0);
        Self {
            cluster_ip,
            external_ips,
            load_balancer_ips,
            source_ranges: source_ranges(spec, family, problems),
            affinity: affinity(spec, problems),
            internal_local: &*spec.internal_traffic_policy == "Local",
            external_local,
            health_check_node_port,
        }
    }

    fn frontend(&self, port: &ServicePortSpec) -> Result<Frontend, InvalidValue> {
        let refuse =
            |what: String| InvalidValue::LeftOut(format!("port {:?}: {what}", &*port.name));
        let protocol = protocol(&port.protocol)
            .ok_or_else(|| refuse(format!("unknown protocol {:?}", &*port.protocol)))?;
        let number = port_number(port.port)
            .ok_or_else(|| refuse(format!("{} is not a port number", port.port)))?;
        let node_port = match port.node_port {
            0 => None,
            other => Some(
                port_number(other)
                    .ok_or_else(|| refuse(format!("{other} is not a NodePort number")))?,
            ),
        };
        Ok(Frontend {
            name: port.name.clone(),
            protocol,
            cluster_ip: self.cluster_ip,
            port: number,
            node_port,
            external_ips: self.external_ips.clone(),
            load_balancer_ips: self.load_balancer_ips.clone(),
            source_ranges: self.source_ranges.clone(),
            affinity: self.affinity,
            internal_local: self.internal_local,
            external_local: self.external_local,
            health_check_node_port: self.health_check_node_port,
        })
    }
}

fn addresses<'a>(
    what: &str,
    texts: impl Iterator<Item = &'a str>,
    family: IpFamily,
    problems: &mut Vec<InvalidValue>,
) -> Box<[IpAddr]> {
    let mut found = Vec::new();
    for text in texts.filter(|text| !text.is_empty()) {
        match parse_sloppy(text) {
            Some(address) if IpFamily::of(address) == family => found.push(address),
            Some(_) => {}
            None => problems.push(InvalidValue::LeftOut(format!(
                "{what} {text:?} is not an address"
            ))),
        }
    }
    found.into()
}

fn source_ranges(
    spec: &ServiceSpec,
    family: IpFamily,
    problems: &mut Vec<InvalidValue>,
) -> Box<[IpNet]> {
    let mut ranges = Vec::new();
    for text in &spec.load_balancer_source_ranges {
        match parse_network(text) {
            Some(range) if IpFamily::of(range.addr()) == family => ranges.push(range),
            Some(_) => {}
            None => problems.push(InvalidValue::LeftOut(format!(
                "source range {text:?} is not a network"
            ))),
        }
    }
    // A range that admits all makes the others redundant.
    if ranges.iter().any(|range| range.prefix_len() == 0) {
        ranges.clear();
    }
    ranges.into()
}

fn affinity(spec: &ServiceSpec, problems: &mut Vec<InvalidValue>) -> Option<u32> {
    if &*spec.session_affinity != "ClientIP" {
        return None;
    }
    let configured = spec
        .session_affinity_config
        .as_ref()
        .and_then(|config| config.client_ip.as_ref())
        .and_then(|client| client.timeout_seconds);
    let Some(seconds) = configured else {
        return Some(DEFAULT_AFFINITY_SECONDS);
    };
    let (least, most) = (*AFFINITY_SECONDS.start(), *AFFINITY_SECONDS.end());
    let used = match u32::try_from(seconds) {
        Ok(seconds) => seconds.clamp(least, most),
        Err(_) if seconds < 0 => least,
        Err(_) => most,
    };
    if i64::from(used) != seconds {
        problems.push(InvalidValue::Clamped(format!(
            "session affinity of {seconds} s is not within {least}..={most} s: using {used} s"
        )));
    }
    Some(used)
}

/// Parses a protocol; absent means TCP.
pub(crate) fn protocol(text: &str) -> Option<Protocol> {
    match text {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// Converts a number within 1 to 65535.
pub(crate) fn port_number(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|port| *port != 0)
}
