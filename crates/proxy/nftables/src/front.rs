//! Fronts: the address, protocol and port of a Service that clients connect to.

use std::{fmt, net::IpAddr};

use weft_host::nftables::Value;
use weft_model::{IpFamily, Protocol};

/// The fields by which packets are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum FrontKind {
    /// By address, protocol and port.
    Address,
    /// By protocol and port, on every address of the node that takes part.
    NodePort,
}

impl FrontKind {
    pub(crate) const ALL: [Self; 2] = [Self::Address, Self::NodePort];

    /// Prefix of the names of its chains.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Address => "",
            Self::NodePort => "node-port-",
        }
    }
}

/// An address, protocol and port that clients use. One Service port has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Front {
    /// `None` for a NodePort.
    pub(crate) address: Option<IpAddr>,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
}

impl Front {
    pub(crate) fn kind(&self) -> FrontKind {
        match self.address {
            Some(_) => FrontKind::Address,
            None => FrontKind::NodePort,
        }
    }

    /// As a key, or the beginning of one.
    pub(crate) fn key(&self) -> Value {
        let start = self.address.map_or(Value::EMPTY, address);
        start
            .with(&[protocol_number(self.protocol)])
            .with(&self.port.to_be_bytes())
    }

    /// Out of a key that nothing follows.
    #[cfg(test)]
    pub(crate) fn from_key(kind: FrontKind, family: IpFamily, key: &Value) -> Option<Self> {
        let (address, rest) = match kind {
            FrontKind::NodePort => (None, key.as_bytes()),
            FrontKind::Address => {
                let (address, rest) = split_address(family, key.as_bytes())?;
                (Some(address), rest)
            }
        };
        let [number, 0, 0, 0, high, low, 0, 0] = *rest else {
            return None;
        };
        let mut protocols = Protocol::ALL.into_iter();
        Some(Self {
            address,
            protocol: protocols.find(|protocol| protocol_number(*protocol) == number)?,
            port: u16::from_be_bytes([high, low]),
        })
    }
}

impl fmt::Display for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{address} ")?,
            None => f.write_str("NodePort ")?,
        }
        write!(f, "{} {}", self.protocol, self.port)
    }
}

/// An address as the only field of a value.
pub(crate) fn address(address: IpAddr) -> Value {
    match address {
        IpAddr::V4(address) => Value::EMPTY.with(&address.octets()),
        IpAddr::V6(address) => Value::EMPTY.with(&address.octets()),
    }
}

/// Takes an address off the beginning.
pub(crate) fn split_address(family: IpFamily, bytes: &[u8]) -> Option<(IpAddr, &[u8])> {
    match family {
        IpFamily::V4 => {
            let (address, rest) = bytes.split_first_chunk::<4>()?;
            Some((IpAddr::from(*address), rest))
        }
        IpFamily::V6 => {
            let (address, rest) = bytes.split_first_chunk::<16>()?;
            Some((IpAddr::from(*address), rest))
        }
    }
}

/// IANA's number.
pub(crate) fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_is_read_back_from_its_key() {
        for address in [None, Some("10.96.0.1"), Some("fd00::1")] {
            for protocol in Protocol::ALL {
                let front = Front {
                    address: address.map(|text| text.parse().unwrap()),
                    protocol,
                    port: 30053,
                };
                let family = front.address.map_or(IpFamily::V4, IpFamily::of);
                let key = front.key();
                assert_eq!(Front::from_key(front.kind(), family, &key), Some(front));
                let longer = key.with_number(1);
                assert_eq!(Front::from_key(front.kind(), family, &longer), None);
            }
        }
    }
}
