//! The rules of one Service port.

use std::{collections::BTreeMap, net::SocketAddr};

use weft_proxy::{Frontend, LocalDetector, PortId, ServicePort, Settings};
use weft_ruleset::{
    AddressType, ChainName, Interface, Match, Negatable, NfacctName, Probability, Recent, Rule,
    Target, host,
};

use crate::{
    backend::Options,
    fixed::{MARK_MASQ, commented, loopback},
    names::{PortChains, endpoint_chain},
    shared::SharedChain,
};

/// The rules of one Service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRules {
    /// Rules that it contributes to shared chains, in order.
    pub groups: BTreeMap<SharedChain, Vec<Rule>>,
    /// Its own chains, in the nat table.
    pub chains: Vec<(ChainName, Vec<Rule>)>,
}

/// The rules of one Service port, as kube-proxy would write them.
///
/// With `comments`, rules of single endpoints carry comments; very large clusters do without.
pub fn port_rules(
    id: &PortId,
    port: &ServicePort,
    settings: &Settings,
    options: Options,
    comments: bool,
) -> PortRules {
    let writer = Writer {
        id,
        name: id.to_string(),
        port,
        frontend: &port.frontend,
        chains: PortChains::of(id),
        settings,
        options,
        comments,
    };
    let mut rules = PortRules::default();
    writer.cluster_ip(&mut rules);
    writer.external_ips(&mut rules);
    writer.load_balancer_ips(&mut rules);
    writer.node_port(&mut rules);
    writer.health_check(&mut rules);
    writer.own_chains(&mut rules);
    rules
}

impl PortRules {
    fn add(&mut self, chain: SharedChain, rule: Rule) {
        self.groups.entry(chain).or_default().push(rule);
    }
}

struct Writer<'a> {
    id: &'a PortId,
    name: String,
    port: &'a ServicePort,
    frontend: &'a Frontend,
    chains: PortChains,
    settings: &'a Settings,
    options: Options,
    comments: bool,
}

impl Writer<'_> {
    /// The chain for clients of the ClusterIP.
    fn internal_chain(&self) -> ChainName {
        if self.frontend.internal_local {
            self.chains.local
        } else {
            self.chains.cluster
        }
    }

    fn uses_firewall(&self) -> bool {
        self.port.has_endpoints
            && !self.frontend.load_balancer_ips.is_empty()
            && !self.frontend.source_ranges.is_empty()
    }

    /// A rule with a comment that gives its reason.
    fn rule(&self, why: &str) -> Rule {
        commented(Rule::new(), format!("{}{why}", self.name))
    }

    /// A rule for packets to one address and the Service's port.
    fn to(&self, address: std::net::IpAddr, why: &str) -> Rule {
        self.rule(why)
            .transport(self.frontend.protocol, Some(self.frontend.port))
            .to(host(address))
    }

    /// Comment and target for traffic without an endpoint: rejected if there is none at all,
    /// dropped if only this node has none, because a load balancer should try another node.
    fn refusal(&self) -> (&'static str, Target) {
        if self.port.has_endpoints {
            (" has no local endpoints", Target::Drop)
        } else {
            (" has no endpoints", Target::Reject(self.settings.family))
        }
    }

    fn cluster_ip(&self, rules: &mut PortRules) {
        let address = self.frontend.cluster_ip;
        if self.port.has_internal_endpoints() {
            let rule = self.to(address, " cluster IP");
            rules.add(
                SharedChain::NatServices,
                rule.then(Target::Jump(self.internal_chain())),
            );
        } else {
            let (why, target) = self.refusal();
            rules.add(
                SharedChain::FilterServices,
                self.to(address, why).then(target),
            );
        }
    }

    fn external_ips(&self, rules: &mut PortRules) {
        if !self.settings.external_ips {
            return;
        }
        for address in &self.frontend.external_ips {
            if self.port.has_endpoints {
                let rule = self.to(*address, " external IP");
                rules.add(
                    SharedChain::NatServices,
                    rule.then(Target::Jump(self.chains.external)),
                );
            }
            self.refuse_external(*address, rules);
        }
    }

    fn load_balancer_ips(&self, rules: &mut PortRules) {
        let entrance = if self.uses_firewall() {
            self.chains.firewall
        } else {
            self.chains.external
        };
        for address in &self.frontend.load_balancer_ips {
            if self.port.has_endpoints {
                let rule = self.to(*address, " loadbalancer IP");
                rules.add(SharedChain::NatServices, rule.then(Target::Jump(entrance)));
            }
            if self.uses_firewall() {
                let why = format!(" traffic not accepted by {}", self.chains.firewall);
                rules.add(
                    SharedChain::FilterFirewall,
                    self.to(*address, &why).then(Target::Drop),
                );
            }
        }
        for address in &self.frontend.load_balancer_ips {
            self.refuse_external(*address, rules);
        }
    }

    fn refuse_external(&self, address: std::net::IpAddr, rules: &mut PortRules) {
        if !self.port.has_external_endpoints() {
            let (why, target) = self.refusal();
            rules.add(
                SharedChain::FilterExternalServices,
                self.to(address, why).then(target),
            );
        }
    }

    fn node_port(&self, rules: &mut PortRules) {
        let Some(node_port) = self.frontend.node_port else {
            return;
        };
        let protocol = self.frontend.protocol;
        if self.port.has_endpoints {
            let rule = self.rule("").transport(protocol, Some(node_port));
            let jump = Target::Jump(self.chains.external);
            if self.settings.localhost_node_ports && self.options.nfacct {
                let counted = rule
                    .clone()
                    .to(loopback())
                    .with(Match::Nfacct(NfacctName::LocalhostNodePorts));
                rules.add(SharedChain::NatNodePorts, counted.then(jump.clone()));
            }
            rules.add(SharedChain::NatNodePorts, rule.then(jump));
        }
        if !self.port.has_external_endpoints() {
            let (why, target) = self.refusal();
            let rule = self
                .rule(why)
                .with(Match::AddressType(AddressType::DestinationLocal))
                .transport(protocol, Some(node_port));
            rules.add(SharedChain::FilterExternalServices, rule.then(target));
        }
    }

    fn health_check(&self, rules: &mut PortRules) {
        if let Some(port) = self.frontend.health_check_node_port {
            let rule = self
                .rule(" health check node port")
                .transport(weft_model::Protocol::Tcp, Some(port));
            rules.add(SharedChain::FilterNodePorts, rule.then(Target::Accept));
        }
    }

    fn own_chains(&self, rules: &mut PortRules) {
        let port = self.port;
        if !port.has_endpoints {
            return;
        }
        let mut masquerade = self.internal_masquerade();
        if self.frontend.is_externally_accessible() {
            rules
                .chains
                .push((self.chains.external, self.external_chain()));
        }
        if self.uses_firewall() {
            rules
                .chains
                .push((self.chains.firewall, self.firewall_chain()));
        }
        let balanced = [
            (
                self.chains.cluster,
                &port.cluster,
                self.frontend.uses_cluster_endpoints(),
            ),
            (
                self.chains.local,
                &port.local,
                self.frontend.uses_local_endpoints(),
            ),
        ];
        for (chain, endpoints, used) in balanced {
            if !used || endpoints.is_empty() {
                continue;
            }
            let mut content = Vec::with_capacity(endpoints.len() * 2 + 1);
            if chain == self.internal_chain() {
                content.extend(masquerade.take());
            }
            self.balance(endpoints, &mut content);
            rules.chains.push((chain, content));
        }
        let mut reachable: Vec<SocketAddr> = port.cluster.to_vec();
        reachable.extend(port.local.iter().filter(|e| !port.cluster.contains(e)));
        for endpoint in reachable {
            rules.chains.push(self.endpoint(endpoint));
        }
    }

    /// Marks traffic to the ClusterIP that does not come from a pod of this node, so that replies
    /// return through this node.
    fn internal_masquerade(&self) -> Option<Rule> {
        if !self.port.has_internal_endpoints() {
            return None;
        }
        let rule = self.to(self.frontend.cluster_ip, " cluster IP");
        let rule = if self.settings.masquerade_all {
            rule
        } else {
            restrict(
                rule,
                self.settings.local_detector.as_ref()?,
                Senders::Others,
            )?
        };
        Some(rule.then(Target::Jump(MARK_MASQ)))
    }

    fn external_chain(&self) -> Vec<Rule> {
        let why = |what: &str| {
            commented(
                Rule::new(),
                format!("{what} for {} external destinations", self.name),
            )
        };
        let cluster = Target::Jump(self.chains.cluster);
        let mut rules = Vec::with_capacity(4);
        if self.frontend.external_local {
            let detector = self.settings.local_detector.as_ref();
            if let Some(rule) = detector
                .and_then(|detector| restrict(why("pod traffic"), detector, Senders::LocalPods))
            {
                rules.push(rule.then(cluster.clone()));
            }
            let here = Match::AddressType(AddressType::SourceLocal);
            rules.push(
                why("masquerade LOCAL traffic")
                    .with(here.clone())
                    .then(Target::Jump(MARK_MASQ)),
            );
            rules.push(why("route LOCAL traffic").with(here).then(cluster.clone()));
        } else {
            rules.push(why("masquerade traffic").then(Target::Jump(MARK_MASQ)));
        }
        if self.port.has_external_endpoints() {
            let chain = if self.frontend.external_local {
                Target::Jump(self.chains.local)
            } else {
                cluster
            };
            rules.push(Rule::new().then(chain));
        }
        rules
    }

    fn firewall_chain(&self) -> Vec<Rule> {
        let external = Target::Jump(self.chains.external);
        let from = |network| {
            self.rule(" loadbalancer IP")
                .from(network)
                .then(external.clone())
        };
        let ranges = &self.frontend.source_ranges;
        let mut rules: Vec<Rule> = ranges.iter().copied().map(from).collect();
        // A connection from the node to the load balancer is handled by the node's own rules, and
        // its packets then carry the load balancer's address as their source.
        let node_ip = self.settings.node_ip;
        if ranges.iter().any(|range| range.contains(&node_ip)) {
            let addresses = self.frontend.load_balancer_ips.iter();
            rules.extend(addresses.map(|address| from(host(*address))));
        }
        rules.push(commented(
            Rule::new(),
            format!(
                "other traffic to {} will be dropped by KUBE-PROXY-FIREWALL",
                self.name
            ),
        ));
        rules
    }

    fn balance(&self, endpoints: &[SocketAddr], rules: &mut Vec<Rule>) {
        let to = |endpoint: SocketAddr| {
            if self.comments {
                self.rule(&format!(" -> {endpoint}"))
            } else {
                Rule::new()
            }
        };
        let chains: Vec<ChainName> = endpoints
            .iter()
            .map(|endpoint| endpoint_chain(self.id, *endpoint))
            .collect();
        if let Some(seconds) = self.frontend.affinity {
            for (endpoint, chain) in endpoints.iter().zip(&chains) {
                let recent = Recent::Check {
                    name: *chain,
                    seconds,
                    family: self.settings.family,
                };
                rules.push(
                    to(*endpoint)
                        .with(Match::Recent(recent))
                        .then(Target::Jump(*chain)),
                );
            }
        }
        for (index, (endpoint, chain)) in endpoints.iter().zip(&chains).enumerate() {
            let left = endpoints.len() - index;
            let mut rule = to(*endpoint);
            if left > 1 {
                rule = rule.with(Match::Statistic(Probability::one_in(left)));
            }
            rules.push(rule.then(Target::Jump(*chain)));
        }
    }

    fn endpoint(&self, endpoint: SocketAddr) -> (ChainName, Vec<Rule>) {
        let chain = endpoint_chain(self.id, endpoint);
        let rule = || {
            if self.comments {
                self.rule("")
            } else {
                Rule::new()
            }
        };
        // Hairpin: an endpoint that connects to itself through its Service must not see its own
        // address as the source.
        let hairpin = rule()
            .from(host(endpoint.ip()))
            .then(Target::Jump(MARK_MASQ));
        let mut translate = rule();
        if self.frontend.affinity.is_some() {
            translate = translate.with(Match::Recent(Recent::Set {
                name: chain,
                family: self.settings.family,
            }));
        }
        let translate = translate
            .transport(self.frontend.protocol, None)
            .then(Target::Dnat(endpoint));
        (chain, vec![hairpin, translate])
    }
}

/// The senders that a rule applies to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Senders {
    /// Pods of this node.
    LocalPods,
    /// Everything but pods of this node.
    Others,
}

/// Restricts a rule to some senders. `None` if the detector's interface cannot be named in a rule.
fn restrict(mut rule: Rule, detector: &LocalDetector, senders: Senders) -> Option<Rule> {
    let negated = senders == Senders::Others;
    match detector {
        LocalDetector::Network(network) => {
            rule.source = Some(Negatable {
                negated,
                value: *network,
            });
        }
        LocalDetector::Bridge(name) => {
            rule.in_interface = Some(Negatable {
                negated,
                value: Interface::new(name).ok()?,
            });
        }
        LocalDetector::InterfacePrefix(prefix) => {
            rule.in_interface = Some(Negatable {
                negated,
                value: Interface::new(&format!("{prefix}+")).ok()?,
            });
        }
    }
    Some(rule)
}
