use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};
use weft_model::{Moment, SharedStr};

use crate::{ContainerId, Uid};

/// What identifies an attachment, as the CNI specification has it: one interface of one sandbox
/// in one network. Pods come and go under the same name; this does not come back.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The network's name.
    pub network: SharedStr,
    /// `CNI_CONTAINERID`.
    pub container: SharedStr,
    /// `CNI_IFNAME`.
    pub interface: SharedStr,
}

impl Key {
    /// Of these three.
    pub fn new(network: &str, container: &str, interface: &str) -> Self {
        Self {
            network: SharedStr::interned(network),
            container: SharedStr::new(container),
            interface: SharedStr::interned(interface),
        }
    }

    /// Stands for the unknown sandbox of a pod whose address was found in use.
    pub(crate) fn adopted(pod: &Uid) -> Self {
        Self::new("", pod.as_str(), "")
    }

    /// Whether it stands for an unknown sandbox.
    pub fn is_adopted(&self) -> bool {
        self.network.is_empty() && self.interface.is_empty()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container, self.interface)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The pod behind an attachment: for people, and for finding leaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodIdentity {
    /// Its namespace.
    pub namespace: SharedStr,
    /// Its name.
    pub name: SharedStr,
    /// Its UID, if the runtime told.
    pub uid: Option<Uid>,
}

/// An address as a pod gets it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The address.
    pub address: IpAddr,
    /// The prefix length of its subnet.
    pub prefix: u8,
    /// The subnet's gateway.
    pub gateway: Option<IpAddr>,
    /// The network container that it came from.
    pub container: ContainerId,
}

/// Who has which addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attachment {
    /// The pod.
    pub pod: PodIdentity,
    /// One address of each family.
    pub leases: Vec<Lease>,
    /// The NodeNetworkConfig that the addresses came from.
    pub epoch: Uid,
    /// Since when.
    pub at: Moment,
}
