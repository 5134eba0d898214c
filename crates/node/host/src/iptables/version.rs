//! Variant and version of iptables, parsed from `iptables --version`.

use std::{fmt, str::FromStr};

/// One of the two implementations of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// The kernel's xtables, a table at a time.
    Legacy,
    /// The same commands translated to nftables.
    Nft,
}

impl Variant {
    /// Both variants, legacy first.
    pub const ALL: [Self; 2] = [Self::Legacy, Self::Nft];

    /// Suffix in the names of the programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Nft => "nft",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A version of iptables, such as 1.8.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    numbers: [u16; 3],
}

impl Version {
    /// A version from its three numbers.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self {
            numbers: [major, minor, patch],
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Output of `iptables --version`: `iptables v1.8.9 (nf_tables)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Banner {
    pub(super) version: Version,
    pub(super) variant: Variant,
}

impl FromStr for Banner {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let version = text
            .split_whitespace()
            .find_map(|word| parse_version(word.strip_prefix('v')?))
            .ok_or(())?;
        // Before 1.8 there was only the implementation that is called legacy now.
        let variant = if text.contains("(nf_tables)") {
            Variant::Nft
        } else {
            Variant::Legacy
        };
        Ok(Self { version, variant })
    }
}

/// One to four numbers: `1.4.16.3` was a version once, and three numbers suffice.
fn parse_version(text: &str) -> Option<Version> {
    let mut numbers = [0; 3];
    for (index, part) in text.split('.').enumerate() {
        let number = part.parse().ok()?;
        if let Some(slot) = numbers.get_mut(index) {
            *slot = number;
        }
    }
    Some(Version { numbers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_banner_names_version_and_variant() {
        let cases = [
            ("iptables v1.8.9 (nf_tables)\n", (1, 8, 9), Variant::Nft),
            ("ip6tables v1.8.10 (legacy)", (1, 8, 10), Variant::Legacy),
            ("iptables v1.6.2", (1, 6, 2), Variant::Legacy),
            ("iptables v1.4.16.3", (1, 4, 16), Variant::Legacy),
            ("iptables-nft v1.9 (nf_tables)", (1, 9, 0), Variant::Nft),
        ];
        for (text, (major, minor, patch), variant) in cases {
            let version = Version::new(major, minor, patch);
            assert_eq!(text.parse(), Ok(Banner { version, variant }), "{text}");
        }
        for text in ["", "iptables", "version 1.8.9", "iptables v1.x"] {
            assert_eq!(text.parse::<Banner>(), Err(()), "{text}");
        }
    }

    #[test]
    fn versions_compare_by_number() {
        assert!(Version::new(1, 8, 10) > Version::new(1, 8, 9));
        assert_eq!(Version::new(1, 8, 9).to_string(), "1.8.9");
    }
}
