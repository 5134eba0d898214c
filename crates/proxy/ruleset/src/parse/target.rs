//! Targets: `-j NAME` and the options that follow it.

use weft_model::IpFamily;

use super::{ParseError, Parser, bits, masked};
use crate::{ChainName, Target};

/// Targets of iptables that are not supported; no chain can have one of these names.
const FOREIGN: [&str; 38] = [
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CLUSTERIP",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DNPT",
    "DSCP",
    "ECN",
    "HL",
    "HMARK",
    "IDLETIMER",
    "LED",
    "LOG",
    "MIRROR",
    "NETMAP",
    "NFLOG",
    "NFQUEUE",
    "NOTRACK",
    "QUEUE",
    "RATEEST",
    "REDIRECT",
    "SAME",
    "SECMARK",
    "SET",
    "SNAT",
    "SNPT",
    "SYNPROXY",
    "TARPIT",
    "TCPMSS",
    "TCPOPTSTRIP",
    "TEE",
    "TOS",
    "TPROXY",
    "TRACE",
    "TTL",
    "ULOG",
];

const OURS: [&str; 7] = [
    "ACCEPT",
    "DNAT",
    "DROP",
    "MARK",
    "MASQUERADE",
    "REJECT",
    "RETURN",
];

/// True if the word after `-j` does not name a chain.
pub(crate) fn is_target_name(name: &str) -> bool {
    OURS.contains(&name) || FOREIGN.contains(&name)
}

impl Parser<'_> {
    pub(super) fn target(&mut self) -> Result<Target, ParseError> {
        let name = self.value("-j")?.text;
        match name {
            "ACCEPT" => Ok(Target::Accept),
            "DROP" => Ok(Target::Drop),
            "RETURN" => Ok(Target::Return),
            "REJECT" => self.reject(),
            "MARK" => self.set_mark(),
            "MASQUERADE" => Ok(Target::Masquerade {
                random_fully: self.take("--random-fully"),
            }),
            "DNAT" => {
                self.expect("-j DNAT", "--to-destination")?;
                let address = self.read("--to-destination", |text| text.parse().ok())?;
                Ok(Target::Dnat(address))
            }
            _ if FOREIGN.contains(&name) => Err(ParseError::UnknownTarget(name.to_owned())),
            _ => match ChainName::parse(name) {
                Ok(chain) => Ok(Target::Jump(chain)),
                Err(_) => Err(ParseError::UnknownTarget(name.to_owned())),
            },
        }
    }

    fn reject(&mut self) -> Result<Target, ParseError> {
        if !self.take("--reject-with") {
            let bare = ParseError::FamilyNeeded("-j REJECT without --reject-with");
            return self.family.map(Target::Reject).ok_or(bare);
        }
        let known = self.family;
        let family = self.read("--reject-with", |text| {
            let family = match text {
                "icmp-port-unreachable" => IpFamily::V4,
                "icmp6-port-unreachable" => IpFamily::V6,
                _ => return None,
            };
            known.is_none_or(|known| known == family).then_some(family)
        })?;
        Ok(Target::Reject(family))
    }

    fn set_mark(&mut self) -> Result<Target, ParseError> {
        let (value, mask) = if self.take("--set-xmark") {
            let (value, mask) = self.read("--set-xmark", masked)?;
            (value, mask.unwrap_or(u32::MAX))
        } else if self.take("--or-mark") {
            let value = self.read("--or-mark", bits)?;
            (value, value)
        } else if self.take("--xor-mark") {
            (self.read("--xor-mark", bits)?, 0)
        } else {
            return Err(ParseError::Incomplete("-j MARK", "--set-xmark"));
        };
        Ok(Target::SetMark { value, mask })
    }
}
