//! Number of addresses that the pods of a node need, and a debounce for counting them.

use std::{net::IpAddr, time::Duration};

use weft_model::Moment;

use crate::{Uid, pool::PodIdentity};

/// The fields of a Pod of this node that decide about addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodSummary {
    /// Namespace, name and `metadata.uid`.
    pub identity: PodIdentity,
    /// The annotation `kubernetes.io/config.hash` of a mirror pod: the UID under which kubelet
    /// runs a static pod, and which its sandbox therefore shows.
    pub static_uid: Option<Uid>,
    /// True if it uses the node's network and needs no address.
    pub host_network: bool,
    /// True if its phase is `Succeeded` or `Failed`. A deletion timestamp does not count: the
    /// sandbox exists through the grace period.
    pub finished: bool,
    /// Addresses that the pod reports, `status.podIPs`.
    pub addresses: Vec<IpAddr>,
}

impl PodSummary {
    /// True if it needs an address of its own.
    pub fn needs_address(&self) -> bool {
        !self.host_network && !self.finished
    }

    /// True if it is the pod of an attachment.
    pub(crate) fn is(&self, pod: &PodIdentity) -> bool {
        match &pod.uid {
            Some(uid) => {
                self.identity.uid.as_ref() == Some(uid) || self.static_uid.as_ref() == Some(uid)
            }
            None => (&self.identity.namespace, &self.identity.name) == (&pod.namespace, &pod.name),
        }
    }
}

/// Number of pods that need an address. Counted from a complete list, never summed from events.
pub fn pod_demand<'a>(pods: impl IntoIterator<Item = &'a PodSummary>) -> u32 {
    let count = pods.into_iter().filter(|pod| pod.needs_address()).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Debounces a burst of changes: the first is handled after a short delay, further ones at longer
/// intervals, and the last one always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Debounce {
    first: Duration,
    interval: Duration,
    looked: Option<Moment>,
    due: Option<Moment>,
}

impl Default for Debounce {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(50),
            interval: Duration::from_millis(500),
            looked: None,
            due: None,
        }
    }
}

impl Debounce {
    /// Records a change.
    pub fn changed(&mut self, now: Moment) {
        let soon = now + self.first;
        let due = self
            .looked
            .map_or(soon, |looked| soon.max(looked + self.interval));
        self.due.get_or_insert(due);
    }

    /// Time of the next evaluation.
    pub fn wake(&self) -> Option<Moment> {
        self.due
    }

    /// True once if an evaluation is due; marks it as done.
    pub fn take(&mut self, now: Moment) -> bool {
        let due = self.due.is_some_and(|due| due <= now);
        if due {
            (self.looked, self.due) = (Some(now), None);
        }
        due
    }
}
