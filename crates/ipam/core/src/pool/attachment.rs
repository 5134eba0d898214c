//! CNI attachments: their keys, their pods and the addresses that they hold.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};
use weft_model::{Moment, SharedStr};

use crate::{ContainerId, Uid};

/// Key of an attachment by the CNI specification: one interface of one sandbox in one network. Pods
/// reuse names; a sandbox's key never comes back.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// Name of the CNI network.
    pub network: SharedStr,
    /// The value of `CNI_CONTAINERID`.
    pub container: SharedStr,
    /// The value of `CNI_IFNAME`.
    pub interface: SharedStr,
}

impl Key {
    /// A key of these three parts.
    pub fn new(network: &str, container: &str, interface: &str) -> Self {
        Self {
            network: SharedStr::interned(network),
            container: SharedStr::new(container),
            interface: SharedStr::interned(interface),
        }
    }

    /// The placeholder key for the unknown sandbox of a pod whose address was found in use.
    pub(crate) fn adopted(pod: &Uid) -> Self {
        Self::new("", pod.as_str(), "")
    }

    /// True for the placeholder of an unknown sandbox.
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

/// The pod behind an attachment, for logs and for finding leaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodIdentity {
    /// Namespace of the pod.
    pub namespace: SharedStr,
    /// Name of the pod.
    pub name: SharedStr,
    /// UID of the pod, if the runtime passed it.
    pub uid: Option<Uid>,
}

/// An address as a pod gets it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The address.
    pub address: IpAddr,
    /// Prefix length of its subnet.
    pub prefix: u8,
    /// Gateway of the subnet.
    pub gateway: Option<IpAddr>,
    /// The network container that it came from.
    pub container: ContainerId,
}

/// The addresses of one attachment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attachment {
    /// The pod that holds them.
    pub pod: PodIdentity,
    /// One address of each family.
    pub leases: Vec<Lease>,
    /// UID of the NodeNetworkConfig that the addresses came from.
    pub epoch: Uid,
    /// Time of the assignment.
    pub at: Moment,
}
