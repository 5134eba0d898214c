//! The versions of the specification.

use std::fmt;

use serde::{Serialize, Serializer};

/// A version this plugin speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecVersion {
    /// 0.3.0, which differs from the next in words only.
    V0_3_0,
    /// 0.3.1.
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
    /// What is spoken when nobody said anything.
    pub const NEWEST: Self = Self::V1_1_0;

    /// As configurations spell it; none for a version not spoken here.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == text)
    }

    /// As configurations spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Whether each address of a result says its family.
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
