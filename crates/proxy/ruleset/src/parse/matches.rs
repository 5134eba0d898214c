//! Match extensions: `-m NAME` and the options that follow it.

use weft_model::{IpFamily, Protocol};

use super::{ParseError, Parser, masked, number, protocol};
use crate::{
    AddressType, ChainName, Comment, ConntrackStates, Match, NfacctName, Probability, Recent,
    recent_mask,
};

impl Parser<'_> {
    pub(super) fn extension(&mut self) -> Result<(), ParseError> {
        let name = self.value("-m")?;
        let extension = match name.text {
            "comment" => self.comment()?,
            "conntrack" => self.conntrack()?,
            "addrtype" => self.address_type()?,
            "mark" => self.mark()?,
            "statistic" => self.statistic()?,
            "recent" => Match::Recent(self.recent()?),
            "nfacct" => {
                self.expect("-m nfacct", "--nfacct-name")?;
                Match::Nfacct(self.read("--nfacct-name", NfacctName::parse)?)
            }
            other => match protocol(other) {
                Some(protocol) => transport(protocol),
                None => return Err(ParseError::UnknownMatch(other.to_owned())),
            },
        };
        self.rule.matches.push(extension);
        Ok(())
    }

    fn comment(&mut self) -> Result<Match, ParseError> {
        self.expect("-m comment", "--comment")?;
        let comment = self.read("--comment", |text| Comment::new(text).ok())?;
        Ok(Match::Comment(comment))
    }

    fn conntrack(&mut self) -> Result<Match, ParseError> {
        let negated = self.take("!");
        self.expect("-m conntrack", "--ctstate")?;
        let states = self.read("--ctstate", ConntrackStates::parse)?;
        Ok(Match::Conntrack { negated, states })
    }

    fn address_type(&mut self) -> Result<Match, ParseError> {
        let (kind, option) = if self.take("--src-type") {
            (AddressType::SourceLocal, "--src-type")
        } else {
            self.expect("-m addrtype", "--dst-type")?;
            (AddressType::DestinationLocal, "--dst-type")
        };
        self.read(option, |text| (text == "LOCAL").then_some(()))?;
        Ok(Match::AddressType(kind))
    }

    fn mark(&mut self) -> Result<Match, ParseError> {
        let negated = self.take("!");
        self.expect("-m mark", "--mark")?;
        let (value, mask) = self.read("--mark", masked)?;
        Ok(Match::Mark {
            negated,
            value,
            mask: mask.unwrap_or(u32::MAX),
        })
    }

    fn statistic(&mut self) -> Result<Match, ParseError> {
        self.expect("-m statistic", "--mode")?;
        self.read("--mode", |text| (text == "random").then_some(()))?;
        self.expect("-m statistic", "--probability")?;
        let probability = self.read("--probability", |text| {
            let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            let fraction: f64 = text.parse().ok().filter(|_| plain)?;
            (fraction <= 1.0).then(|| Probability::from_fraction(fraction))
        })?;
        Ok(Match::Statistic(probability))
    }

    /// The options in any order: kube-proxy starts with the name, the kernel's text ends with it.
    fn recent(&mut self) -> Result<Recent, ParseError> {
        let (mut name, mut seconds, mut mask) = (None, None, None);
        let (mut check, mut set, mut reap, mut by_source) = (false, false, false, false);
        loop {
            if self.take("--name") {
                let value = self.read("--name", |text| ChainName::parse(text).ok())?;
                super::place(&mut name, Some(value), "--name")?;
            } else if self.take("--seconds") {
                let value = self.read("--seconds", number)?;
                super::place(&mut seconds, Some(value), "--seconds")?;
            } else if self.take("--mask") {
                let value = self.read("--mask", family_of_mask)?;
                super::place(&mut mask, Some(value), "--mask")?;
            } else if !(flag(self, "--rcheck", &mut check)?
                || flag(self, "--set", &mut set)?
                || flag(self, "--reap", &mut reap)?
                || flag(self, "--rsource", &mut by_source)?)
            {
                break;
            }
        }
        let family = self.family_of_list(mask)?;
        let name = name.ok_or(ParseError::Incomplete("-m recent", "--name"))?;
        match (check, set, seconds, reap) {
            (true, false, Some(seconds), true) => Ok(Recent::Check {
                name,
                seconds,
                family,
            }),
            (false, true, None, false) => Ok(Recent::Set { name, family }),
            (true, false, None, _) => Err(ParseError::Incomplete("-m recent", "--seconds")),
            (true, false, _, false) => Err(ParseError::Incomplete("-m recent", "--reap")),
            _ => Err(ParseError::Incomplete("-m recent", "one --rcheck or --set")),
        }
    }

    fn family_of_list(&self, mask: Option<IpFamily>) -> Result<IpFamily, ParseError> {
        match (mask, self.family) {
            (Some(mask), Some(family)) if mask != family => Err(ParseError::InvalidValue {
                option: "--mask",
                value: recent_mask(mask).to_owned(),
            }),
            (mask, family) => mask
                .or(family)
                .ok_or(ParseError::FamilyNeeded("-m recent without --mask")),
        }
    }
}

fn flag(
    parser: &mut Parser<'_>,
    option: &'static str,
    seen: &mut bool,
) -> Result<bool, ParseError> {
    if !parser.take(option) {
        return Ok(false);
    }
    if std::mem::replace(seen, true) {
        return Err(ParseError::Repeated(option));
    }
    Ok(true)
}

fn transport(protocol: Protocol) -> Match {
    Match::Transport {
        protocol,
        destination_port: None,
    }
}

/// Only masks of whole addresses are supported, so a mask shows the family alone.
fn family_of_mask(text: &str) -> Option<IpFamily> {
    IpFamily::ALL
        .into_iter()
        .find(|family| recent_mask(*family) == text)
}
