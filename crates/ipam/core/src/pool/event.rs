//! Inputs of the pool, and its replies.

use std::{collections::BTreeSet, net::IpAddr};

use weft_model::{IpFamily, Moment, SharedStr};

use super::{Key, Lease, PodIdentity, Record};
use crate::{ConfigFlaw, ContainerId, GrantName, NodeConfig, PodSummary};

/// Id of a request, which matches a reply to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// An input of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A pod requests addresses and waits until the deadline.
    Add(AddRequest),
    /// The client disconnected: a later reply has no recipient.
    Cancel(RequestId),
    /// The attachment was made, but its client disconnected before the reply: it is unused and
    /// released. It may be requested again.
    Abandon(Key),
    /// CNI DEL: a sandbox is gone, or was never created.
    Delete(RequestId, Key),
    /// The NodeNetworkConfig, from its watch.
    Observed(Box<NodeConfig>),
    /// The NodeNetworkConfig after our last spec write was accepted. Comes only from
    /// [`crate::Monitor::answered`], which knows which write is the last.
    Accepted(Box<NodeConfig>),
    /// The host has programmed this version of a network container.
    Programmed(ContainerId, i64),
    /// Offer these grants for release.
    Offer(Vec<GrantName>),
    /// All pods of this node except hostNetwork ones, listed about every minute.
    Sweep(Vec<PodSummary>),
    /// CNI GC: the attachments of a network that are in use.
    Collect {
        /// Name of the network.
        network: SharedStr,
        /// Container id and interface of each attachment.
        valid: BTreeSet<(SharedStr, SharedStr)>,
    },
    /// Records could not be made durable; these attachments are among them and were not answered.
    StoreFailed(Vec<Key>),
    /// A snapshot was made durable again.
    StoreRecovered,
    /// A time returned by [`Pool::wake`](super::Pool::wake) has passed.
    Tick,
}

/// A request for addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AddRequest {
    /// Id for the reply.
    pub id: RequestId,
    /// Key of the attachment.
    pub key: Key,
    /// The pod of the attachment.
    pub pod: PodIdentity,
    /// Exactly these addresses; any if empty.
    pub desired: Vec<IpAddr>,
    /// Time until which the client waits.
    pub deadline: Moment,
}

/// Result of an event. The records of one step are made durable together, and before anything else
/// of this or a later step leaves the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Records to store, all or none.
    pub records: Vec<Record>,
    /// Replies to send once these and all earlier records are durable.
    pub replies: Vec<(RequestId, Reply)>,
    /// Notices for logs and metrics.
    pub notices: Vec<Notice>,
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The assigned addresses, one for each family.
    Assigned(Vec<Lease>),
    /// The attachment no longer exists.
    Released,
    /// Refused; nothing was changed.
    Refused(Refusal),
}

/// The reason for refusing an ADD.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The deadline passed without a free address.
    #[error("no {0} address became available in time")]
    Exhausted(IpFamily),
    /// The deadline passed before the node's addresses were known.
    #[error("the addresses of this node are not known yet")]
    NotReady,
    /// A desired address is not available.
    #[error("address {0} is not available")]
    Desired(IpAddr),
    /// The attachment was deleted already: this ADD is late.
    #[error("the attachment was deleted before")]
    Deleted,
    /// The attachment was deleted while it waited.
    #[error("the attachment was deleted while waiting")]
    DeletedWhileWaiting,
    /// The attachment is older than the current Node object.
    #[error("the attachment belongs to an earlier node of this name")]
    FormerNode,
    /// The attachment belongs to another pod.
    #[error("the attachment belongs to another pod")]
    OtherPod,
    /// The store cannot be written.
    #[error("cannot write the address store")]
    Closed,
}

/// A condition for logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The NodeNetworkConfig contains an error.
    Config(ConfigFlaw),
    /// An address in use vanished from the NodeNetworkConfig.
    Quarantined(IpAddr, Key),
    /// An address in use is offered for release; the next write withdraws the offer.
    OfferedInUse(GrantName),
    /// An unrecorded address was found in use.
    Adopted(IpAddr, PodIdentity),
    /// An attachment was released because its pod is gone.
    Swept(Key, PodIdentity),
    /// An ADD came after its DEL.
    LateAdd(Key),
    /// Offers were taken back.
    Reclaimed(Vec<GrantName>),
}
