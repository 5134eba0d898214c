use std::fmt;

use ipnet::IpNet;
use weft_model::{IpFamily, Protocol};

use crate::{Comment, ConntrackStates, Interface, Match, Target};

/// Something a rule asks for, or its opposite.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Negatable<T> {
    /// Whether the opposite is asked for.
    pub negated: bool,
    /// What is asked for.
    pub value: T,
}

impl<T> Negatable<T> {
    /// Asks for it.
    pub fn is(value: T) -> Self {
        Self {
            negated: false,
            value,
        }
    }

    /// Asks for anything else.
    pub fn not(value: T) -> Self {
        Self {
            negated: true,
            value,
        }
    }

    /// Turns the answer for the value into the answer for this.
    pub fn holds(&self, value: impl FnOnce(&T) -> bool) -> bool {
        value(&self.value) != self.negated
    }
}

/// A rule without the chain it stands in.
///
/// Addresses, device and protocol have a place of their own in the kernel, extension matches keep
/// the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// `-s`.
    pub source: Option<Negatable<IpNet>>,
    /// `-d`.
    pub destination: Option<Negatable<IpNet>>,
    /// `-i`.
    pub in_interface: Option<Negatable<Interface>>,
    /// `-p`.
    pub protocol: Option<Protocol>,
    /// `-m`, in order.
    pub matches: Vec<Match>,
    /// `-j`; a rule without one only counts.
    pub target: Option<Target>,
}

impl Rule {
    /// A rule that matches everything and does nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// With a comment.
    #[must_use]
    pub fn comment(self, comment: Comment) -> Self {
        self.with(Match::Comment(comment))
    }

    /// For one protocol, with its own match.
    #[must_use]
    pub fn transport(mut self, protocol: Protocol, destination_port: Option<u16>) -> Self {
        self.protocol = Some(protocol);
        self.with(Match::Transport {
            protocol,
            destination_port,
        })
    }

    /// From a network.
    #[must_use]
    pub fn from(mut self, source: IpNet) -> Self {
        self.source = Some(Negatable::is(source));
        self
    }

    /// To a network.
    #[must_use]
    pub fn to(mut self, destination: IpNet) -> Self {
        self.destination = Some(Negatable::is(destination));
        self
    }

    /// For connections in one of these states.
    #[must_use]
    pub fn in_state(self, states: ConntrackStates) -> Self {
        self.with(Match::Conntrack {
            negated: false,
            states,
        })
    }

    /// With one more match.
    #[must_use]
    pub fn with(mut self, extension: Match) -> Self {
        self.matches.push(extension);
        self
    }

    /// With a target.
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

    /// Where the rule jumps to.
    pub fn jump(&self) -> Option<crate::ChainName> {
        match self.target {
            Some(Target::Jump(chain)) => Some(chain),
            _ => None,
        }
    }
}

/// What stands behind `-A CHAIN ` in the output of `iptables-save`.
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

/// Writes words with single blanks between them.
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

    /// The kernel keeps no host bits, and forgets a network that leaves nothing out.
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
