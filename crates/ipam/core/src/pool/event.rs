use std::{collections::BTreeSet, net::IpAddr};

use weft_model::{IpFamily, Moment, SharedStr};

use super::{Key, Lease, PodIdentity, Record};
use crate::{ConfigFlaw, ContainerId, GrantName, NodeConfig, PodSketch};

/// Finds the one who asked, when there is an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A pod wants addresses, and would wait until the deadline.
    Add(AddRequest),
    /// The one who asked has gone: whatever comes now is for nobody.
    Cancel(Ticket),
    /// The attachment was made, but whoever asked had gone before the answer: nobody uses it. It
    /// may be asked for again.
    Abandon(Key),
    /// A sandbox is gone, or never came to be.
    Delete(Ticket, Key),
    /// The NodeNetworkConfig, from its watch.
    Observed(Box<NodeConfig>),
    /// The NodeNetworkConfig as it was after the last spec of ours was accepted. Comes from
    /// [`crate::Monitor::answered`] only, which knows what is the last.
    Accepted(Box<NodeConfig>),
    /// The host is ready for this version of a network container.
    Programmed(ContainerId, i64),
    /// Offer these for release.
    Offer(Vec<GrantName>),
    /// All pods of this node, the hostNetwork ones left out: looked at every minute or so.
    Sweep(Vec<PodSketch>),
    /// CNI GC: attachments of a network that are in use.
    Collect {
        /// The network.
        network: SharedStr,
        /// Container id and interface of each.
        valid: BTreeSet<(SharedStr, SharedStr)>,
    },
    /// Records could not be made durable; these attachments are among them and were not answered.
    StoreFailed(Vec<Key>),
    /// A snapshot was made durable again.
    StoreRecovered,
    /// Time has passed.
    Tick,
}

/// What a pod wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AddRequest {
    /// Where the answer goes.
    pub ticket: Ticket,
    /// For which attachment.
    pub key: Key,
    /// For which pod.
    pub pod: PodIdentity,
    /// These addresses and no others; any if empty.
    pub desired: Vec<IpAddr>,
    /// How long the one who asks would wait.
    pub deadline: Moment,
}

/// What follows from an event. The records of one step are made durable together, and before
/// anything else of this or a later step leaves the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// To be kept: all or none.
    pub records: Vec<Record>,
    /// To be answered, once these and all earlier records are durable.
    pub replies: Vec<(Ticket, Reply)>,
    /// To be told.
    pub notices: Vec<Notice>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// These are yours.
    Assigned(Vec<Lease>),
    /// Nothing is left of it.
    Released,
    /// No, and nothing was changed.
    Refused(Refusal),
}

/// Why an ADD gets nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The deadline passed.
    #[error("no {0} address became available in time")]
    Exhausted(IpFamily),
    /// The deadline passed before it was known which addresses there are.
    #[error("addresses of this node are not known yet")]
    NotReady,
    /// An address was asked for that cannot be had.
    #[error("address {0} is not available")]
    Desired(IpAddr),
    /// The attachment was deleted already: this ADD is late.
    #[error("attachment was deleted before")]
    Deleted,
    /// The attachment was deleted while it waited.
    #[error("attachment was deleted while waiting")]
    DeletedWhileWaiting,
    /// The attachment is from before the node was made again.
    #[error("attachment belongs to an earlier node of this name")]
    FormerNode,
    /// The attachment is another pod's.
    #[error("attachment belongs to another pod")]
    OtherPod,
    /// Nothing can be made durable.
    #[error("state cannot be written")]
    Closed,
}

/// Something that people or metrics want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The NodeNetworkConfig has a flaw.
    Config(ConfigFlaw),
    /// A pod's address vanished from the NodeNetworkConfig.
    Quarantined(IpAddr, Key),
    /// A pod's address is offered for release; the next write takes it off the list.
    OfferedInUse(GrantName),
    /// An address was in use that we knew nothing of.
    Adopted(IpAddr, PodIdentity),
    /// An attachment was released because its pod is gone.
    Swept(Key, PodIdentity),
    /// An ADD came after its DEL.
    LateAdd(Key),
    /// Offers were taken back.
    Reclaimed(Vec<GrantName>),
}
