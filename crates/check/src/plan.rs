//! The list of checks, derived from the probes and Services in the cluster.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use crate::question::{ProbeProtocol, Question};

/// Port of probes.
pub const PORT: u16 = 8080;
/// Port of the probe in a node's host network: below the range of NodePorts, above the ports that
/// nodes use.
pub const HOST_PORT: u16 = 28080;
/// Port of the Services.
pub const SERVICE_PORT: u16 = 80;
/// Requests to one pod.
const FEW: u8 = 5;
/// Requests to a Service: with two pods behind it, chance misses one of them once in 2^29 runs.
const MANY: u8 = 30;

/// A probe that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Name of its pod.
    pub name: String,
    /// Pod IPs, the primary one first.
    pub addresses: Vec<IpAddr>,
}

/// A node with probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name of the Node object.
    pub name: String,
    /// Internal addresses, the primary one first.
    pub addresses: Vec<IpAddr>,
}

/// Probes, nodes and Services of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The pod that sends requests, on the first node.
    pub client: Probe,
    /// A pod on the same node, behind every Service.
    pub neighbour: Probe,
    /// A pod on the other node, or on the same one if there is no other; behind every Service.
    pub other: Probe,
    /// The node of `client` and `neighbour`, which has a probe in its host network.
    pub node: Node,
    /// The second node, if there is one.
    pub other_node: Option<Node>,
    /// Cluster IPs of the Service for TCP, one for each family.
    pub service: Vec<IpAddr>,
    /// Cluster IP of the Service for UDP.
    pub udp_service: IpAddr,
    /// Cluster IP of the Service with session affinity.
    pub sticky_service: IpAddr,
    /// NodePort of the Service of that type.
    pub node_port: u16,
}

/// Origin of the requests of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client pod.
    Pod,
    /// The probe in the host network of the client's node.
    Node,
}

/// Pods that have to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// All of these, and no other.
    Each(BTreeSet<String>),
    /// One of these, the same for every request.
    One(BTreeSet<String>),
}

/// A question and the expected answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Name in the report.
    pub name: String,
    /// Origin of the requests.
    pub origin: Origin,
    /// Target, protocol and number of requests.
    pub question: Question,
    /// Pods that have to answer.
    pub expected: Expected,
    /// Client addresses that the pods may see; any if empty.
    pub source: Vec<IpAddr>,
}

/// An entry of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A check to run.
    Check(Box<Check>),
    /// A check that cannot run in this cluster.
    NotApplicable {
        /// Name in the report.
        name: String,
        /// Reason in words.
        why: String,
    },
}

impl Setup {
    /// All checks, basic ones before those that depend on them.
    pub fn plan(&self) -> Vec<Item> {
        let mut items = vec![self.between_pods("pod to pod, same node", &self.neighbour, 0)];
        items.push(self.elsewhere("pod to pod, other node", |_| {
            self.between_pods("pod to pod, other node", &self.other, 0)
        }));
        items.push(self.to_service("pod to Service", ProbeProtocol::Http, self.service.first()));
        let udp = Some(&self.udp_service);
        items.push(self.to_service("pod to Service, UDP", ProbeProtocol::Udp, udp));
        items.push(self.to_sticky_service());
        items.push(self.to_node_port("node to NodePort, same node", &self.node));
        items.push(self.elsewhere("node to NodePort, other node", |node| {
            self.to_node_port("node to NodePort, other node", node)
        }));
        items.extend(self.second_family());
        items
    }

    fn elsewhere(&self, name: &str, make: impl Fn(&Node) -> Item) -> Item {
        match &self.other_node {
            Some(node) => make(node),
            None => not_applicable(name, "only one node is ready"),
        }
    }

    fn behind_services(&self) -> BTreeSet<String> {
        [&self.neighbour, &self.other]
            .map(|probe| probe.name.clone())
            .into()
    }

    /// `family` is the index among the addresses: 0 for the primary family, 1 for the second.
    fn between_pods(&self, name: &str, to: &Probe, family: usize) -> Item {
        let Some(address) = to.addresses.get(family) else {
            return not_applicable(name, &format!("{} has no such address", to.name));
        };
        check(
            name,
            ProbeProtocol::Http,
            (*address, PORT, FEW),
            Expected::Each([to.name.clone()].into()),
            // Traffic between pods must not be translated.
            self.client.addresses.clone(),
        )
    }

    fn to_service(&self, name: &str, protocol: ProbeProtocol, address: Option<&IpAddr>) -> Item {
        let Some(address) = address else {
            return not_applicable(name, "the Service has no such address");
        };
        let expected = Expected::Each(self.behind_services());
        let target = (*address, SERVICE_PORT, MANY);
        check(name, protocol, target, expected, Vec::new())
    }

    fn to_sticky_service(&self) -> Item {
        let expected = Expected::One(self.behind_services());
        let name = "pod to Service, session affinity";
        let target = (self.sticky_service, SERVICE_PORT, MANY);
        check(name, ProbeProtocol::Http, target, expected, Vec::new())
    }

    fn to_node_port(&self, name: &str, node: &Node) -> Item {
        let main = self.service.first().is_none_or(IpAddr::is_ipv4);
        let fitting = node
            .addresses
            .iter()
            .find(|address| address.is_ipv4() == main);
        let Some(address) = fitting else {
            let why = format!("{} has no address of the Service's family", node.name);
            return not_applicable(name, &why);
        };
        let expected = Expected::Each(self.behind_services());
        let target = (*address, self.node_port, MANY);
        let mut item = check(name, ProbeProtocol::Http, target, expected, Vec::new());
        if let Item::Check(check) = &mut item {
            check.origin = Origin::Node;
        }
        item
    }

    fn second_family(&self) -> [Item; 2] {
        let Some(second) = self.client.addresses.get(1) else {
            let why = "pods have addresses of one family";
            return ["pod to pod, second family", "pod to Service, second family"]
                .map(|name| not_applicable(name, why));
        };
        let family = if second.is_ipv4() { "IPv4" } else { "IPv6" };
        // To the other node where there is one: the longer path.
        let name = format!("pod to pod, {family}");
        let between = self.between_pods(&name, &self.other, 1);
        let name = format!("pod to Service, {family}");
        let service = self
            .service
            .iter()
            .find(|address| address.is_ipv4() == second.is_ipv4());
        [
            between,
            self.to_service(&name, ProbeProtocol::Http, service),
        ]
    }
}

fn not_applicable(name: &str, why: &str) -> Item {
    Item::NotApplicable {
        name: name.to_owned(),
        why: why.to_owned(),
    }
}

fn check(
    name: &str,
    protocol: ProbeProtocol,
    (address, port, count): (IpAddr, u16, u8),
    expected: Expected,
    source: Vec<IpAddr>,
) -> Item {
    Item::Check(Box::new(Check {
        name: name.to_owned(),
        origin: Origin::Pod,
        question: Question {
            protocol,
            target: SocketAddr::new(address, port),
            count,
        },
        expected,
        source,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(name: &str, addresses: &[&str]) -> Probe {
        Probe {
            name: name.to_owned(),
            addresses: parsed(addresses),
        }
    }

    fn parsed(addresses: &[&str]) -> Vec<IpAddr> {
        addresses.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn node(name: &str, addresses: &[&str]) -> Node {
        Node {
            name: name.to_owned(),
            addresses: parsed(addresses),
        }
    }

    fn setup() -> Setup {
        Setup {
            client: probe("client", &["10.1.0.2", "fd01::2"]),
            neighbour: probe("neighbour", &["10.1.0.3", "fd01::3"]),
            other: probe("other", &["10.2.0.2", "fd02::2"]),
            node: node("one", &["172.30.0.1", "fd00::1"]),
            other_node: Some(node("two", &["172.30.0.2", "fd00::2"])),
            service: parsed(&["10.96.0.5", "fd96::5"]),
            udp_service: "10.96.0.6".parse().unwrap(),
            sticky_service: "10.96.0.7".parse().unwrap(),
            node_port: 30080,
        }
    }

    fn lines(setup: &Setup) -> Vec<String> {
        let line = |item: Item| match item {
            Item::Check(check) => format!("{}: {}", check.name, check.question.target),
            Item::NotApplicable { name, why } => format!("{name} not applicable: {why}"),
        };
        setup.plan().into_iter().map(line).collect()
    }

    #[test]
    fn two_nodes_of_two_families_get_every_check() {
        assert_eq!(
            lines(&setup()),
            [
                "pod to pod, same node: 10.1.0.3:8080",
                "pod to pod, other node: 10.2.0.2:8080",
                "pod to Service: 10.96.0.5:80",
                "pod to Service, UDP: 10.96.0.6:80",
                "pod to Service, session affinity: 10.96.0.7:80",
                "node to NodePort, same node: 172.30.0.1:30080",
                "node to NodePort, other node: 172.30.0.2:30080",
                "pod to pod, IPv6: [fd02::2]:8080",
                "pod to Service, IPv6: [fd96::5]:80",
            ]
        );
    }

    #[test]
    fn one_node_of_one_family_lists_what_does_not_apply() {
        let mut setup = setup();
        setup.other_node = None;
        for probe in [&mut setup.client, &mut setup.neighbour, &mut setup.other] {
            probe.addresses.truncate(1);
        }
        setup.service.truncate(1);
        let not: Vec<String> = lines(&setup)
            .into_iter()
            .filter(|line| line.contains("not applicable"))
            .collect();
        assert_eq!(
            not,
            [
                "pod to pod, other node not applicable: only one node is ready",
                "node to NodePort, other node not applicable: only one node is ready",
                "pod to pod, second family not applicable: pods have addresses of one family",
                "pod to Service, second family not applicable: pods have addresses of one family",
            ]
        );
    }

    #[test]
    fn a_cluster_may_have_ipv6_as_its_main_family() {
        let mut setup = setup();
        for probe in [&mut setup.client, &mut setup.neighbour, &mut setup.other] {
            probe.addresses.reverse();
        }
        setup.service.reverse();
        let lines = lines(&setup);
        assert_eq!(lines[0], "pod to pod, same node: [fd01::3]:8080");
        assert_eq!(lines[5], "node to NodePort, same node: [fd00::1]:30080");
        assert_eq!(lines[7], "pod to pod, IPv4: 10.2.0.2:8080");
    }

    #[test]
    fn only_between_pods_the_source_has_to_be_kept() {
        for item in setup().plan() {
            let Item::Check(check) = item else { continue };
            let between = check.name.starts_with("pod to pod");
            assert_eq!(!check.source.is_empty(), between, "{}", check.name);
        }
    }
}
