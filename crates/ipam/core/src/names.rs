//! Names and identifiers as distinct types.

use std::fmt;

use serde::{Deserialize, Serialize};
use weft_model::{ResourceVersion, SharedStr};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(SharedStr);

        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(SharedStr::new(text))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(SharedStr::new(&text))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// `metadata.uid`: an object that is deleted and recreated has another one.
    Uid
}
name! {
    /// The name of a node, which is also that of its NodeNetworkConfig.
    NodeName
}
name! {
    /// The name of an entry of `ipAssignments`: one address, or a block that is granted and
    /// released as a whole. Never reused for another entry.
    GrantName
}
name! {
    /// The id of a network container: the entry of a status that groups addresses of one subnet.
    ContainerId
}
name! {
    /// The name of an IPPool.
    PoolName
}

/// Precondition of a write: the object is still the one that was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Precondition {
    /// The same object, not a recreated one of the same name.
    pub uid: Uid,
    /// Unchanged since it was read.
    pub version: ResourceVersion,
}
