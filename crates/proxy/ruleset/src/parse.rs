//! Parses a rule from text: the output of `iptables-save`, and the input that kube-proxy writes.
//!
//! Only what a [`Rule`] can represent is parsed. Everything else is an error, even other spellings
//! that iptables would accept: a rule that is not understood is kept as text, a rule that is
//! misunderstood would be acted upon.

use ipnet::IpNet;
use weft_model::{IpFamily, Protocol};

use crate::{
    Interface, Match, Negatable, Rule,
    words::{Misquoted, Word, Words},
};

mod matches;
mod target;

pub(crate) use target::is_target_name;

/// The reason why a text is not a supported rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// An unknown option, or another word in place of an option.
    #[error("{0:?} is not a supported option here")]
    UnknownOption(String),
    /// An unsupported match extension.
    #[error("match {0:?} is not supported")]
    UnknownMatch(String),
    /// An unsupported target extension.
    #[error("target {0:?} is not supported")]
    UnknownTarget(String),
    /// The text ends in place of a value.
    #[error("{0} has no value")]
    MissingValue(&'static str),
    /// A value of the wrong form, or one that cannot be represented.
    #[error("{value:?} is not a supported value of {option}")]
    InvalidValue {
        /// The option that the value belongs to.
        option: &'static str,
        /// The value.
        value: String,
    },
    /// An option that is given twice.
    #[error("{0} is given twice")]
    Repeated(&'static str),
    /// A `!` in front of something that cannot be negated here.
    #[error("{0:?} cannot be negated here")]
    Negated(String),
    /// A match or target that lacks an option.
    #[error("{0} lacks {1}")]
    Incomplete(&'static str, &'static str),
    /// A protocol's match without the protocol.
    #[error("match {0} needs -p {0}")]
    ProtocolMissing(Protocol),
    /// Unterminated quotes, or a backslash within quotes.
    #[error("unterminated quotes, or a backslash within quotes")]
    Quoting,
    /// The meaning depends on the family, which the text does not show.
    #[error("{0} depends on the address family")]
    FamilyNeeded(&'static str),
    /// An address of the other family.
    #[error("{0} is not an address of this family")]
    WrongFamily(IpNet),
}

impl From<Misquoted> for ParseError {
    fn from(_: Misquoted) -> Self {
        Self::Quoting
    }
}

impl Rule {
    /// Parses the text after `-A CHAIN `.
    ///
    /// Where the meaning depends on the family (`-j REJECT` without options, `-m recent` without a
    /// mask), it is taken from the rule's addresses; without any it is an error.
    /// [`Rule::parse_for`] takes the family as an argument.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        Parser::new(text, None).parse()
    }

    /// [`Rule::parse`] for a ruleset of this family.
    pub fn parse_for(family: IpFamily, text: &str) -> Result<Self, ParseError> {
        Parser::new(text, Some(family)).parse()
    }
}

struct Parser<'a> {
    words: Words<'a>,
    family: Option<IpFamily>,
    rule: Rule,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, family: Option<IpFamily>) -> Self {
        Self {
            words: Words::new(text),
            family,
            rule: Rule::new(),
        }
    }

    fn parse(mut self) -> Result<Rule, ParseError> {
        if self.family.is_none() {
            self.family = family_of_addresses(self.words.clone());
        }
        // Most rules have two; growing from zero would start with four.
        self.rule.matches.reserve_exact(2);
        while let Some(word) = self.next()? {
            let negated = word.is("!");
            let option = if negated { self.value("!")? } else { word };
            self.option(option, negated)?;
        }
        self.check_protocol()?;
        Ok(self.rule)
    }

    fn option(&mut self, option: Word<'a>, negated: bool) -> Result<(), ParseError> {
        if option.quoted {
            return Err(ParseError::UnknownOption(option.text.to_owned()));
        }
        let may_be_negated = matches!(
            option.text,
            "-s" | "--source" | "-d" | "--destination" | "-i" | "--in-interface"
        );
        if negated && !may_be_negated {
            return Err(ParseError::Negated(option.text.to_owned()));
        }
        match option.text {
            "-s" | "--source" => {
                let value = self.network("-s", negated)?;
                place(&mut self.rule.source, value, "-s")
            }
            "-d" | "--destination" => {
                let value = self.network("-d", negated)?;
                place(&mut self.rule.destination, value, "-d")
            }
            "-i" | "--in-interface" => {
                let value = self.read("-i", |text| Interface::new(text).ok())?;
                let value = Some(Negatable { negated, value });
                place(&mut self.rule.in_interface, value, "-i")
            }
            "-p" | "--protocol" => {
                let value = self.read("-p", protocol)?;
                place(&mut self.rule.protocol, Some(value), "-p")
            }
            "-m" | "--match" => self.extension(),
            "--dport" | "--destination-port" => self.destination_port(),
            "-j" | "--jump" => {
                let value = self.target()?;
                place(&mut self.rule.target, Some(value), "-j")
            }
            other => Err(ParseError::UnknownOption(other.to_owned())),
        }
    }

    /// Parses an address or network. One that contains all addresses is dropped, as iptables does,
    /// unless it is negated.
    fn network(
        &mut self,
        option: &'static str,
        negated: bool,
    ) -> Result<Option<Negatable<IpNet>>, ParseError> {
        let value = self.read(option, network)?;
        if self.family.is_some_and(|f| f != IpFamily::of(value.addr())) {
            return Err(ParseError::WrongFamily(value));
        }
        let asks = negated || value.prefix_len() > 0;
        Ok(asks.then_some(Negatable { negated, value }))
    }

    /// kube-proxy writes `-m tcp -p tcp -d ADDRESS --dport PORT`: the port belongs to the
    /// protocol's match wherever that is, and adds one if there is none.
    fn destination_port(&mut self) -> Result<(), ParseError> {
        let port = self.read("--dport", number)?;
        let place = self.rule.matches.iter_mut().rev().find_map(|m| match m {
            Match::Transport {
                destination_port, ..
            } => Some(destination_port),
            _ => None,
        });
        match (place, self.rule.protocol) {
            (Some(place @ None), _) => *place = Some(port),
            (Some(Some(_)), _) => return Err(ParseError::Repeated("--dport")),
            (None, Some(protocol)) => self.rule.matches.push(Match::Transport {
                protocol,
                destination_port: Some(port),
            }),
            (None, None) => return Err(ParseError::UnknownOption("--dport".to_owned())),
        }
        Ok(())
    }

    fn check_protocol(&self) -> Result<(), ParseError> {
        for extension in &self.rule.matches {
            if let Match::Transport { protocol, .. } = extension
                && self.rule.protocol != Some(*protocol)
            {
                return Err(ParseError::ProtocolMissing(*protocol));
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Word<'a>>, ParseError> {
        Ok(self.words.next().transpose()?)
    }

    /// Takes the next word if it is this one.
    fn take(&mut self, option: &str) -> bool {
        let mut ahead = self.words.clone();
        let found = matches!(ahead.next(), Some(Ok(word)) if word.is(option));
        if found {
            self.words = ahead;
        }
        found
    }

    fn expect(&mut self, of: &'static str, option: &'static str) -> Result<(), ParseError> {
        if self.take(option) {
            Ok(())
        } else {
            Err(ParseError::Incomplete(of, option))
        }
    }

    fn value(&mut self, option: &'static str) -> Result<Word<'a>, ParseError> {
        self.next()?.ok_or(ParseError::MissingValue(option))
    }

    fn read<T>(
        &mut self,
        option: &'static str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, ParseError> {
        let text = self.value(option)?.text;
        read(text).ok_or_else(|| ParseError::InvalidValue {
            option,
            value: text.to_owned(),
        })
    }
}

fn place<T>(
    place: &mut Option<T>,
    value: Option<T>,
    option: &'static str,
) -> Result<(), ParseError> {
    if place.is_some() {
        return Err(ParseError::Repeated(option));
    }
    *place = value;
    Ok(())
}

/// The family of the first address after `-s` or `-d`.
fn family_of_addresses(mut words: Words<'_>) -> Option<IpFamily> {
    while let Some(Ok(word)) = words.next() {
        if word.is("-s") || word.is("-d") {
            let address = network(words.next()?.ok()?.text)?;
            return Some(IpFamily::of(address.addr()));
        }
    }
    None
}

/// A network without host bits; an address alone is a network of one.
fn network(text: &str) -> Option<IpNet> {
    let network = if text.contains('/') {
        text.parse::<IpNet>().ok()?
    } else {
        crate::host(text.parse().ok()?)
    };
    Some(network.trunc())
}

fn protocol(text: &str) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|p| p.as_str() == text)
}

/// A decimal number in its canonical spelling.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let canonical =
        text.bytes().all(|b| b.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

/// A number in decimal or, after `0x`, hexadecimal.
fn bits(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
            u32::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None => number(text),
    }
}

/// A value and, after a slash, its mask.
fn masked(text: &str) -> Option<(u32, Option<u32>)> {
    match text.split_once('/') {
        Some((value, mask)) => Some((bits(value)?, Some(bits(mask)?))),
        None => Some((bits(text)?, None)),
    }
}

#[cfg(test)]
mod tests;
