//! Go's zero values in JSON: an unset address is an empty string, an unset list is `null`.

use serde::{Deserialize, Deserializer};

/// Codec for `#[serde(with = "blank::address")]`.
pub(crate) mod address {
    use std::{borrow::Cow, net::IpAddr};

    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    #[expect(
        clippy::ref_option,
        reason = "serde calls it with a reference to the field"
    )]
    pub(crate) fn serialize<S: Serializer>(
        address: &Option<IpAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_str(""),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<IpAddr>, D::Error> {
        let text: Option<Cow<'de, str>> = Option::deserialize(deserializer)?;
        match text.as_deref() {
            None | Some("") => Ok(None),
            Some(text) => text
                .parse()
                .map(Some)
                .map_err(|_| D::Error::custom(format_args!("{text:?} is not an IP address"))),
        }
    }
}

/// Decoder for `#[serde(default, deserialize_with = "blank::null")]`: `null` is the default.
pub(crate) fn null<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}
