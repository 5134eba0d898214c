use std::net::IpAddr;

use ipnet::IpNet;
use weft_model::{IpFamily, SharedStr};

use crate::Cidr;

/// Something a node asks for and cannot get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The node.
    pub node: SharedStr,
    /// The range, unless it has none at all.
    pub cidr: Option<Cidr>,
    /// Why.
    pub reason: RefusalReason,
}

/// Why a node does not get a route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    /// No range was given to it yet.
    #[error("has no pod CIDR yet")]
    NoPodCidr,
    /// Cannot be read.
    #[error("not a CIDR")]
    Malformed,
    /// The range is everything.
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
    /// Packets for the gateway would be sent to the gateway.
    #[error("next hop {0} lies inside")]
    NextHopInside(IpAddr),
    /// Not an address of one machine.
    #[error("{0} cannot be a next hop")]
    BadNextHop(IpAddr),
    /// The provider knows the machine by other addresses.
    #[error("{0} is not an address of the node's instance")]
    AddressNotOfInstance(IpAddr),
    /// Another node has the same range, or had it first.
    #[error("node {0} has the same range")]
    Duplicate(SharedStr),
    /// Another range contains it or lies in it.
    #[error("overlaps {net} of node {node}")]
    Overlaps {
        /// The other node.
        node: SharedStr,
        /// Its range.
        net: IpNet,
    },
    /// Somebody else's route is in the way.
    #[error("destination is taken by somebody else's route")]
    DestinationTaken,
}

impl RefusalReason {
    /// Whether it is the normal state of a node that has just joined, and no news.
    pub fn is_waiting(&self) -> bool {
        matches!(
            self,
            Self::NoPodCidr | Self::NoAddress(_) | Self::NoProviderId
        )
    }

    /// Whether the node's network counts as unavailable because of it. A family that the provider
    /// never routes would hold the node back for ever.
    pub fn blocks(&self) -> bool {
        !matches!(self, Self::NoPodCidr | Self::FamilyNotRouted(_))
    }

    /// A word for a metric label and an event, from a closed set.
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
