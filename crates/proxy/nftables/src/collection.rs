//! The sets and maps of the table.

use weft_host::nftables::{Field, Kind, Set, Traits};
use weft_model::IpFamily;

use crate::{front::FrontKind, options::Counters};

/// A map that has a key for each front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum FrontMap {
    /// Front to flags and number of endpoints.
    Services,
    /// Front and number to endpoint.
    Endpoints,
    /// Front to number of local endpoints.
    LocalCounts,
    /// Front to the identity of its Service port, for those with affinity.
    Affinity,
    /// Front to seconds of affinity.
    Timeouts,
    /// Front and number to the identity of Service port and endpoint.
    Slots,
}

/// A set or map whose elements are data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Collection {
    OfFronts(FrontKind, FrontMap),
    /// Protocol and identity to endpoint, of those that any client may get.
    StickyEndpoints,
    /// The same for clients that have to stay on the node.
    StickyLocalEndpoints,
    /// Front and source network.
    SourceRanges,
    ClusterIps,
    /// Networks that ClusterIPs are taken from.
    ServiceNetworks,
    NodePortAddresses,
    /// Address and the same address again, of endpoints on this node.
    Hairpin,
}

/// A map of verdicts, by a number in the packet's priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Dispatch {
    /// Number of endpoints to the chain that draws one of them.
    Pick,
    /// Seconds of affinity to the chain with that timeout.
    Sticky(FrontKind),
    StickyLocal(FrontKind),
}

/// Clients that were served, written by packets: client and identity of the Service port to
/// identity of Service port and endpoint.
pub(crate) const CLIENTS: &str = "clients";

/// Maximum number of remembered clients, over all Services. More are served without affinity.
pub(crate) const CLIENT_LIMIT: u32 = 1 << 18;

impl Collection {
    pub(crate) const ALL: [Self; 19] = {
        use FrontKind::{Address, NodePort};
        use FrontMap::{Affinity, Endpoints, LocalCounts, Services, Slots, Timeouts};
        [
            Self::OfFronts(Address, Services),
            Self::OfFronts(Address, Endpoints),
            Self::OfFronts(Address, LocalCounts),
            Self::OfFronts(Address, Affinity),
            Self::OfFronts(Address, Timeouts),
            Self::OfFronts(Address, Slots),
            Self::OfFronts(NodePort, Services),
            Self::OfFronts(NodePort, Endpoints),
            Self::OfFronts(NodePort, LocalCounts),
            Self::OfFronts(NodePort, Affinity),
            Self::OfFronts(NodePort, Timeouts),
            Self::OfFronts(NodePort, Slots),
            Self::StickyEndpoints,
            Self::StickyLocalEndpoints,
            Self::SourceRanges,
            Self::ClusterIps,
            Self::ServiceNetworks,
            Self::NodePortAddresses,
            Self::Hairpin,
        ]
    };

    pub(crate) fn name(self) -> &'static str {
        use FrontKind::{Address, NodePort};
        match self {
            Self::OfFronts(Address, FrontMap::Services) => "services",
            Self::OfFronts(Address, FrontMap::Endpoints) => "endpoints",
            Self::OfFronts(Address, FrontMap::LocalCounts) => "local-counts",
            Self::OfFronts(Address, FrontMap::Affinity) => "affinity",
            Self::OfFronts(Address, FrontMap::Timeouts) => "affinity-timeouts",
            Self::OfFronts(Address, FrontMap::Slots) => "affinity-slots",
            Self::OfFronts(NodePort, FrontMap::Services) => "node-ports",
            Self::OfFronts(NodePort, FrontMap::Endpoints) => "node-port-endpoints",
            Self::OfFronts(NodePort, FrontMap::LocalCounts) => "node-port-local-counts",
            Self::OfFronts(NodePort, FrontMap::Affinity) => "node-port-affinity",
            Self::OfFronts(NodePort, FrontMap::Timeouts) => "node-port-affinity-timeouts",
            Self::OfFronts(NodePort, FrontMap::Slots) => "node-port-affinity-slots",
            Self::StickyEndpoints => "sticky-endpoints",
            Self::StickyLocalEndpoints => "sticky-local-endpoints",
            Self::SourceRanges => "source-ranges",
            Self::ClusterIps => "cluster-ips",
            Self::ServiceNetworks => "service-networks",
            Self::NodePortAddresses => "node-port-addresses",
            Self::Hairpin => "hairpin",
        }
    }

    /// The collection of one kind of front.
    pub(crate) fn of(kind: FrontKind, map: FrontMap) -> Self {
        Self::OfFronts(kind, map)
    }

    pub(crate) fn set(self, family: IpFamily, counters: Counters) -> Set {
        let address = Field::Address(family);
        let endpoint = || Kind::Map(vec![address, Field::Port]);
        let number = || Kind::Map(vec![Field::Classid]);
        let front = |kind, more: &[Field]| {
            let fields = match kind {
                FrontKind::Address => &[address, Field::Protocol, Field::Port][..],
                FrontKind::NodePort => &[Field::Protocol, Field::Port],
            };
            [fields, more].concat()
        };
        let (key, kind) = match self {
            Self::OfFronts(kind, map) => match map {
                FrontMap::Endpoints => (front(kind, &[Field::Classid]), endpoint()),
                FrontMap::Slots => (front(kind, &[Field::Classid]), number()),
                _ => (front(kind, &[]), number()),
            },
            Self::StickyEndpoints | Self::StickyLocalEndpoints => {
                (vec![Field::Protocol, Field::Classid], endpoint())
            }
            Self::SourceRanges => (front(FrontKind::Address, &[address]), Kind::Set),
            Self::ClusterIps | Self::ServiceNetworks | Self::NodePortAddresses => {
                (vec![address], Kind::Set)
            }
            Self::Hairpin => (vec![address, address], Kind::Set),
        };
        Set {
            name: self.name().to_owned(),
            key,
            kind,
            traits: Traits {
                is_interval: matches!(self, Self::SourceRanges | Self::ServiceNetworks),
                dynamic: None,
                counts: counters == Counters::On && self.leads_to_endpoints(),
            },
        }
    }

    /// True if a packet that finds an element is translated by it.
    fn leads_to_endpoints(self) -> bool {
        matches!(
            self,
            Self::OfFronts(_, FrontMap::Endpoints)
                | Self::StickyEndpoints
                | Self::StickyLocalEndpoints
        )
    }

    /// True if its keys have several fields.
    pub(crate) fn is_concatenation(self) -> bool {
        !matches!(
            self,
            Self::ClusterIps | Self::ServiceNetworks | Self::NodePortAddresses
        )
    }
}

impl Dispatch {
    pub(crate) const ALL: [Self; 5] = [
        Self::Pick,
        Self::Sticky(FrontKind::Address),
        Self::StickyLocal(FrontKind::Address),
        Self::Sticky(FrontKind::NodePort),
        Self::StickyLocal(FrontKind::NodePort),
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pick => "pick",
            Self::Sticky(FrontKind::Address) => "sticky",
            Self::StickyLocal(FrontKind::Address) => "sticky-local",
            Self::Sticky(FrontKind::NodePort) => "node-port-sticky",
            Self::StickyLocal(FrontKind::NodePort) => "node-port-sticky-local",
        }
    }

    pub(crate) fn set(self) -> Set {
        Set {
            name: self.name().to_owned(),
            key: vec![Field::Classid],
            kind: Kind::VerdictMap,
            traits: Traits::default(),
        }
    }
}

/// The map of clients.
pub(crate) fn clients(family: IpFamily) -> Set {
    Set {
        name: CLIENTS.to_owned(),
        key: vec![Field::Address(family), Field::Classid],
        kind: Kind::Map(vec![Field::Classid]),
        traits: Traits {
            is_interval: false,
            dynamic: Some(CLIENT_LIMIT),
            counts: false,
        },
    }
}
