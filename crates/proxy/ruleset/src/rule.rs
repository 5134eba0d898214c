//! A rule and its one text form.

use std::fmt;

use ipnet::IpNet;
use weft_model::{IpFamily, Protocol};

use crate::{Comment, ConntrackStates, Interface, Match, Target};

/// A condition, or its negation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Negatable<T> {
    /// True for `!`.
    pub negated: bool,
    /// The value to compare with.
    pub value: T,
}

impl<T> Negatable<T> {
    /// The condition itself.
    pub fn is(value: T) -> Self {
        Self {
            negated: false,
            value,
        }
    }

    /// The negated condition.
    pub fn not(value: T) -> Self {
        Self {
            negated: true,
            value,
        }
    }

    /// Applies the negation to the result for the value.
    pub fn holds(&self, value: impl FnOnce(&T) -> bool) -> bool {
        value(&self.value) != self.negated
    }
}

/// A rule without its chain.
///
/// Addresses, interface and protocol have fixed places in the kernel's form; extension matches keep
/// their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Source network, `-s`.
    pub source: Option<Negatable<IpNet>>,
    /// Destination network, `-d`.
    pub destination: Option<Negatable<IpNet>>,
    /// Input interface, `-i`.
    pub in_interface: Option<Negatable<Interface>>,
    /// Protocol, `-p`.
    pub protocol: Option<Protocol>,
    /// Extension matches, `-m`, in order.
    pub matches: Vec<Match>,
    /// Target, `-j`; a rule without one only counts packets.
    pub target: Option<Target>,
}

impl Rule {
    /// A rule that matches everything and does nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a comment.
    #[must_use]
    pub fn comment(self, comment: Comment) -> Self {
        self.with(Match::Comment(comment))
    }

    /// Matches a protocol, with its own match extension.
    #[must_use]
    pub fn transport(mut self, protocol: Protocol, destination_port: Option<u16>) -> Self {
        self.protocol = Some(protocol);
        self.with(Match::Transport {
            protocol,
            destination_port,
        })
    }

    /// Matches a source network.
    #[must_use]
    pub fn from(mut self, source: IpNet) -> Self {
        self.source = Some(Negatable::is(source));
        self
    }

    /// Matches a destination network.
    #[must_use]
    pub fn to(mut self, destination: IpNet) -> Self {
        self.destination = Some(Negatable::is(destination));
        self
    }

    /// Matches connections in one of these states.
    #[must_use]
    pub fn in_state(self, states: ConntrackStates) -> Self {
        self.with(Match::Conntrack {
            negated: false,
            states,
        })
    }

    /// Adds a match.
    #[must_use]
    pub fn with(mut self, extension: Match) -> Self {
        self.matches.push(extension);
        self
    }

    /// Sets the target.
    #[must_use]
    pub fn then(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// The text of the first comment.
    pub fn comment_text(&self) -> Option<&str> {
        self.matches.iter().find_map(|candidate| match candidate {
            Match::Comment(comment) => Some(comment.as_str()),
            _ => None,
        })
    }

    /// The chain that the rule jumps to.
    pub fn jump(&self) -> Option<crate::ChainName> {
        match self.target {
            Some(Target::Jump(chain)) => Some(chain),
            _ => None,
        }
    }
}

/// The text after `-A CHAIN ` in the output of `iptables-save`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Words { f, separator: "" };
        if let Some(source) = &self.source {
            words.network("-s", source)?;
        }
        if let Some(destination) = &self.destination {
            words.network("-d", destination)?;
        }
        if let Some(interface) = &self.in_interface {
            words.negatable("-i", interface)?;
        }
        if let Some(protocol) = self.protocol {
            words.push(format_args!("-p {protocol}"))?;
        }
        for extension in &self.matches {
            words.push(format_args!("{extension}"))?;
        }
        match &self.target {
            Some(target) => words.push(format_args!("{target}")),
            None => Ok(()),
        }
    }
}

/// Writes words separated by single blanks.
struct Words<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    separator: &'static str,
}

impl Words<'_, '_> {
    fn push(&mut self, words: fmt::Arguments<'_>) -> fmt::Result {
        write!(self.f, "{}{words}", self.separator)?;
        self.separator = " ";
        Ok(())
    }

    /// The kernel stores no host bits, and drops a network that contains all addresses.
    fn network(&mut self, option: &str, value: &Negatable<IpNet>) -> fmt::Result {
        if value.value.prefix_len() == 0 && !value.negated {
            return Ok(());
        }
        let Negatable { negated, value } = value;
        let (negated, value) = (*negated, value.trunc());
        self.negatable(option, &Negatable { negated, value })
    }

    fn negatable<T: fmt::Display>(&mut self, option: &str, value: &Negatable<T>) -> fmt::Result {
        let not = if value.negated { "! " } else { "" };
        self.push(format_args!("{not}{option} {}", value.value))
    }
}

/// The network of exactly one address.
pub fn host(address: std::net::IpAddr) -> IpNet {
    let width = IpFamily::of(address).width();
    IpNet::new_assert(address, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChainName;

    #[test]
    fn a_rule_prints_as_iptables_save_prints_it() {
        let rule = Rule {
            in_interface: Some(Negatable::not(Interface::new("br0").unwrap())),
            source: Some(Negatable::not("10.180.0.0/16".parse().unwrap())),
            ..Rule::new()
        }
        .comment(Comment::new("ns1/svc1:p80 cluster IP").unwrap())
        .transport(Protocol::Tcp, Some(80))
        .to(host("10.96.0.41".parse().unwrap()))
        .then(Target::Jump(ChainName::fixed("KUBE-MARK-MASQ")));
        assert_eq!(
            rule.to_string(),
            "! -s 10.180.0.0/16 -d 10.96.0.41/32 ! -i br0 -p tcp -m comment --comment \
             \"ns1/svc1:p80 cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ"
        );
    }

    #[test]
    fn networks_print_as_the_kernel_keeps_them() {
        let printed = |text: &str| Rule::new().from(text.parse().unwrap()).to_string();
        assert_eq!(printed("10.1.2.3/8"), "-s 10.0.0.0/8");
        assert_eq!(printed("0.0.0.0/0"), "");
        let none = Rule {
            source: Some(Negatable::not("::/0".parse().unwrap())),
            ..Rule::new()
        };
        assert_eq!(none.to_string(), "! -s ::/0");
    }

    #[test]
    fn a_rule_may_do_nothing() {
        let rule = Rule::new().comment(Comment::new("only words here").unwrap());
        assert_eq!(rule.to_string(), "-m comment --comment \"only words here\"");
        assert_eq!(rule.comment_text(), Some("only words here"));
    }
}
