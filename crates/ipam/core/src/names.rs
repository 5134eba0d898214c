use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use weft_model::SharedStr;

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
    /// `metadata.uid`: an object that is deleted and made again is another one.
    Uid
}
name! {
    /// The name of a node, which is also that of its NodeNetworkConfig.
    NodeName
}
name! {
    /// The name of an entry of `ipAssignments`: of one address, or of a block that comes and goes
    /// as a whole. Never used for a second entry.
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

/// `metadata.resourceVersion`: equal or not, and newer where both are numbers, as Kubernetes
/// promises since 1.35.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceVersion(Arc<str>);

impl ResourceVersion {
    /// Whether it is certain that the other was written later.
    pub fn is_older_than(&self, other: &Self) -> bool {
        match (self.0.parse::<u64>(), other.0.parse::<u64>()) {
            (Ok(this), Ok(other)) => this < other,
            _ => false,
        }
    }

    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ResourceVersion {
    fn from(text: &str) -> Self {
        Self(Arc::from(text))
    }
}

impl From<u64> for ResourceVersion {
    fn from(number: u64) -> Self {
        Self(Arc::from(number.to_string()))
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an object must still be for a write to happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Precondition {
    /// The same object, not one made again under its name.
    pub uid: Uid,
    /// Unchanged since it was read.
    pub version: ResourceVersion,
}
