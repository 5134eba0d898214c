//! The packet's priority as a register between rules: what its 32 bits mean at which point.
//!
//! The kernel keeps nothing from rule to rule except in the packet. `skb->priority` is read by
//! queueing disciplines only, so the first packet of a connection carries our numbers in it and
//! loses them in postrouting.

/// Flags of a front, above the number of its endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(pub(crate) u32);

impl Flags {
    pub(crate) const NONE: Self = Self(0);
    /// Clients stay with their endpoint.
    pub(crate) const STICKY: Self = Self(1 << 24);
    /// Clients from outside only get endpoints of this node.
    pub(crate) const LOCAL: Self = Self(1 << 25);
    /// Only sources in `source-ranges` may use it.
    pub(crate) const RANGES: Self = Self(1 << 26);
    /// Connections are masqueraded.
    pub(crate) const MASQUERADE: Self = Self(1 << 27);
    /// Connections are masqueraded unless a pod of this node makes them.
    pub(crate) const MASQUERADE_FOREIGN: Self = Self(1 << 28);
    /// Without endpoints, packets are dropped and not refused.
    pub(crate) const DROP: Self = Self(1 << 29);
    /// Clients stay with their endpoint, which is one of this node.
    pub(crate) const STICKY_LOCAL: Self = Self(1 << 30);

    /// All that lead away from the straight path.
    pub(crate) const SPECIAL: Self = Self(
        Self::STICKY.0
            | Self::LOCAL.0
            | Self::RANGES.0
            | Self::MASQUERADE.0
            | Self::DROP.0
            | Self::STICKY_LOCAL.0,
    );

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The number of endpoints of a front, below its flags.
pub(crate) const COUNT_MASK: u32 = 0x00ff_ffff;

/// The most endpoints that a Service port may have.
pub(crate) const ENDPOINT_LIMIT: usize = 1 << 20;

/// A list of endpoints of one front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// For traffic that may leave the node.
    Cluster,
    /// For traffic that has to stay.
    Local,
}

/// Set in the numbers of both lists: what the kernel itself puts into the priority is small.
pub(crate) const NUMBER_BASE: u32 = 0x1000_0000;
/// Set in the numbers of local endpoints.
pub(crate) const LOCAL_BIT: u32 = 0x2000_0000;

impl List {
    /// The number of the first endpoint; the others follow without a gap.
    pub(crate) fn first(self) -> u32 {
        match self {
            Self::Cluster => NUMBER_BASE + 1,
            Self::Local => (NUMBER_BASE | LOCAL_BIT) + 1,
        }
    }

    /// The number of an endpoint by its place.
    pub(crate) fn number(self, place: usize) -> u32 {
        self.first() + u32::try_from(place).unwrap_or(u32::MAX >> 8)
    }
}

/// Identifies a Service port with affinity, in the upper half. Larger than those of numbers.
pub(crate) const AFFINITY_IDS: std::ops::RangeInclusive<u16> = 0x4000..=0xffff;
/// Keeps the Service port of an endpoint that was remembered for a client.
pub(crate) const AFFINITY_MASK: u32 = 0xffff_0000;
/// The most endpoints that a Service port with affinity may have.
pub(crate) const SLOT_LIMIT: usize = 0xffff;
