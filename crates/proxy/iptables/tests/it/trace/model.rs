//! A model of the outcome of packets to Services, as users see it. Knows no chain and no rule.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use weft_model::IpFamily;
use weft_proxy::{LocalDetector, NodePortTail, ServicePort, Settings};
use weft_ruleset::trace::{Entry, Packet, Verdict};

use crate::world::World;

/// Probability of each verdict, with and without masquerading.
pub(super) type Fates = HashMap<(Verdict, bool), f64>;

/// The kind of address by which a packet reaches a Service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Cluster,
    External,
    LoadBalancer,
    Node,
}

/// The treatment of a packet to a Service.
enum Answer<'a> {
    /// One of these gets it, each as likely as the others.
    OneOf {
        endpoints: &'a [SocketAddr],
        masquerade: bool,
    },
    /// No endpoint gets it.
    Refused(Verdict),
    /// No Service rule applies.
    None,
}

/// The outcome for a packet whose client was last served by `before`; `None` if several Services
/// claim the address.
pub(super) fn expected(
    world: &World,
    packet: &Packet,
    before: Option<SocketAddr>,
) -> Option<Fates> {
    let ports = world.desired.values().flat_map(|service| &service.ports);
    let mut asked = ports.flat_map(|port| accesses(port, packet).map(move |access| (port, access)));
    let settings = &world.settings;
    let first = asked.next();
    if asked.next().is_some() {
        return None;
    }
    let answer = first.map_or(Answer::None, |(port, access)| {
        answer(port, access, packet, settings)
    });
    let certain = |verdict| HashMap::from([((verdict, false), 1.0)]);
    Some(match answer {
        // Packets from outside to loopback addresses are dropped in any case.
        Answer::Refused(_) | Answer::None if is_martian(packet, settings) => {
            certain(Verdict::Dropped)
        }
        Answer::Refused(verdict) => certain(verdict),
        Answer::None => certain(Verdict::Accepted),
        Answer::OneOf {
            endpoints,
            masquerade,
        } => {
            let sticky = first.is_some_and(|(port, _)| port.frontend.affinity.is_some());
            let held = before.filter(|endpoint| sticky && endpoints.contains(endpoint));
            let endpoints = held.as_ref().map_or(endpoints, std::slice::from_ref);
            spread(endpoints, masquerade, packet)
        }
    })
}

#[expect(clippy::cast_precision_loss, reason = "there are few endpoints")]
fn spread(endpoints: &[SocketAddr], masquerade: bool, packet: &Packet) -> Fates {
    let mut fates = Fates::new();
    for endpoint in endpoints {
        let to_itself = endpoint.ip() == packet.source;
        // What arrives for this node itself never leaves it, so nothing changes its source.
        let leaves = packet.entry == Entry::Sent || !packet.is_local(endpoint.ip());
        let fate = (
            Verdict::Dnat(*endpoint),
            (masquerade || to_itself) && leaves,
        );
        *fates.entry(fate).or_default() += 1.0 / endpoints.len() as f64;
    }
    fates
}

fn accesses(port: &ServicePort, packet: &Packet) -> impl Iterator<Item = Access> {
    let frontend = &port.frontend;
    let same_protocol = frontend.protocol == packet.protocol;
    let to_port = same_protocol && frontend.port == packet.destination_port;
    let is = |addresses: &[IpAddr]| to_port && addresses.contains(&packet.destination);
    let to_node = same_protocol
        && frontend.node_port == Some(packet.destination_port)
        && packet.is_local(packet.destination);
    let open = [
        (is(&[frontend.cluster_ip]), Access::Cluster),
        (is(&frontend.external_ips), Access::External),
        (is(&frontend.load_balancer_ips), Access::LoadBalancer),
        (to_node, Access::Node),
    ];
    open.into_iter()
        .filter_map(|(open, access)| open.then_some(access))
}

fn answer<'a>(
    port: &'a ServicePort,
    access: Access,
    packet: &Packet,
    settings: &Settings,
) -> Answer<'a> {
    match access {
        Access::Cluster => inside(port, packet, settings),
        _ => outside(port, access, packet, settings),
    }
}

/// A client that uses the ClusterIP.
fn inside<'a>(port: &'a ServicePort, packet: &Packet, settings: &Settings) -> Answer<'a> {
    let endpoints = if port.frontend.internal_local {
        &port.local
    } else {
        &port.cluster
    };
    if !port.has_endpoints {
        return Answer::Refused(Verdict::Rejected);
    }
    if endpoints.is_empty() {
        return Answer::Refused(Verdict::Dropped);
    }
    // The answer must come back through this node, unless it comes back to a pod of it anyway.
    let stranger = settings.local_detector.is_some() && !is_pod(packet, settings);
    Answer::OneOf {
        endpoints,
        masquerade: settings.masquerade_all || stranger,
    }
}

/// A client that uses an address from outside.
fn outside<'a>(
    port: &'a ServicePort,
    access: Access,
    packet: &Packet,
    settings: &Settings,
) -> Answer<'a> {
    let answered = access != Access::Node || answers_as_node(packet.destination, settings);
    if port.has_endpoints && answered {
        if access == Access::LoadBalancer && !may_enter(port, packet, settings) {
            return Answer::Refused(Verdict::Dropped);
        }
        let cluster = |masquerade| Answer::OneOf {
            endpoints: &port.cluster,
            masquerade,
        };
        if !port.frontend.external_local {
            return cluster(true);
        }
        // Those who are in the cluster already need not stay on this node.
        if is_pod(packet, settings) {
            return cluster(false);
        }
        if packet.is_local(packet.source) {
            return cluster(true);
        }
        if !port.local.is_empty() {
            return Answer::OneOf {
                endpoints: &port.local,
                masquerade: false,
            };
        }
    }
    // What this node sends to an address elsewhere is not refused: it may be served there.
    let passes_by = packet.entry == Entry::Sent && !packet.is_local(packet.destination);
    if port.has_external_endpoints() || passes_by {
        Answer::None
    } else if port.has_endpoints {
        Answer::Refused(Verdict::Dropped)
    } else {
        Answer::Refused(Verdict::Rejected)
    }
}

fn may_enter(port: &ServicePort, packet: &Packet, settings: &Settings) -> bool {
    let ranges = &port.frontend.source_ranges;
    let within = |address| ranges.iter().any(|range| range.contains(address));
    let as_load_balancer = port.frontend.load_balancer_ips.contains(&packet.source);
    ranges.is_empty() || within(&packet.source) || (as_load_balancer && within(&settings.node_ip))
}

fn answers_as_node(address: IpAddr, settings: &Settings) -> bool {
    let chosen = match &settings.node_port_tail {
        NodePortTail::AnyLocal => true,
        NodePortTail::Addresses(addresses) => addresses.contains(&address),
    };
    chosen && (!address.is_loopback() || settings.localhost_node_ports)
}

fn is_pod(packet: &Packet, settings: &Settings) -> bool {
    let device = match &packet.entry {
        Entry::Arriving { device } => device.as_deref().unwrap_or_default(),
        Entry::Sent => "",
    };
    match &settings.local_detector {
        Some(LocalDetector::Network(network)) => network.contains(&packet.source),
        Some(LocalDetector::Bridge(name)) => device == &**name,
        Some(LocalDetector::InterfacePrefix(prefix)) => device.starts_with(&**prefix),
        None => false,
    }
}

fn is_martian(packet: &Packet, settings: &Settings) -> bool {
    settings.localhost_node_ports
        && settings.family == IpFamily::V4
        && packet.destination.is_loopback()
        && !packet.source.is_loopback()
}
