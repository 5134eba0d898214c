//! Evaluates whether a rule matches a packet.

use ipnet::IpNet;

use super::{
    Doubt, Entry, Packet,
    walk::{Passage, State},
};
use crate::{AddressType, ConntrackStates, Match, Rule, SavedRule, words::Words};

/// The result of evaluating a rule for a packet.
pub(super) enum Applies {
    /// It does not match.
    No,
    /// It matches with this probability.
    Yes(f64),
    /// It cannot be evaluated.
    Unknown(Doubt),
}

pub(super) fn evaluate(rule: &SavedRule, packet: &Packet, state: &State) -> Applies {
    match rule {
        SavedRule::Known(rule) => evaluate_known(rule, packet, state),
        SavedRule::Foreign(text) if is_ruled_out(text, packet, state) => Applies::No,
        SavedRule::Foreign(_) => Applies::Unknown(Doubt::Foreign),
    }
}

fn evaluate_known(rule: &Rule, packet: &Packet, state: &State) -> Applies {
    let asks_source = |net: &IpNet| net.contains(&packet.source);
    let asks_destination = |net: &IpNet| net.contains(&state.destination);
    let fits = rule.source.as_ref().is_none_or(|s| s.holds(asks_source))
        && rule
            .destination
            .as_ref()
            .is_none_or(|d| d.holds(asks_destination))
        && rule.protocol.is_none_or(|p| p == packet.protocol);
    if !fits {
        return Applies::No;
    }
    let mut probability = 1.0;
    for extension in &rule.matches {
        if let Match::Statistic(chance) = extension {
            probability *= chance.fraction();
        } else if !holds(extension, packet, state) {
            return Applies::No;
        }
    }
    // Evaluated last: a doubt matters only if everything else matches.
    let Some(device) = &rule.in_interface else {
        return Applies::Yes(probability);
    };
    let arrived_on = match (state.passage, &packet.entry) {
        (Passage::Inside, Entry::Arriving { device: None }) => {
            return Applies::Unknown(Doubt::DeviceUnknown);
        }
        (Passage::Inside, Entry::Arriving { device: Some(name) }) => name.as_str(),
        (Passage::Inside, Entry::Sent) | (Passage::Leaving, _) => "",
        (Passage::Back, _) => "lo",
    };
    if device.holds(|device| device.matches(arrived_on)) {
        Applies::Yes(probability)
    } else {
        Applies::No
    }
}

fn holds(extension: &Match, packet: &Packet, state: &State) -> bool {
    match extension {
        // A random match is not a condition; the caller takes its probability into account.
        Match::Comment(_)
        | Match::Nfacct(_)
        | Match::Statistic(_)
        | Match::Recent(crate::Recent::Set { .. }) => true,
        Match::Transport {
            protocol,
            destination_port,
        } => {
            *protocol == packet.protocol
                && destination_port.is_none_or(|port| port == state.destination_port)
        }
        Match::Conntrack { negated, states } => {
            let mut current = ConntrackStates::NEW;
            if state.is_translated {
                current = current.or(ConntrackStates::DNAT);
            }
            states.intersects(current) != *negated
        }
        Match::AddressType(AddressType::SourceLocal) => packet.is_local(packet.source),
        Match::AddressType(AddressType::DestinationLocal) => packet.is_local(state.destination),
        Match::Mark {
            negated,
            value,
            mask,
        } => (state.mark & mask == *value) != *negated,
        Match::Recent(crate::Recent::Check { name, .. }) => packet.affinity == Some(*name),
    }
}

/// True if a part of a foreign rule that can be parsed excludes the packet.
fn is_ruled_out(text: &str, packet: &Packet, state: &State) -> bool {
    let mut negated = false;
    let mut words = Words::new(text);
    while let Some(Ok(word)) = words.next() {
        if word.is("!") {
            negated = true;
            continue;
        }
        let asked = |holds: Option<bool>| holds.is_some_and(|holds| holds == negated);
        let value = || words.clone().next()?.ok().map(|word| word.text);
        let contradicts = match word.text {
            _ if word.quoted => false,
            "-s" => asked(value().and_then(|v| contains(v, packet.source))),
            "-d" => asked(value().and_then(|v| contains(v, state.destination))),
            "-p" => asked(value().map(|v| v == packet.protocol.as_str() || v == "all")),
            "--dport" => asked(value().and_then(|v| spans(v, state.destination_port))),
            _ => false,
        };
        if contradicts {
            return true;
        }
        negated = false;
    }
    false
}

fn contains(network: &str, address: std::net::IpAddr) -> Option<bool> {
    let network: IpNet = network.parse().ok()?;
    Some(network.contains(&address))
}

fn spans(ports: &str, port: u16) -> Option<bool> {
    let (from, to) = ports.split_once(':').unwrap_or((ports, ports));
    Some((from.parse().ok()?..=to.parse().ok()?).contains(&port))
}
