//! Supported versions of the CNI specification.

use std::fmt;

use serde::{Serialize, Serializer};

/// A supported version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecVersion {
    /// 0.3.0, which differs from 0.3.1 in wording only.
    V0_3_0,
    /// 0.3.1, the same format as 0.3.0.
    V0_3_1,
    /// 0.4.0 brought CHECK.
    V0_4_0,
    /// 1.0.0 dropped the family from addresses.
    V1_0_0,
    /// 1.1.0 brought STATUS and GC.
    V1_1_0,
}

impl SpecVersion {
    /// Every version, oldest first.
    pub const ALL: [Self; 5] = [
        Self::V0_3_0,
        Self::V0_3_1,
        Self::V0_4_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];
    /// The version of answers to a configuration without a supported version.
    pub const NEWEST: Self = Self::V1_1_0;

    /// Parses the spelling of configurations; none if the version is not supported.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == text)
    }

    /// The spelling of configurations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// True if each address of a result names its family.
    pub(crate) fn names_families(self) -> bool {
        self < Self::V1_0_0
    }
}

impl fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for SpecVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
