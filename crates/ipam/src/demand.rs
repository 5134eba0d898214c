//! How many addresses the pods of a node need.

use std::net::IpAddr;

use crate::{Uid, pool::PodIdentity};

/// A Pod of this node, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodSketch {
    /// Namespace, name and `metadata.uid`.
    pub identity: PodIdentity,
    /// The annotation `kubernetes.io/config.hash` of a mirror pod: the UID under which kubelet
    /// runs a static pod, and which its sandbox therefore shows.
    pub static_uid: Option<Uid>,
    /// Whether it uses the node's network and needs no address.
    pub host_network: bool,
    /// Whether its phase is `Succeeded` or `Failed`. A deletion timestamp does not count: the
    /// sandbox lives through the grace period.
    pub finished: bool,
    /// `status.podIPs`.
    pub addresses: Vec<IpAddr>,
}

impl PodSketch {
    /// Whether it needs an address of its own.
    pub fn needs_address(&self) -> bool {
        !self.host_network && !self.finished
    }

    /// Whether it is the pod of an attachment.
    pub(crate) fn is(&self, pod: &PodIdentity) -> bool {
        match &pod.uid {
            Some(uid) => {
                self.identity.uid.as_ref() == Some(uid) || self.static_uid.as_ref() == Some(uid)
            }
            None => (&self.identity.namespace, &self.identity.name) == (&pod.namespace, &pod.name),
        }
    }
}

/// How many pods need an address. Counted from a complete list, never added up from events.
pub fn pod_demand<'a>(pods: impl IntoIterator<Item = &'a PodSketch>) -> u32 {
    let count = pods.into_iter().filter(|pod| pod.needs_address()).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}
