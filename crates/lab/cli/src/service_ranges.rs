//! `--service-cluster-ip-range`: one CIDR, or one of each family.

use std::{fmt, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The networks that cluster IPs come from: one, or one of each family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ServiceRanges(pub(crate) Vec<IpNet>);

impl FromStr for ServiceRanges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = |part: &str| {
            let range = part.trim().parse::<IpNet>();
            range.map_err(|_| format!("`{part}` is not a CIDR: expected one such as 10.96.0.0/12"))
        };
        let ranges = text.split(',').map(parse).collect::<Result<Vec<_>, _>>()?;
        match ranges.as_slice() {
            [_] | [IpNet::V4(_), IpNet::V6(_)] | [IpNet::V6(_), IpNet::V4(_)] => Ok(Self(ranges)),
            _ => Err(format!(
                "`{text}` is neither one network nor one of each family"
            )),
        }
    }
}

impl fmt::Display for ServiceRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&ranges.join(","))
    }
}

impl TryFrom<String> for ServiceRanges {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ServiceRanges> for String {
    fn from(ranges: ServiceRanges) -> Self {
        ranges.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_or_one_of_each_family() {
        for text in ["10.96.0.0/12", "fd00::/112", "10.96.0.0/12,fd00::/112"] {
            assert_eq!(text.parse::<ServiceRanges>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "10.96.0.0",
            "10.0.0.0/8,10.96.0.0/12",
            "a/1",
            "::/1,10.0.0.0/8,::/2",
        ] {
            assert!(wrong.parse::<ServiceRanges>().is_err(), "{wrong}");
        }
    }
}
