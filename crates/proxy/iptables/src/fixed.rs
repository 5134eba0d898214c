//! Chains and rules that exist without any Service.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use weft_model::IpFamily;
use weft_proxy::{NodePortTail, Settings};
use weft_ruleset::{
    AddressType, ChainName, Comment, ConntrackStates, Match, Negatable, NfacctName, Rule, Table,
    Target, host,
};

use crate::backend::Options;

/// nat: dispatch by address; filter: addresses without endpoints.
pub const SERVICES: ChainName = ChainName::fixed("KUBE-SERVICES");
/// filter: external addresses without endpoints.
pub const EXTERNAL_SERVICES: ChainName = ChainName::fixed("KUBE-EXTERNAL-SERVICES");
/// nat: dispatch by NodePort; filter: health checks.
pub const NODE_PORTS: ChainName = ChainName::fixed("KUBE-NODEPORTS");
/// filter: traffic that source ranges exclude.
pub const PROXY_FIREWALL: ChainName = ChainName::fixed("KUBE-PROXY-FIREWALL");
/// filter: traffic that may be forwarded.
pub const FORWARD: ChainName = ChainName::fixed("KUBE-FORWARD");
/// filter: kubelet's chain against packets from outside to loopback addresses.
pub const FIREWALL: ChainName = ChainName::fixed("KUBE-FIREWALL");
/// nat: masquerades marked packets.
pub const POSTROUTING: ChainName = ChainName::fixed("KUBE-POSTROUTING");
/// nat: sets the mark.
pub const MARK_MASQ: ChainName = ChainName::fixed("KUBE-MARK-MASQ");
/// All tables: disappears when another process flushes the table.
pub const CANARY: ChainName = ChainName::fixed("KUBE-PROXY-CANARY");

/// The IPv4 loopback network, 127.0.0.0/8.
pub(crate) fn loopback() -> IpNet {
    IpNet::new_assert(IpAddr::from([127, 0, 0, 0]), 8)
}

/// A rule of a built-in chain that jumps to one of our chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The table.
    pub table: Table,
    /// The built-in chain.
    pub from: ChainName,
    /// The rule.
    pub rule: Rule,
    /// True if kubelet writes the same rule, so that cleanup must leave it.
    pub kubelets: bool,
}

/// The jumps in insertion order; each is inserted at the head of its chain.
pub fn jumps() -> Vec<Jump> {
    const INPUT: ChainName = ChainName::fixed("INPUT");
    const FORWARDED: ChainName = ChainName::fixed("FORWARD");
    const OUTPUT: ChainName = ChainName::fixed("OUTPUT");
    let jump = |table, from, rule| Jump {
        table,
        from,
        rule,
        kubelets: false,
    };
    let new = |text, chain| {
        commented(Rule::new().in_state(ConntrackStates::NEW), text).then(Target::Jump(chain))
    };
    let any = |text, chain| commented(Rule::new(), text).then(Target::Jump(chain));
    let external = "kubernetes externally-visible service portals";
    let portals = "kubernetes service portals";
    let firewall = "kubernetes load balancer firewall";
    let (filter, nat) = (Table::Filter, Table::Nat);
    let mut jumps = vec![
        jump(filter, INPUT, new(external, EXTERNAL_SERVICES)),
        jump(filter, FORWARDED, new(external, EXTERNAL_SERVICES)),
        jump(
            filter,
            INPUT,
            any("kubernetes health check service ports", NODE_PORTS),
        ),
        jump(filter, FORWARDED, new(portals, SERVICES)),
        jump(filter, OUTPUT, new(portals, SERVICES)),
        jump(
            filter,
            FORWARDED,
            any("kubernetes forwarding rules", FORWARD),
        ),
        jump(filter, INPUT, new(firewall, PROXY_FIREWALL)),
        jump(filter, OUTPUT, new(firewall, PROXY_FIREWALL)),
        jump(filter, FORWARDED, new(firewall, PROXY_FIREWALL)),
        jump(nat, OUTPUT, any(portals, SERVICES)),
        jump(nat, ChainName::fixed("PREROUTING"), any(portals, SERVICES)),
        jump(
            nat,
            ChainName::fixed("POSTROUTING"),
            any("kubernetes postrouting rules", POSTROUTING),
        ),
    ];
    jumps.extend([INPUT, OUTPUT].map(|from| Jump {
        kubelets: true,
        ..jump(filter, from, Rule::new().then(Target::Jump(FIREWALL)))
    }));
    jumps
}

/// Chains with fixed contents, except the shared ones.
pub fn chains(settings: &Settings, options: Options) -> Vec<(Table, ChainName, Vec<Rule>)> {
    let mut chains = vec![
        (Table::Filter, FORWARD, forward(settings, options)),
        (Table::Nat, POSTROUTING, postrouting(settings, options)),
        (Table::Nat, MARK_MASQ, vec![mark_for_masquerade(settings)]),
    ];
    if settings.localhost_node_ports {
        chains.push((Table::Filter, FIREWALL, vec![no_martians()]));
    }
    chains.extend(Table::ALL.map(|table| (table, CANARY, Vec::new())));
    chains
}

fn mark(settings: &Settings) -> u32 {
    1 << settings.masquerade_bit
}

fn mark_for_masquerade(settings: &Settings) -> Rule {
    let mark = mark(settings);
    Rule::new().then(Target::SetMark {
        value: mark,
        mask: mark,
    })
}

fn postrouting(settings: &Settings, options: Options) -> Vec<Rule> {
    let mark = mark(settings);
    let unmarked = Match::Mark {
        negated: true,
        value: mark,
        mask: mark,
    };
    let masquerade = Target::Masquerade {
        random_fully: options.random_fully,
    };
    vec![
        Rule::new().with(unmarked).then(Target::Return),
        // Cleared again, so that a packet that passes twice is not masqueraded twice.
        Rule::new().then(Target::SetMark {
            value: mark,
            mask: 0,
        }),
        commented(Rule::new(), "kubernetes service traffic requiring SNAT").then(masquerade),
    ]
}

fn forward(settings: &Settings, options: Options) -> Vec<Rule> {
    let mark = mark(settings);
    let mut rules = Vec::with_capacity(3);
    if options.drop_invalid {
        let mut rule = Rule::new().in_state(ConntrackStates::INVALID);
        if options.nfacct {
            rule = rule.with(Match::Nfacct(NfacctName::InvalidDropped));
        }
        rules.push(rule.then(Target::Drop));
    }
    let marked = Match::Mark {
        negated: false,
        value: mark,
        mask: mark,
    };
    rules.push(
        commented(Rule::new(), "kubernetes forwarding rules")
            .with(marked)
            .then(Target::Accept),
    );
    rules.push(
        commented(Rule::new(), "kubernetes forwarding conntrack rule")
            .in_state(ConntrackStates::RELATED.or(ConntrackStates::ESTABLISHED))
            .then(Target::Accept),
    );
    rules
}

/// Blocks packets from outside to loopback addresses, which `route_localnet` would let in.
fn no_martians() -> Rule {
    let known = ConntrackStates::RELATED
        .or(ConntrackStates::ESTABLISHED)
        .or(ConntrackStates::DNAT);
    let mut rule = commented(Rule::new(), "block incoming localnet connections")
        .to(loopback())
        .with(Match::Conntrack {
            negated: true,
            states: known,
        })
        .then(Target::Drop);
    rule.source = Some(Negatable::not(loopback()));
    rule
}

/// The end of nat `KUBE-SERVICES`: traffic that matched no address rule may be for a NodePort.
pub fn node_port_tail(settings: &Settings) -> Vec<Rule> {
    const TEXT: &str =
        "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    let jump = Target::Jump(NODE_PORTS);
    match &settings.node_port_tail {
        NodePortTail::AnyLocal => {
            let mut rule = commented(Rule::new(), TEXT)
                .with(Match::AddressType(AddressType::DestinationLocal))
                .then(jump);
            rule.destination = match settings.family {
                IpFamily::V6 => Some(Negatable::not(host(Ipv6Addr::LOCALHOST.into()))),
                IpFamily::V4 if settings.localhost_node_ports => None,
                IpFamily::V4 => Some(Negatable::not(loopback())),
            };
            vec![rule]
        }
        NodePortTail::Addresses(addresses) => addresses
            .iter()
            .filter(|address| !address.is_loopback() || settings.localhost_node_ports)
            .map(|address| {
                commented(Rule::new(), TEXT)
                    .to(host(*address))
                    .then(jump.clone())
            })
            .collect(),
    }
}

/// Adds a comment. Our own texts always fit; one that does not is left out rather than cut, since
/// comments do not affect packets.
pub(crate) fn commented(rule: Rule, text: impl Into<Box<str>>) -> Rule {
    match Comment::new(text) {
        Ok(comment) => rule.comment(comment),
        Err(_) => rule,
    }
}
