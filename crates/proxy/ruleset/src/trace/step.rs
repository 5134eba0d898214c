//! The steps of a traced packet, and their text.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use weft_model::IpFamily;

use crate::{
    AddressType, ChainName, ChainPolicy, Match, Negatable, Recent, Rule, SavedRule, Table,
};

/// One step on a packet's way; prints as a line for people.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A rule matched.
    Rule {
        /// Table of the chain.
        table: Table,
        /// The chain.
        chain: ChainName,
        /// Number of jumps that lead to the chain.
        depth: usize,
        /// The rule.
        rule: Rule,
        /// Probability that the rule matches.
        chance: Chance,
        /// The effect of the rule.
        action: Action,
    },
    /// A rule that could not be evaluated; the trace assumes that it does not match.
    Doubtful {
        /// Table of the chain.
        table: Table,
        /// The chain.
        chain: ChainName,
        /// Number of jumps that lead to the chain.
        depth: usize,
        /// The rule.
        rule: SavedRule,
        /// The reason.
        doubt: Doubt,
    },
    /// No rule of a built-in chain made a decision.
    Policy {
        /// Table of the chain.
        table: Table,
        /// The chain.
        chain: ChainName,
        /// The policy applied.
        policy: ChainPolicy,
    },
    /// The routing decision.
    Routed {
        /// The current destination.
        destination: IpAddr,
        /// True if that is this node.
        to_this_node: bool,
    },
    /// A jump to a chain that is already on the path.
    Loop {
        /// The chain.
        chain: ChainName,
        /// Number of jumps that lead there.
        depth: usize,
    },
    /// More nested jumps than any kernel follows.
    TooDeep {
        /// The chain of the next jump.
        chain: ChainName,
        /// Number of jumps that lead there.
        depth: usize,
    },
}

/// The effect of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// None: the next rule follows.
    Continue,
    /// Continues in another chain.
    Jump {
        /// The chain.
        chain: ChainName,
        /// The endpoint, if the chain is for one.
        endpoint: Option<SocketAddr>,
    },
    /// Accepts the packet in this table.
    Accept,
    /// Drops the packet.
    Drop,
    /// Returns to the calling chain.
    Return,
    /// Drops the packet with an ICMP error to the sender.
    Reject,
    /// Sets the mark to this value.
    SetMark(u32),
    /// Replaces the source by an address of this node.
    Masquerade,
    /// Replaces the destination.
    Dnat(SocketAddr),
}

/// The probability that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chance {
    /// Relative to the packets that reach the rule.
    pub of_the_rest: f64,
    /// Relative to the packets that entered the chain, with the random matches before the rule.
    pub of_all: f64,
}

/// The reason why a rule cannot be evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It has matches that are not supported.
    Foreign,
    /// It matches the input interface, which was not given.
    DeviceUnknown,
}

impl Step {
    /// Number of jumps that lead to its chain.
    pub fn depth(&self) -> usize {
        match self {
            Self::Rule { depth, .. }
            | Self::Doubtful { depth, .. }
            | Self::Loop { depth, .. }
            | Self::TooDeep { depth, .. } => *depth,
            Self::Policy { .. } | Self::Routed { .. } => 0,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule {
                table,
                chain,
                rule,
                chance,
                action,
                ..
            } => {
                place(f, *table, *chain)?;
                let condition = condition(rule, *chance);
                write!(f, ": {condition} → {action}")?;
                note(f, rule, *action)
            }
            Self::Doubtful {
                table,
                chain,
                rule,
                doubt,
                ..
            } => {
                place(f, *table, *chain)?;
                write!(f, ": {doubt}: {rule}")
            }
            Self::Policy {
                table,
                chain,
                policy,
            } => {
                let what = match policy {
                    ChainPolicy::Accept => "accepted",
                    ChainPolicy::Drop => "dropped",
                };
                write!(f, "{table} {chain}: no rule decides → {what} by policy")
            }
            Self::Routed {
                destination,
                to_this_node: true,
            } => write!(f, "routing: {destination} is this node"),
            Self::Routed { destination, .. } => {
                write!(f, "routing: {destination} is elsewhere → forwarded")
            }
            Self::TooDeep { chain, depth } => {
                write!(f, "{chain}: {depth} nested jumps → not followed")
            }
            Self::Loop { chain, .. } => {
                write!(f, "{chain}: already on the path → loop, not followed")
            }
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Continue => f.write_str("no target"),
            Self::Jump {
                endpoint: Some(endpoint),
                ..
            } => write!(f, "endpoint {endpoint}"),
            Self::Jump { chain, .. } => write!(f, "chain {chain}"),
            Self::Accept => f.write_str("accepted"),
            Self::Drop => f.write_str("dropped"),
            Self::Return => f.write_str("return to the calling chain"),
            Self::Reject => f.write_str("rejected, port unreachable"),
            Self::SetMark(mark) => write!(f, "mark becomes {mark:#x}"),
            Self::Masquerade => f.write_str("source becomes an address of this node"),
            Self::Dnat(address) => write!(f, "destination becomes {address}"),
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Foreign => "cannot evaluate this rule, assuming that it does not match",
            Self::DeviceUnknown => {
                "input interface not given, assuming that this rule does not match"
            }
        })
    }
}

/// Built-in chains exist in several tables, so their table is printed too.
fn place(f: &mut fmt::Formatter<'_>, table: Table, chain: ChainName) -> fmt::Result {
    if table.has_built_in(chain) {
        write!(f, "{table} ")?;
    }
    write!(f, "{chain}")
}

/// The comment in parentheses, unless the step already shows its content.
fn note(f: &mut fmt::Formatter<'_>, rule: &Rule, action: Action) -> fmt::Result {
    let is_said = matches!(
        action,
        Action::Jump {
            endpoint: Some(_),
            ..
        }
    );
    match rule.comment_text() {
        Some(comment) if !is_said => write!(f, " ({comment})"),
        _ => Ok(()),
    }
}

/// The condition of the rule.
fn condition(rule: &Rule, chance: Chance) -> String {
    let mut parts = Vec::new();
    parts.extend(rule.source.as_ref().map(|net| network("from", net)));
    parts.extend(rule.destination.as_ref().map(|net| network("to", net)));
    parts.extend(transport(rule));
    parts.extend(rule.in_interface.as_ref().map(|device| {
        let not = if device.negated { "not " } else { "" };
        format!("{not}arriving on {}", device.value)
    }));
    parts.extend(rule.matches.iter().filter_map(extension));
    let throws = |m: &Match| matches!(m, Match::Statistic(_));
    if chance.of_all < 1.0 || rule.matches.iter().any(throws) {
        parts.push(chance.to_string());
    }
    if parts.is_empty() {
        return "everything".to_owned();
    }
    parts.join(", ")
}

fn network(preposition: &str, network: &Negatable<IpNet>) -> String {
    let value = network.value;
    let is_host = value.prefix_len() == IpFamily::of(value.addr()).width();
    let text = if is_host {
        value.addr().to_string()
    } else {
        value.to_string()
    };
    match (network.negated, is_host) {
        (false, _) => format!("{preposition} {text}"),
        (true, true) => format!("{preposition} anyone but {text}"),
        (true, false) => format!("{preposition} outside {text}"),
    }
}

fn transport(rule: &Rule) -> Option<String> {
    let protocol = rule.protocol?;
    let port = rule.matches.iter().find_map(|m| match m {
        Match::Transport {
            destination_port, ..
        } => *destination_port,
        _ => None,
    });
    Some(match port {
        Some(port) => format!("port {port}/{protocol}"),
        None => protocol.to_string(),
    })
}

fn extension(extension: &Match) -> Option<String> {
    Some(match extension {
        Match::Comment(_) | Match::Transport { .. } | Match::Statistic(_) => return None,
        Match::Conntrack { negated, states } => {
            let not = if *negated { "not " } else { "" };
            format!("connection {not}{states}")
        }
        Match::AddressType(AddressType::SourceLocal) => "from this node".to_owned(),
        Match::AddressType(AddressType::DestinationLocal) => "to this node".to_owned(),
        Match::Mark {
            negated,
            value,
            mask,
        } => {
            let not = if *negated { "not " } else { "" };
            format!("mark {not}{value:#x} in {mask:#x}")
        }
        Match::Recent(Recent::Check { seconds, .. }) => {
            format!("client was here in the last {seconds} s")
        }
        Match::Recent(Recent::Set { .. }) => "client is remembered".to_owned(),
        Match::Nfacct(name) => format!("counted as {}", name.as_str()),
    })
}

impl fmt::Display for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = (self.of_the_rest - self.of_all).abs() < f64::EPSILON;
        if self.of_the_rest >= 1.0 {
            return write!(f, "all the rest ({})", percent(self.of_all));
        }
        let share = share(self.of_the_rest);
        if first {
            write!(f, "{share} ({})", percent(self.of_all))
        } else {
            write!(f, "{share} of the rest ({} of all)", percent(self.of_all))
        }
    }
}

/// "one in three" where that is exact, else a percentage.
fn share(probability: f64) -> String {
    const WORDS: [&str; 9] = [
        "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    ];
    if probability <= 0.0 {
        return "none".to_owned();
    }
    let n = (1.0 / probability).round();
    // The kernel keeps 31 bits.
    if (n.recip() - probability).abs() > 1e-9 {
        return percent(probability);
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive whole number of at most 2^31"
    )]
    let n = n as usize;
    match n.checked_sub(2).and_then(|index| WORDS.get(index)) {
        Some(word) => format!("one in {word}"),
        None => format!("one in {n}"),
    }
}

/// A percentage with one decimal, or more if that would print as zero.
pub(super) fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    let whole = (percent - percent.round()).abs() < 1e-6;
    if whole && percent >= 0.5 {
        format!("{percent:.0} %")
    } else if percent >= 0.1 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.6} %")
    }
}
