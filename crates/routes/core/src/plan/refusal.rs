//! Reasons for which a node gets no route.

use std::net::IpAddr;

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr};

use crate::Cidr;

/// A range of a node that gets no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the node.
    pub node: SharedStr,
    /// The range; `None` if the node has none.
    pub cidr: Option<Cidr>,
    /// The reason, for logs, events and metrics.
    pub reason: RefusalReason,
}

/// Reason for which a node gets no route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    /// No range was allocated yet.
    #[error("has no pod CIDR yet")]
    NoPodCidr,
    /// The range cannot be parsed.
    #[error("not a CIDR")]
    Malformed,
    /// The range has prefix length 0.
    #[error("would be a default route")]
    DefaultRoute,
    /// Not in the cluster's range.
    #[error("outside the cluster's range")]
    OutOfRange,
    /// The provider does not route this family.
    #[error("provider does not route {0}")]
    FamilyNotRouted(IpFamily),
    /// The node has no internal address of the family.
    #[error("node has no internal {0} address")]
    NoAddress(IpFamily),
    /// The node has no `spec.providerID`, by which the provider knows it.
    #[error("node has no provider ID")]
    NoProviderId,
    /// The next hop lies in the destination, so packets to it would be sent to itself.
    #[error("next hop {0} is inside the range")]
    NextHopInside(IpAddr),
    /// The address cannot belong to one machine: unspecified, loopback, multicast or broadcast.
    #[error("{0} cannot be a next hop")]
    BadNextHop(IpAddr),
    /// The provider reports other addresses for the node's instance.
    #[error("{0} is not an address of the node's instance")]
    AddressNotOfInstance(IpAddr),
    /// Another node has the same range and is served first.
    #[error("node {0} has the same range")]
    Duplicate(SharedStr),
    /// Another range contains it or lies in it.
    #[error("overlaps {net} of node {node}")]
    Overlaps {
        /// Name of the other node.
        node: SharedStr,
        /// Range of the other node.
        net: IpNet,
    },
    /// A foreign route has the same destination.
    #[error("a foreign route has the same destination")]
    DestinationTaken,
}

impl RefusalReason {
    /// True if this is normal for a node that has just joined, and not worth an event.
    pub fn is_waiting(&self) -> bool {
        matches!(
            self,
            Self::NoPodCidr | Self::NoAddress(_) | Self::NoProviderId
        )
    }

    /// True if the node's network counts as unavailable because of it. A family that the provider
    /// never routes would make the node unavailable for good, so it does not count.
    pub fn blocks(&self) -> bool {
        !matches!(self, Self::NoPodCidr | Self::FamilyNotRouted(_))
    }

    /// Value of a metric label and reason of an event, from a closed set.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NoPodCidr => "NoPodCidr",
            Self::Malformed => "MalformedPodCidr",
            Self::DefaultRoute => "DefaultRoute",
            Self::OutOfRange => "PodCidrOutOfRange",
            Self::FamilyNotRouted(_) => "FamilyNotRouted",
            Self::NoAddress(_) => "NoAddress",
            Self::NoProviderId => "NoProviderId",
            Self::NextHopInside(_) => "NextHopInside",
            Self::BadNextHop(_) => "BadNextHop",
            Self::AddressNotOfInstance(_) => "AddressNotOfInstance",
            Self::Duplicate(_) => "DuplicatePodCidr",
            Self::Overlaps { .. } => "OverlappingPodCidr",
            Self::DestinationTaken => "DestinationTaken",
        }
    }
}
