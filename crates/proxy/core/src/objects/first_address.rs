//! The first address of an endpoint, parsed while it is decoded.

use std::{fmt, net::IpAddr};

use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess},
};
use weft_model::parse_sloppy;

/// The first of an endpoint's `addresses`.
///
/// An informer keeps every endpoint of the cluster: a list of strings for each would be two allocations
/// more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FirstAddress {
    /// The list is empty.
    #[default]
    None,
    /// An address of either family.
    Ip(IpAddr),
    /// A text that is not an address, such as a host name.
    Other(Box<str>),
}

impl From<&str> for FirstAddress {
    fn from(text: &str) -> Self {
        parse_sloppy(text).map_or_else(|| Self::Other(text.into()), Self::Ip)
    }
}

/// The text in quotes, for messages.
impl fmt::Display for FirstAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("\"\""),
            Self::Ip(address) => write!(f, "\"{address}\""),
            Self::Other(text) => write!(f, "{text:?}"),
        }
    }
}

impl<'de> Deserialize<'de> for FirstAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> de::Visitor<'de> for List {
            type Value = FirstAddress;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of addresses")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FirstAddress, A::Error> {
                let first: Option<Item> = list.next_element()?;
                while list.next_element::<Skipped>()?.is_some() {}
                Ok(first.map_or(FirstAddress::None, |Item(address)| address))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// An address, read without a copy of its text.
struct Item(FirstAddress);

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text(|text: &str| Self(text.into())))
    }
}

/// A further address, which has to be a string too.
struct Skipped;

impl<'de> Deserialize<'de> for Skipped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text(|_: &str| Self))
    }
}

/// Visits a string.
struct Text<F>(F);

impl<T, F: FnOnce(&str) -> T> de::Visitor<'_> for Text<F> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        Ok((self.0)(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_list_counts_and_all_have_to_be_strings() {
        let read = |text: &str| serde_json::from_str::<FirstAddress>(text).ok();
        let address = |text: &str| FirstAddress::Ip(text.parse().unwrap());
        assert_eq!(read("[]"), Some(FirstAddress::None));
        assert_eq!(
            read(r#"["10.0.0.1", "10.0.0.2"]"#),
            Some(address("10.0.0.1"))
        );
        assert_eq!(read(r#"["010.0.0.1"]"#), Some(address("10.0.0.1")));
        assert_eq!(read(r#"["fd00::1"]"#), Some(address("fd00::1")));
        let host = FirstAddress::Other("a.example".into());
        assert_eq!(read(r#"["a.example"]"#), Some(host.clone()));
        assert_eq!(host.to_string(), "\"a.example\"");
        for wrong in ["7", "\"10.0.0.1\"", "[7]", r#"["10.0.0.1", 7]"#] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_address_takes_no_allocation() {
        assert!(size_of::<FirstAddress>() <= 24);
    }
}
