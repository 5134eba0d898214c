//! A CIDR together with the text it was parsed from.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr};

/// A text is not a CIDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// No `/`, no address before it, or no prefix length after it.
    #[error("not a CIDR")]
    Malformed,
}

/// A CIDR as written in an object, parsed if it is valid.
///
/// The text is kept because upstream compares texts, and because an error about a bad value has to
/// show the value. Equality and order are those of the text; compare [`Cidr::net`] to compare
/// ranges.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    text: SharedStr,
    net: Option<IpNet>,
}

impl Cidr {
    /// Parses a text. Host bits are cut off in [`Cidr::net`], and leading zeros of IPv4 octets are
    /// decimal, as Kubernetes still accepts them.
    pub fn parse(text: &str) -> Self {
        Self {
            text: SharedStr::new(text),
            net: parse(text),
        }
    }

    /// The text as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The range, without host bits.
    pub fn net(&self) -> Result<IpNet, CidrError> {
        self.net.ok_or(CidrError::Malformed)
    }

    /// The address family; `None` if the text is not a CIDR.
    pub fn family(&self) -> Option<IpFamily> {
        self.net.map(|net| IpFamily::of(net.network()))
    }
}

impl From<IpNet> for Cidr {
    fn from(net: IpNet) -> Self {
        let net = net.trunc();
        Self {
            text: SharedStr::new(&net.to_string()),
            net: Some(net),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn parse(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    let length = length.parse().ok().filter(|_| digits)?;
    let address = IpAddr::from_str(&without_leading_zeros(address)).ok()?;
    Some(IpNet::new(address, length).ok()?.trunc())
}

fn without_leading_zeros(address: &str) -> String {
    if address.contains(':') {
        return address.to_owned();
    }
    let octets = address.split('.').map(|octet| {
        let short = octet.trim_start_matches('0');
        if short.is_empty() && !octet.is_empty() {
            "0"
        } else {
            short
        }
    });
    octets.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_are_cut_and_leading_zeros_are_decimal() {
        let net = |text: &str| Cidr::parse(text).net().unwrap().to_string();
        assert_eq!(net("10.244.2.5/24"), "10.244.2.0/24");
        assert_eq!(net("010.0244.0.0/24"), "10.244.0.0/24");
        assert_eq!(net("a00:100::/24"), "a00:100::/24");
        assert_eq!(Cidr::parse("010.0.0.0/8").text(), "010.0.0.0/8");
    }

    #[test]
    fn an_invalid_cidr_is_an_error_and_keeps_its_text() {
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0/24",
            "10.0.0.256/24",
            "10..0.0/8",
            "::/129",
            "x/8",
        ] {
            let cidr = Cidr::parse(text);
            assert_eq!(cidr.net(), Err(CidrError::Malformed), "{text}");
            assert_eq!(cidr.text(), text);
        }
    }
}
